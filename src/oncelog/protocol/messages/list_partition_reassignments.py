"""ListPartitionReassignments: list the reassignments in progress (KIP-455)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, int32, string


class ListPartitionReassignmentsTopic(Message):
    """`Topics` of ListPartitionReassignmentsRequest."""

    name: str = string()
    partition_indexes: list[int] = array("int32")


class ListPartitionReassignmentsRequest(Message, api_key=46, versions=(0, 0), flexible=0):
    """The request. Without topics, it means every partition."""

    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopic] | None = array(
        ListPartitionReassignmentsTopic, nullable=0, default=None
    )


class OngoingPartitionReassignment(Message):
    """`Partitions` of ListPartitionReassignmentsResponse."""

    partition_index: int = int32()
    replicas: list[int] = array("int32")
    adding_replicas: list[int] = array("int32")
    removing_replicas: list[int] = array("int32")


class OngoingTopicReassignment(Message):
    """`Topics` of ListPartitionReassignmentsResponse."""

    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Message, api_key=46, versions=(0, 0), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
