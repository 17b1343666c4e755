"""AddPartitionsToTxn: add partitions to a transaction, or verify that they are in it (KIP-98, 890)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int16, int32, int64, string


class AddPartitionsToTxnTopic(Message):
    """Shared by several fields of AddPartitionsToTxnRequest."""

    name: str = string()
    partitions: list[int] = array("int32")


class AddPartitionsToTxnTransaction(Message):
    """`Transactions` of AddPartitionsToTxnRequest."""

    transactional_id: str = string(since=4)
    producer_id: int = int64(since=4)
    producer_epoch: int = int16(since=4)
    verify_only: bool = boolean(since=4)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, since=4)


class AddPartitionsToTxnRequest(Message, api_key=24, versions=(0, 5), flexible=3):
    """The request."""

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, since=4)
    v3_and_below_transactional_id: str = string(until=3)
    v3_and_below_producer_id: int = int64(until=3)
    v3_and_below_producer_epoch: int = int16(until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, until=3)


class AddPartitionsToTxnPartitionResult(Message):
    """Shared by several fields of AddPartitionsToTxnResponse."""

    partition_index: int = int32()
    partition_error_code: int = int16()


class AddPartitionsToTxnTopicResult(Message):
    """Shared by several fields of AddPartitionsToTxnResponse."""

    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


class AddPartitionsToTxnResult(Message):
    """`ResultsByTransaction` of AddPartitionsToTxnResponse."""

    transactional_id: str = string(since=4)
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, since=4)


class AddPartitionsToTxnResponse(Message, api_key=24, versions=(0, 5), flexible=3):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=4, ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, until=3)
