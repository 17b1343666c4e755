"""What the metadata image says about brokers and leaders, for the clients of one listener.

Source: Kafka's `KRaftMetadataCache`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oncelog.broker.storage.partitions import Partitions
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.topics import NO_LEADER, PartitionInfo
from oncelog.protocol.errors import ErrorCode


class Endpoint(NamedTuple):
    """A running broker, and its address for the clients of one listener."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionView(NamedTuple):
    """A partition, as responses describe it."""

    error: ErrorCode
    leader: int
    """The leader, or NO_LEADER."""
    isr: list[int]
    """The in-sync replicas, or none if the partition has no leader."""
    eligible: list[int]
    """The replicas that may lead a partition without a leader."""
    offline: list[int]
    """The replicas whose broker is not running, has no such listener, or has lost the log directory."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The brokers, and the state of partitions."""

    node_id: int
    cache: MetadataCache
    partitions: Partitions

    def running(self, listener: str) -> list[Endpoint]:
        """Return the running brokers that have this listener, sorted by id."""
        found = (self.find(broker, listener) for broker in sorted(self.cache.image.brokers))
        return [endpoint for endpoint in found if endpoint is not None]

    def find(self, broker: int, listener: str) -> Endpoint | None:
        """Return a broker, or None if it is not running or has no such listener."""
        info = self.cache.image.brokers.get(broker)
        if info is None:
            return None
        address = info.endpoints.get(listener)
        return None if address is None else Endpoint(broker, address.host, address.port, info.rack)

    @property
    def controller(self) -> int:
        """Return the id of the controller, or -1 if there is none."""
        return self.cache.image.controller

    def describe(self, topic: str, index: int, info: PartitionInfo, listener: str) -> PartitionView:
        """Describe a partition. A leader that clients cannot reach is LEADER_NOT_AVAILABLE or LISTENER_NOT_FOUND."""
        offline = [broker for broker in info.replicas if self._is_offline(broker, topic, index, listener)]
        isr = list(info.isr)
        if info.leader == NO_LEADER or self._has_failed(info.leader, topic, index):
            return PartitionView(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, [], isr, offline)
        if self.find(info.leader, listener) is not None:
            return PartitionView(ErrorCode.NONE, info.leader, isr, [], offline)
        runs = info.leader in self.cache.image.brokers
        error = ErrorCode.LISTENER_NOT_FOUND if runs else ErrorCode.LEADER_NOT_AVAILABLE
        return PartitionView(error, NO_LEADER, isr, [], offline)

    def _is_offline(self, broker: int, topic: str, index: int, listener: str) -> bool:
        return self.find(broker, listener) is None or self._has_failed(broker, topic, index)

    def _has_failed(self, broker: int, topic: str, index: int) -> bool:
        """Return whether the broker has the partition in a log directory that has failed."""
        if broker == self.node_id:
            return self.partitions.is_offline(topic, index)
        info = self.cache.image.brokers.get(broker)
        return info is not None and (topic, index) in info.offline
