"""Our broker and Apache Kafka with two listeners: INNER, which is for brokers, too, and OUTER."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.apache_kafka import ApacheKafka, held_ports, port_of
from support.servers import OncelogCluster, Server


def two_listeners(inner: int, outer: int, controller: int) -> dict[str, str]:
    """Return settings with the names of Kafka's container images. The outer listener is advertised by another name."""
    return {
        "listeners": f"INNER://127.0.0.1:{inner},OUTER://127.0.0.1:{outer},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"INNER://127.0.0.1:{inner},OUTER://localhost:{outer}",
        "listener.security.protocol.map": "INNER:PLAINTEXT,OUTER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INNER",
    }


class KafkaWithTwoListeners(ApacheKafka):
    """Apache Kafka with these listeners."""

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        """Return the settings of the listeners."""
        self._held += held_ports(1)
        self.outer = f"localhost:{port_of(self._held[-1])}"
        return two_listeners(port, port_of(self._held[-1]), controller)


@contextmanager
def started(kind: str, directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[tuple[Server, str]]:
    """Start a server, and yield it with the address of its outer listener. `kind`: its name."""
    if kind == "oncelog":
        held = held_ports(3)
        inner, outer, controller = map(port_of, held)
        own = two_listeners(inner, outer, controller)
        cluster = OncelogCluster(directory, settings={**own, **(settings or {})})
        try:
            yield cluster, f"localhost:{outer}"
        finally:
            cluster.stop()
    else:
        kafka = KafkaWithTwoListeners(directory, settings=settings)
        try:
            yield kafka, kafka.outer
        finally:
            kafka.stop()
