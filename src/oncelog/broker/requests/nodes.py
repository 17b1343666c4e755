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
        offline = [broker for broker in info.replicas if self._obstacle(broker, topic, index, listener)]
        error = self._obstacle(info.leader, topic, index, listener)
        if not error:
            return PartitionView(ErrorCode.NONE, info.leader, list(info.isr), [], offline)
        if info.leader == NO_LEADER or error == ErrorCode.KAFKA_STORAGE_ERROR:
            return PartitionView(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, [], list(info.isr), offline)
        return PartitionView(error, NO_LEADER, list(info.isr), [], offline)

    def _obstacle(self, broker: int, topic: str, index: int, listener: str) -> ErrorCode:
        """Return why clients of a listener cannot use a replica, or NONE."""
        info = self.cache.image.brokers.get(broker)
        if info is None:
            return ErrorCode.LEADER_NOT_AVAILABLE
        mine = broker == self.node_id
        if self.partitions.is_offline(topic, index) if mine else (topic, index) in info.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE if listener in info.endpoints else ErrorCode.LISTENER_NOT_FOUND
