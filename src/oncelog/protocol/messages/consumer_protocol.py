"""The subscriptions and assignments that consumers exchange through JoinGroup and SyncGroup."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, data, int32, string


class TopicPartition(Message):
    """One topic that the member still owns."""

    topic: str = string(since=1)
    partitions: list[int] = array("int32", since=1)


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    """ConsumerProtocolSubscription."""

    topics: list[str] = array("string")
    user_data: bytes | None = data(nullable=0, default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, since=1, ignorable=True)
    generation_id: int = int32(since=2, default=-1, ignorable=True)
    rack_id: str | None = string(since=3, nullable=3, default=None, ignorable=True)


class AssignedPartition(Message):
    """One topic of the assignment."""

    topic: str = string()
    partitions: list[int] = array("int32")


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    """ConsumerProtocolAssignment."""

    assigned_partitions: list[AssignedPartition] = array(AssignedPartition)
    user_data: bytes | None = data(nullable=0, default=None)


class StickyAssignorUserData(Message, versions=(0, 1)):
    """User data of the assignor `sticky`, without a version prefix: the member's last assignment and its generation."""

    previous_assignment: list[AssignedPartition] = array(AssignedPartition)
    generation: int = int32(since=1, default=-1)


class CooperativeStickyAssignorUserData(Message, versions=(0, 0)):
    """User data of the assignor `cooperative-sticky`, without a version prefix.

    The subscription has the owned partitions.
    """

    generation: int = int32()
