"""`oncelog up` in tests: a server process that can be killed and stopped.

`support.apache_kafka.ApacheKafka` has the same interface, so that the same test runs against either.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from support.processes import ManagedProcess, accepts, gone, wait_until


class Server(Protocol):
    """The interface of a broker, ours or Apache Kafka's."""

    name: str
    bootstrap: str

    def kill(self) -> None:
        """SIGKILL the broker, and return when it is dead."""

    def wait_ready(self) -> None:
        """Return when a killed broker accepts connections again. Restart it if nothing else does."""

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        """Return the partition directory."""

    def stop(self) -> int:
        """Stop cleanly, and return the exit status."""


class OncelogCluster:
    """`oncelog up --port 0` with its data under `directory`, ready when constructed."""

    name = "oncelog"

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        program: Path | None = None,
    ) -> None:
        self._program = program or Path(sys.executable).with_name("oncelog")
        self._killed: set[int] = set()
        self.directory = directory
        self.data = directory / "data"
        self._settings = dict(settings or {})
        self._arguments = arguments
        self._env = {**os.environ, **(env or {})}
        self.bootstrap = ""
        self.start()

    def start(self, port: int = 0) -> None:
        """Start `oncelog up` and wait for its BROKERS= line. Also restarts it after `stop`."""
        command: list[str | Path] = [self._program, "up"]
        if "listeners" not in self._settings and "--config" not in self._arguments:
            command += ["--port", str(port)]
        command += ["--data", self.data, *self._arguments]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        self.process = ManagedProcess(command, self.directory, "oncelog-up", self._env)
        before = len(list(self.process.lines()))
        try:
            self.process.wait_for(lambda: self._brokers(before), "oncelog up prints BROKERS=")
        except BaseException:
            self.process.kill()
            raise
        self.bootstrap = self._brokers(before)

    def _brokers(self, skip: int) -> str:
        lines = list(self.process.lines())[skip:]
        return next((line.removeprefix("BROKERS=") for line in lines if line.startswith("BROKERS=")), "")

    def broker_pid(self, broker: int = 1) -> int:
        """Return the process id of one broker, from its pid file."""
        return int((self.data / f"broker-{broker}" / "broker.pid").read_text())

    def kill(self, broker: int = 1) -> None:
        """SIGKILL one broker (the supervisor restarts it), and return when it is dead."""
        pid = self.broker_pid(broker)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), f"broker {pid} dies")
        self._killed.add(pid)

    def wait_ready(self) -> None:
        """Return when every broker accepts connections again."""
        # A thread of the dead broker may keep its socket open for a moment: only a new process counts.
        brokers = range(1, self.bootstrap.count(",") + 2)
        self.process.wait_for(lambda: all(map(self._is_restarted, brokers)), "the broker is restarted")
        for address in self.bootstrap.split(","):
            self.process.wait_for(partial(accepts, address), f"{address} accepts connections")

    def _is_restarted(self, broker: int) -> bool:
        try:
            return self.broker_pid(broker) not in self._killed
        except (FileNotFoundError, ValueError):  # the new process has not written its file yet
            return False

    def partition_dir(self, topic: str, partition: int = 0, broker: int = 1) -> Path:
        """Return the partition directory."""
        return next((self.data / f"broker-{broker}").rglob(f"{topic}-{partition}"))

    def stop(self) -> int:
        """Send SIGTERM and wait. Return the exit status (0 after a clean stop)."""
        return self.process.stop()


REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}
"""The settings of three brokers, ours or Apache Kafka's: `acks=all` waits for two of them."""


class ReplicatedCluster(OncelogCluster):
    """`oncelog up --brokers N`, whose topics have up to three replicas."""

    name = "oncelog-3"

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.brokers = brokers
        self._victim = 0
        given = {key: str(min(brokers, int(value))) for key, value in REPLICATED.items()}
        super().__init__(
            directory, settings={**given, **(settings or {})}, arguments=("--brokers", str(brokers), *arguments)
        )

    def kill(self, broker: int | None = None) -> None:
        """SIGKILL one broker: by default each in turn, because a restarted one leads no partition for a while."""
        self._victim = self._victim % self.brokers + 1
        super().kill(self._victim if broker is None else broker)
