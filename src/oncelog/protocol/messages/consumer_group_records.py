"""Records of `__consumer_offsets` for groups of the consumer protocol (KIP-848), as Kafka 4.3 writes them."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, data, int8, int32, int64, string, struct, uuid


class ConsumerGroupMetadataKey(Message, versions=(3, 3)):
    """A group."""

    group_id: str = string()


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    """The group's epoch, and a hash of the topics that it subscribes to (0: unknown)."""

    epoch: int = int32()
    metadata_hash: int = int64(default=0, tag=0)


class ConsumerGroupPartitionMetadataKey(Message, versions=(4, 4)):
    """The topics of a group. Kafka 4.0 writes them, later versions only delete them."""

    group_id: str = string()


class ConsumerGroupPartitionMetadataValue(Message, versions=(0, 0), flexible=0):
    """Not read: the broker knows the topics."""


class ConsumerGroupMemberMetadataKey(Message, versions=(5, 5)):
    """A member."""

    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Message):
    """A protocol of a classic member in a consumer group."""

    name: str = string()
    metadata: bytes = data()


class ClassicMemberMetadata(Message):
    """What only a member of the classic protocol has."""

    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible=0):
    """What a member has sent about itself."""

    instance_id: str | None = string(nullable=0, default=None)
    rack_id: str | None = string(nullable=0, default=None)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    subscribed_topic_regex: str | None = string(nullable=0, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable=0, default=None)
    classic_member_metadata: ClassicMemberMetadata | None = struct(ClassicMemberMetadata, nullable=0, tag=0)
    """Null for a member of the consumer protocol."""


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions=(6, 6)):
    """The target assignment of a group."""

    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible=0):
    """The epoch of the group for which it was computed, and when (0: unknown), in ms since the epoch."""

    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(default=0, tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, versions=(7, 7)):
    """The target assignment of a member."""

    group_id: str = string()
    member_id: str = string()


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: UUID = uuid()
    partitions: list[int] = array("int32")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible=0):
    """What the member shall own."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions=(8, 8)):
    """The current assignment of a member."""

    group_id: str = string()
    member_id: str = string()


class OwnedPartitions(Message):
    """Partitions of a topic, and the epoch with which the member got each (KIP-1251). Older brokers omit epochs."""

    topic_id: UUID = uuid()
    partitions: list[int] = array("int32")
    assignment_epochs: list[int] | None = array("int32", nullable=0, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible=0):
    """What the member owns, what it must give up, and its epochs."""

    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[OwnedPartitions] = array(OwnedPartitions)
    partitions_pending_revocation: list[OwnedPartitions] = array(OwnedPartitions)


class ConsumerGroupRegularExpressionKey(Message, versions=(16, 16)):
    """A regular expression that members subscribe to."""

    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, versions=(0, 0), flexible=0):
    """The topics that match it, and when and for which version of the metadata they were found."""

    topics: list[str] = array("string")
    version: int = int64()
    timestamp: int = int64()
