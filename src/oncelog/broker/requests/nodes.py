"""What the metadata image says about brokers and leaders, for the clients of one listener.

Source: Kafka's `KRaftMetadataCache`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.storage.roles import steady_ms
from oncelog.cluster.brokers import BrokerInfo
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.cluster.partition_state import UNKNOWN_BROKER_EPOCH
from oncelog.cluster.topics import NO_LEADER, PartitionInfo
from oncelog.net.server_options import Listener
from oncelog.protocol.errors import ErrorCode


class BrokerEndpoint(NamedTuple):
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
    """The eligible leader replicas. If the partition has no leader, they include the members of the ISR."""
    offline: list[int]
    """The replicas whose broker is not running, has no such listener, or has lost the log directory."""


class DepartedBrokers:
    """The brokers that have stopped a short time ago.

    In Kafka, responses list a broker until its session ends, some seconds after its death. librdkafka 2.16 may hang if
    a broker is not listed and soon listed again, so a restarted broker must be listed all the time.
    """

    def __init__(self, keep_ms: int) -> None:
        """`keep_ms` is the time for which a stopped broker is listed."""
        self._keep_ms = keep_ms
        self._found: dict[int, tuple[BrokerInfo, int]] = {}

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Note the brokers that have stopped, and forget those that run again."""
        if delta.brokers_changed:
            before, after = delta.before.brokers, delta.after.brokers
            end = steady_ms() + self._keep_ms
            self._found.update({broker: (before[broker], end) for broker in before.keys() - after.keys()})
            for broker in after:
                self._found.pop(broker, None)

    def all(self) -> dict[int, BrokerInfo]:
        """Return these brokers by id."""
        now = steady_ms()
        return {broker: info for broker, (info, end) in self._found.items() if now < end}


@dataclass(frozen=True, slots=True)
class Nodes:
    """The brokers, and the state of partitions."""

    node_id: int
    cache: MetadataCache
    partitions: Partitions
    departed: DepartedBrokers

    def running(self, listener: Listener) -> list[BrokerEndpoint]:
        """Return the running brokers that have this listener, sorted by id."""
        return _endpoints(self.cache.image.brokers, listener)

    def recent(self, listener: Listener) -> list[BrokerEndpoint]:
        """Return the brokers that have this listener and run, or have stopped a short time ago, sorted by id."""
        return _endpoints({**self.departed.all(), **self.cache.image.brokers}, listener)

    def find(self, broker: int, listener: Listener) -> BrokerEndpoint | None:
        """Return a broker, or None if it is not running or has no such listener."""
        info = self.cache.image.brokers.get(broker)
        return None if info is None else _endpoint(broker, info, listener)

    @property
    def controller(self) -> int:
        """Return the id of the controller, or -1 if there is none."""
        return self.cache.image.controller

    def describe(self, topic: str, index: int, info: PartitionInfo, listener: Listener) -> PartitionView:
        """Describe a partition. A leader that clients cannot reach is LEADER_NOT_AVAILABLE or LISTENER_NOT_FOUND."""
        offline = [broker for broker in info.replicas if self._obstacle(broker, topic, index, listener)]
        error = self._obstacle(info.leader, topic, index, listener)
        if not error and not self._is_elected(info):
            error = ErrorCode.LEADER_NOT_AVAILABLE
        if not error:
            return PartitionView(ErrorCode.NONE, info.leader, list(info.isr), list(info.state.elr), offline)
        if info.leader == NO_LEADER or error == ErrorCode.KAFKA_STORAGE_ERROR:
            brokers = self.cache.image.brokers
            eligible = [
                each for each in info.complete if each not in brokers or not brokers[each].is_unfit(topic, index)
            ]
            return PartitionView(ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER, [], eligible, offline)
        return PartitionView(error, NO_LEADER, list(info.isr), list(info.state.elr), offline)

    def _is_elected(self, info: PartitionInfo) -> bool:
        """Return whether the leader's process is the one that was elected. One that started again must be elected."""
        broker, elected = self.cache.image.brokers[info.leader], info.state.leader_broker_epoch
        return len(info.replicas) == 1 or elected in (UNKNOWN_BROKER_EPOCH, broker.epoch)

    def _obstacle(self, broker: int, topic: str, index: int, listener: Listener) -> ErrorCode:
        """Return why clients of a listener cannot use a replica, or NONE."""
        info = self.cache.image.brokers.get(broker)
        if info is None:
            return ErrorCode.LEADER_NOT_AVAILABLE
        mine = broker == self.node_id
        if self.partitions.is_offline(topic, index) if mine else (topic, index) in info.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE if listener.name in info.endpoints else ErrorCode.LISTENER_NOT_FOUND


def _endpoints(brokers: Mapping[int, BrokerInfo], listener: Listener) -> list[BrokerEndpoint]:
    found = (_endpoint(broker, brokers[broker], listener) for broker in sorted(brokers))
    return [endpoint for endpoint in found if endpoint is not None]


def _endpoint(broker: int, info: BrokerInfo, listener: Listener) -> BrokerEndpoint | None:
    address = info.endpoints.get(listener.name)
    return None if address is None else BrokerEndpoint(broker, address.host, address.port, info.rack)
