"""ConsumerGroupDescribe: describe groups of the consumer protocol, and their members (KIP-848, 1099)."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, string, struct, uuid


class ConsumerGroupDescribeRequest(Message, api_key=69, versions=(0, 1), flexible=0):
    """The request."""

    group_ids: list[str] = array("string")
    include_authorized_operations: bool = boolean()


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: UUID = uuid()
    topic_name: str = string()
    partitions: list[int] = array("int32")


class Assignment(Message):
    """`Assignment` and `TargetAssignment` of a member."""

    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class Member(Message):
    """`Members` of ConsumerGroupDescribeResponse; `member_type` is 0 for a classic member, 1 for a consumer."""

    member_id: str = string()
    instance_id: str | None = string(nullable=0, default=None)
    rack_id: str | None = string(nullable=0, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    subscribed_topic_regex: str | None = string(nullable=0, default=None)
    assignment: Assignment = struct(Assignment)
    target_assignment: Assignment = struct(Assignment)
    member_type: int = int8(since=1, default=-1, ignorable=True)


class DescribedGroup(Message):
    """`Groups` of ConsumerGroupDescribeResponse."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[Member] = array(Member)
    authorized_operations: int = int32(default=-2147483648)


class ConsumerGroupDescribeResponse(Message, api_key=69, versions=(0, 1), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    groups: list[DescribedGroup] = array(DescribedGroup)
