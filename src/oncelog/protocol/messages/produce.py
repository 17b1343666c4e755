"""Produce: append record batches to partitions."""

from __future__ import annotations

from uuid import UUID

from oncelog.protocol.schema import Message, array, int16, int32, int64, records, string, struct, uuid


class PartitionProduceData(Message):
    """`PartitionData` of ProduceRequest."""

    index: int = int32()
    records: bytes | bytearray | memoryview | None = records(nullable=0)


class TopicProduceData(Message):
    """`TopicData` of ProduceRequest."""

    name: str = string(until=12, ignorable=True)
    topic_id: UUID = uuid(since=13, ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Message, api_key=0, versions=(3, 13), flexible=9):
    """The request."""

    transactional_id: str | None = string(since=3, nullable=3, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Message):
    """`RecordErrors` of ProduceResponse."""

    batch_index: int = int32(since=8)
    batch_index_error_message: str | None = string(since=8, nullable=8, default=None)


class LeaderIdAndEpoch(Message):
    """`CurrentLeader` of ProduceResponse."""

    leader_id: int = int32(since=10, default=-1)
    leader_epoch: int = int32(since=10, default=-1)


class PartitionProduceResponse(Message):
    """`PartitionResponses` of ProduceResponse."""

    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(since=2, default=-1, ignorable=True)
    log_start_offset: int = int64(since=5, default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8, ignorable=True)
    error_message: str | None = string(since=8, nullable=8, default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, since=10, tag=0)


class TopicProduceResponse(Message):
    """`Responses` of ProduceResponse."""

    name: str = string(until=12, ignorable=True)
    topic_id: UUID = uuid(since=13, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Message):
    """`NodeEndpoints` of ProduceResponse."""

    node_id: int = int32(since=10)
    host: str = string(since=10)
    port: int = int32(since=10)
    rack: str | None = string(since=10, nullable=10, default=None)


class ProduceResponse(Message, api_key=0, versions=(3, 13), flexible=9):
    """The response."""

    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(since=1, ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
