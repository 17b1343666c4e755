"""Three nodes of Apache Kafka, each broker and controller: the control of three brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from support.apache_kafka import QUICK, SHORT_LIVED, KafkaNode, held_ports, new_id, port_of
from support.servers import REPLICATED

NODES = (1, 2, 3)


class KafkaNodes:
    """The nodes 1 to 3, with `REPLICATED` and Kafka's defaults for internal topics. They run after `start`."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, str] | None = None,
        heap: str = "384m",
        options: Sequence[str] = SHORT_LIVED,
    ) -> None:
        """Format the log directories. `options`: of the JVMs."""
        self.directory = directory
        self._held = held_ports(2 * len(NODES))
        ports = [port_of(each) for each in self._held]
        addresses = [f"127.0.0.1:{port}" for port in ports[: len(NODES)]]
        controllers = [f"127.0.0.1:{port}" for port in ports[len(NODES) :]]
        self.bootstrap = ",".join(addresses)
        voters = ",".join(f"{node}@{address}" for node, address in zip(NODES, controllers, strict=True))
        cluster_id = new_id()
        self._nodes: dict[int, KafkaNode] = {}
        for node, address, controller in zip(NODES, addresses, controllers, strict=True):
            given = {
                "node.id": str(node),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
                **REPLICATED,
                **(settings or {}),
            }
            folder = directory / f"node-{node}"
            self._nodes[node] = KafkaNode(folder, address, given, heap=heap, options=options)
            self._nodes[node].format(cluster_id)

    def start(self) -> None:
        """Start the nodes that do not run, and do not wait for them."""
        for node in self._nodes.values():
            if not node.runs():
                node.launch()

    def wait_ready(self) -> None:
        """Start the nodes that do not run, and wait until all are ready. If one does not get ready, kill all."""
        self.start()
        try:
            for node in self._nodes.values():
                node.wait_listening()
        except BaseException:
            for node in self._nodes.values():
                node.process.kill()
            raise

    def pids(self) -> list[int]:
        """Return the process ids of all nodes."""
        return [node.process.pid for node in self._nodes.values()]

    def kill(self, node: int) -> None:
        """SIGKILL a node, and return when it is dead."""
        self._nodes[node].kill()

    def stop(self) -> int:
        """Send SIGTERM to all nodes at once and wait. Return the highest exit status, 143 after a clean stop."""
        for node in self._nodes.values():
            node.process.popen.terminate()
        statuses = [node.stop() for node in self._nodes.values()]
        for each in self._held:
            each.close()
        return max(statuses, key=abs)


class ThreeKafkas(KafkaNodes):
    """The nodes as a server under test: ready when constructed."""

    name = "apache-kafka-3"

    def __init__(self, directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, settings={**QUICK, **(settings or {})})
        self._victim = 0
        self.wait_ready()

    def kill(self, node: int | None = None) -> None:
        """SIGKILL one node: by default each in turn, because a restarted one leads no partition for a while."""
        self._victim = self._victim % len(NODES) + 1
        super().kill(self._victim if node is None else node)

    def partition_dir(self, topic: str, partition: int = 0, node: int = 1) -> Path:
        """Return the partition directory of one node."""
        return self._nodes[node].data / f"{topic}-{partition}"
