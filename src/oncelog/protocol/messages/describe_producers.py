"""DescribeProducers: list the producers in a partition's state (KIP-664).

With `include_batches`, oncelog's broker adds what only it shows: the remembered batches of each producer, and the
partition's counters. These fields are tagged (KIP-482), so Apache Kafka ignores them.
"""

from __future__ import annotations

from oncelog.protocol.schema import OWN_TAGS, Message, array, boolean, int16, int32, int64, string, struct


class TopicRequest(Message):
    """`Topics` of DescribeProducersRequest."""

    name: str = string()
    partition_indexes: list[int] = array("int32")


class DescribeProducersRequest(Message, api_key=61, versions=(0, 0), flexible=0):
    """The request."""

    topics: list[TopicRequest] = array(TopicRequest)
    include_batches: bool = boolean(tag=OWN_TAGS)


class RememberedBatch(Message):
    """oncelog's own: one of the last five batches of a producer. `timestamp` is that of its newest record."""

    first_sequence: int = int32()
    last_sequence: int = int32()
    first_offset: int = int64()
    last_offset: int = int64()
    timestamp: int = int64()


class PartitionCounters(Message):
    """oncelog's own: the batches of idempotent producers that were not appended, since the broker opened the log."""

    duplicate_batches: int = int64()
    sequence_gaps: int = int64()
    stale_sequences: int = int64()


class ProducerState(Message):
    """`ActiveProducers` of DescribeProducersResponse."""

    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)
    batches: list[RememberedBatch] = array(RememberedBatch, tag=OWN_TAGS)


class PartitionResponse(Message):
    """`Partitions` of DescribeProducersResponse."""

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)
    active_producers: list[ProducerState] = array(ProducerState)
    counters: PartitionCounters | None = struct(PartitionCounters, nullable=0, default=None, tag=OWN_TAGS)


class TopicResponse(Message):
    """`Topics` of DescribeProducersResponse."""

    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


class DescribeProducersResponse(Message, api_key=61, versions=(0, 0), flexible=0):
    """The response."""

    throttle_time_ms: int = int32()
    topics: list[TopicResponse] = array(TopicResponse)
