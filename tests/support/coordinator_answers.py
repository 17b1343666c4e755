"""A transaction manager before a request to its coordinator, and the coordinator's responses."""

from __future__ import annotations

from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.producer.coordinator_requests import handle, next_request
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from oncelog.protocol.messages.end_txn import EndTxnResponse
from oncelog.protocol.messages.init_producer_id import InitProducerIdResponse
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from oncelog.protocol.schema import Message

REQUESTS = ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")


def answer(request: str, code: ErrorCode) -> Message:
    if request == "InitProducerId":
        return InitProducerIdResponse(error_code=code)
    if request == "AddPartitionsToTxn":
        result = AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)
        topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=[result])
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
    if request == "AddOffsetsToTxn":
        return AddOffsetsToTxnResponse(error_code=code)
    if request == "TxnOffsetCommit":
        partition = TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
        return TxnOffsetCommitResponse(topics=[TxnOffsetCommitResponseTopic(name="in", partitions=[partition])])
    return EndTxnResponse(error_code=code)


def asking(request: str) -> TransactionManager:
    """Return a producer that is about to send this request. It uses the old protocol, which has all requests."""
    manager = TransactionManager("id")
    manager.set_version(0)
    manager.initialize()
    if request != "InitProducerId":
        manager.initialized(7, 3)
        manager.begin()
    if request in ("AddPartitionsToTxn", "EndTxn"):
        manager.may_append(("t", 0))
    if request in ("AddOffsetsToTxn", "TxnOffsetCommit"):
        manager.add_offsets(GroupMetadata("g"), {("in", 0): (5, -1, "")})
    if request == "TxnOffsetCommit":
        step = next_request(manager, drained=True)
        assert step is not None
        handle(manager, step, AddOffsetsToTxnResponse())
    if request == "EndTxn":
        step = next_request(manager, drained=True)
        assert step is not None
        handle(manager, step, answer("AddPartitionsToTxn", ErrorCode.NONE))
        manager.started = True
        manager.begin_commit()
    return manager
