"""AddOffsetsToTxn: the partition of `__consumer_offsets` that holds a group joins the transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from oncelog.protocol.topics import CONSUMER_OFFSETS

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_KNOWS_PRODUCER_FENCED = 2


async def handle(broker: Broker, request: AddOffsetsToTxnRequest, ctx: RequestContext) -> AddOffsetsToTxnResponse:
    """Only clients of transaction.version 0 and 1 send it; the others' TxnOffsetCommit adds the partition."""
    try:
        topic = await broker.ensure_internal_topic(CONSUMER_OFFSETS)
    except ProtocolError as error:
        broker.log.warning("cannot make %s: %s", CONSUMER_OFFSETS, error)
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partition = CONSUMER_OFFSETS, partition_for(request.group_id, topic.partition_count)
    errors = await broker.transactions.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [partition],
        verify_only=False,
        client_version=0,
    )
    code = errors[partition]
    if code is ErrorCode.PRODUCER_FENCED and ctx.api_version < _KNOWS_PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    return AddOffsetsToTxnResponse(error_code=code)
