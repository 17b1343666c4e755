"""CreatePartitions: add partitions to topics (KIP-195)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int16, int32, string


class CreatePartitionsAssignment(Message):
    """`Assignments` of CreatePartitionsRequest."""

    broker_ids: list[int] = array("int32")


class CreatePartitionsTopic(Message):
    """`Topics` of CreatePartitionsRequest."""

    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable=0)


class CreatePartitionsRequest(Message, api_key=37, versions=(0, 3), flexible=2):
    """The request."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Message):
    """`Results` of CreatePartitionsResponse."""

    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)


class CreatePartitionsResponse(Message, api_key=37, versions=(0, 3), flexible=2):
    """The response."""

    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
