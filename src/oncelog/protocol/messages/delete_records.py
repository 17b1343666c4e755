"""DeleteRecords: delete a partition's records before an offset (KIP-107)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int16, int32, int64, string


class DeleteRecordsPartition(Message):
    """`Partitions` of DeleteRecordsRequest."""

    partition_index: int = int32()
    offset: int = int64()


class DeleteRecordsTopic(Message):
    """`Topics` of DeleteRecordsRequest."""

    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


class DeleteRecordsRequest(Message, api_key=21, versions=(0, 2), flexible=2):
    """The request."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()


class DeleteRecordsPartitionResult(Message):
    """`Partitions` of DeleteRecordsResponse."""

    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


class DeleteRecordsTopicResult(Message):
    """`Topics` of DeleteRecordsResponse."""

    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


class DeleteRecordsResponse(Message, api_key=21, versions=(0, 2), flexible=2):
    """The response."""

    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
