"""The brokers, topics and leaders that a client knows from Metadata responses. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from oncelog.protocol.schema import NO_UUID

LEADER_MOVED = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""Errors after which the metadata may be outdated."""

NO_SUCH_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""If a leader returns one of these, the topology is outdated. If any other broker returns one, the error is final."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition. `leader` is -1 if it has none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. `topic_id` is zero if the broker does not report it."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: dict[int, Partition]


class Topology:
    """The latest known brokers and topics. `failures` says why a requested topic is not in `topics`."""

    def __init__(self) -> None:
        self.brokers: dict[int, tuple[str, int]] = {}
        self.controller_id = -1
        self.cluster_id = ""
        self.topics: dict[str, Topic] = {}
        self.failures: dict[str, ErrorCode] = {}
        self.names: dict[UUID, str] = {}
        self.version = 0
        """Increases with every change, so that callers know when to discard what they derived from the topology."""
        self._seen: dict[str, Topic] = {}
        """The last metadata of each topic, forgotten or not (lastSeenLeaderEpochs of Kafka's Metadata)."""

    def update(self, response: MetadataResponse, *, everything: bool = False) -> None:
        """Process a response. With `everything`, it lists all topics, so other topics no longer exist."""
        self.version += 1
        if response.brokers:
            self.brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self.controller_id = response.controller_id
        self.cluster_id = response.cluster_id or ""
        if everything:
            self.topics.clear()
            listed = {topic.name for topic in response.topics}
            self._seen = {name: seen for name, seen in self._seen.items() if name in listed}
        for topic in response.topics:
            if topic.name is not None:
                self._update_topic(topic.name, topic)
        self.names = {topic.topic_id: topic.name for topic in self.topics.values() if topic.topic_id != NO_UUID}

    def _update_topic(self, name: str, answer: MetadataResponseTopic) -> None:
        if answer.error_code:
            self.failures[name] = ErrorCode.of(answer.error_code)
            self.topics.pop(name, None)
            if self.failures[name] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._seen.pop(name, None)
            return
        self.failures.pop(name, None)
        seen = self._seen.get(name)
        earlier = seen.partitions if seen is not None and seen.topic_id == answer.topic_id else {}
        partitions = {}
        for item in sorted(answer.partitions, key=lambda item: item.partition_index):
            new = Partition(item.leader_id, item.leader_epoch, tuple(item.replica_nodes), tuple(item.isr_nodes))
            old = earlier.get(item.partition_index)
            if old is not None and 0 <= new.leader_epoch < old.leader_epoch:
                new = old  # the broker's metadata is outdated: leader epochs of a topic never decrease
            partitions[item.partition_index] = new
        self.topics[name] = self._seen[name] = Topic(name, answer.topic_id, answer.is_internal, partitions)

    def forget(self, topic: str) -> None:
        """Look a topic up again before its next use, because a leader was wrong. Older responses stay rejected."""
        if self.topics.pop(topic, None) is not None:
            self.version += 1

    def lacks(self, topic: str, partition: int) -> bool:
        """Return whether the partition does not exist, by the last Metadata response about its topic."""
        known = self.topics.get(topic)
        if known is not None:
            return partition not in known.partitions
        return self.failures.get(topic) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def is_other_topic(self, topic: str, topic_id: UUID | None) -> bool:
        """Return whether the topic is known, and has another id: it was deleted and created again (KIP-516)."""
        known = self.topics.get(topic)
        if known is None or topic_id is None or topic_id == known.topic_id:
            return False
        return NO_UUID not in (topic_id, known.topic_id)

    def leader(self, topic: str, partition: int) -> int:
        """Return the node id of a partition's leader, or -1."""
        known = self.topics.get(topic)
        found = known.partitions.get(partition) if known is not None else None
        return -1 if found is None else found.leader
