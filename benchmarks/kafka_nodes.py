"""Three nodes of Apache Kafka for benchmarks: each is broker and controller, with Kafka's defaults and `REPLICATED`."""

from __future__ import annotations

from pathlib import Path

from support.apache_kafka import QUORUM, formatted_directory, held_ports, java, new_id, port_of, properties
from support.processes import ManagedProcess

REPLICATED = {"default.replication.factor": "3", "min.insync.replicas": "2"}
"""The settings of both servers. All others have their defaults."""


class KafkaNodes:
    """The nodes 1 to 3. They run after `start`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = held_ports(6)
        ports = [port_of(each) for each in self._held]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports[3:], 1))
        cluster_id = new_id()
        for node in (1, 2, 3):
            data = folder / f"node-{node}" / "data"
            listeners = f"PLAINTEXT://127.0.0.1:{ports[node - 1]},CONTROLLER://127.0.0.1:{ports[node + 2]}"
            settings = {
                **QUORUM,
                **REPLICATED,
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "listeners": listeners,
                "log.dirs": str(data),
            }
            data.mkdir(parents=True)
            for name, content in formatted_directory().items():
                (data / name).write_bytes(content)
            meta = {"version": "1", "node.id": str(node), "cluster.id": cluster_id, "directory.id": new_id()}
            (data / "meta.properties").write_text(properties(meta))
            (data.parent / "server.properties").write_text(properties(settings))
        self._processes: dict[int, ManagedProcess] = {}

    def start(self) -> None:
        """Start the nodes that do not run. 1 GiB of heap, as in Kafka's start script, and the usual options."""
        for node in (1, 2, 3):
            if node not in self._processes:
                folder = self._folder / f"node-{node}"
                command = java("kafka.Kafka", folder / "server.properties", heap="1g")
                self._processes[node] = ManagedProcess(command, folder, "apache-kafka")

    def pids(self) -> list[int]:
        """Return the process ids of all nodes."""
        return [process.pid for process in self._processes.values()]

    def kill(self, node: int) -> None:
        """Kill a node as with `kill -9`."""
        self._processes.pop(node).kill()

    def stop(self) -> None:
        """Stop all nodes."""
        for process in self._processes.values():
            process.popen.terminate()
        for process in self._processes.values():
            process.stop(timeout=60)
        for each in self._held:
            each.close()
