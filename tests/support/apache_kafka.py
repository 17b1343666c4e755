"""Apache Kafka 4.3.1, as the control of every foreign-client test and benchmark: a node, and a cluster of one.

`support.kafka_nodes` has a cluster of three.

The jars come from `$ONCELOG_KAFKA_LIBS`, otherwise from `.cache/kafka-libs` (`scripts/conformance` fills it).
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.processes import ManagedProcess, accepts

ROOT = Path(__file__).resolve().parents[2]


def kafka_libs() -> Path:
    """Return the folder with Kafka's jars. The FileNotFoundError says how to get them."""
    folder = Path(os.environ.get("ONCELOG_KAFKA_LIBS") or ROOT / ".cache" / "kafka-libs")
    if not any(folder.glob("kafka_2.13-*.jar")):
        raise FileNotFoundError(f"no Apache Kafka in {folder}: scripts/conformance fetches it")
    return folder


SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that runs a tool for a short time."""


CLASSES = "ONCELOG_KAFKA_CLASSES"
"""The variable with the path of the archive that `support.class_archive` writes."""


def java(main_class: str, *arguments: str | Path, heap: str = "256m", options: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs a class of Kafka's jars."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"
    archive = os.environ.get(CLASSES)
    if archive is not None:
        options = (*options, f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    return [program, f"-Xmx{heap}", *options, "-cp", f"{kafka_libs()}/*", main_class, *map(str, arguments)]


def run_tool(main_class: str, *arguments: str | Path, stdin: str = "", timeout: float = 120) -> str:
    """Run one of Kafka's tools to its end, and return its stdout.

    Raise AssertionError with both outputs if it fails.
    """
    command = java(main_class, *arguments, options=SHORT_LIVED)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{main_class} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def held_ports(count: int) -> list[socket.socket]:
    """Bind sockets to free ports, so that no other process and no connection gets these ports.

    A server that sets SO_REUSEADDR, as Java's do, can still listen on them. Kafka's quorum settings and Spark's options
    name a port, so it cannot be left to bind(0).
    """
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    return sockets


def port_of(sock: socket.socket) -> int:
    """Return the port that the socket is bound to."""
    port: int = sock.getsockname()[1]
    return port


def new_id() -> str:
    """Return a random id in Kafka's format. It does not begin with "-", which the tools would parse as an option."""
    return urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


QUORUM = {"process.roles": "broker,controller", "node.id": "1", "controller.listener.names": "CONTROLLER"}
"""Settings of a node that is broker and controller."""

QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "2000",
}
"""Settings of a node in tests, which shall not wait long."""


def properties(settings: Mapping[str, str]) -> str:
    """Return the settings as the text of a properties file."""
    return "".join(f"{key}={value}\n" for key, value in settings.items())


@functools.cache
def formatted_directory() -> dict[str, bytes]:
    """Return name and content of each file in a formatted log directory. The tool that creates them takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        data, config = Path(folder, "data"), Path(folder, "server.properties")
        settings = {**QUORUM, "controller.quorum.voters": "1@127.0.0.1:1", "log.dirs": str(data)}
        settings["listeners"] = "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1"
        config.write_text(properties(settings))
        run_tool("kafka.tools.StorageTool", "format", "-t", new_id(), "-c", config)
        return {path.name: path.read_bytes() for path in data.iterdir() if path.is_file()}


class KafkaNode:
    """One process, which runs after `start`. `address` is the one of its first listener."""

    def __init__(
        self,
        directory: Path,
        address: str,
        settings: Mapping[str, str],
        *,
        heap: str = "512m",
        options: Sequence[str] = SHORT_LIVED,
    ) -> None:
        """Write the settings into `directory`. `options`: of the JVM."""
        self.directory = directory
        self.address = address
        self.data = directory / "kafka-logs"
        self._settings = {**QUORUM, "log.dirs": str(self.data), **settings}
        self._heap, self._options = heap, options
        directory.mkdir(parents=True, exist_ok=True)
        self._config = directory / "server.properties"
        self._config.write_text(properties(self._settings))

    def setting(self, name: str) -> str:
        """Return a setting that this node was given."""
        return self._settings[name]

    def format(self, cluster_id: str, *, with_tool: bool = False) -> None:
        """Format the log directories: copy the one that the tool has created once, with ids of its own.

        Only the tool itself can format several directories, or those of a node that is not a controller.
        """
        if with_tool:
            run_tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", self._config)
            return
        self.data.mkdir()
        for name, content in formatted_directory().items():
            (self.data / name).write_bytes(content)
        meta = {"version": "1", "node.id": self.setting("node.id"), "cluster.id": cluster_id, "directory.id": new_id()}
        (self.data / "meta.properties").write_text(properties(meta))

    def launch(self) -> None:
        """Start the process, and do not wait for it."""
        command = java("kafka.Kafka", self._config, heap=self._heap, options=self._options)
        self.process = ManagedProcess(command, self.directory, "apache-kafka")

    def wait_listening(self) -> None:
        """Wait until the node is ready. If it does not get ready, kill it and raise AssertionError with its output."""
        try:
            self.process.wait_for(lambda: accepts(self.address), "Apache Kafka listens", timeout=90)
        except BaseException:
            self.process.kill()
            raise

    def start(self) -> None:
        """Start the process and wait until it is ready. Also restarts it after `kill`."""
        self.launch()
        self.wait_listening()

    def runs(self) -> bool:
        """Return whether the process was started and is alive."""
        return hasattr(self, "process") and self.process.popen.poll() is None

    def kill(self) -> None:
        """SIGKILL the node, and return when it is dead."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.popen.wait()

    def stop(self) -> int:
        """Send SIGTERM and wait. Kafka exits with 143 after a clean stop."""
        return self.process.stop(timeout=60)


class ApacheKafka(KafkaNode):
    """One broker-and-controller node with internal topics of one replica, ready when constructed."""

    name = "apache-kafka"

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        heap: str = "512m",
        options: Sequence[str] = SHORT_LIVED,
        formatted: bool = False,
    ) -> None:
        """Start the node. `options`: of the JVM. `formatted`: its log directories (`log.dirs` in `settings`) exist."""
        self._held = held_ports(2)
        port, controller = map(port_of, self._held)
        self.bootstrap = f"127.0.0.1:{port}"
        given = {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            **self.listeners(port, controller),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **QUICK,
            **(settings or {}),
        }
        super().__init__(directory, self.bootstrap, given, heap=heap, options=options)
        if not formatted:
            self.format(new_id(), with_tool="log.dirs" in (settings or {}))
        self.start()

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        """Return the settings of the listeners."""
        return {"listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"}

    def wait_ready(self) -> None:
        """Restart the killed node, because nothing else does, and wait until it is ready."""
        if not self.runs():
            self.start()

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        """Return the partition directory."""
        return self.data / f"{topic}-{partition}"

    def stop(self) -> int:
        """Stop the node, and release its ports."""
        status = super().stop()
        for each in self._held:
            each.close()
        return status
