"""Handle the requests of transactional producers, and of tools that look at transactions (KIP-98, 664).

AddPartitionsToTxn, TxnOffsetCommit and WriteTxnMarkers have modules of their own.
"""

from __future__ import annotations

import logging
from functools import partial

from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.parts import Handler, Parts
from oncelog.broker.turns import Turns
from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from oncelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from oncelog.protocol.topics import CONSUMER_OFFSETS

_KNOWS_PRODUCER_FENCED = 2


async def add_offsets(
    topics: TopicAdministration,
    transactions: TransactionService,
    logger: logging.Logger,
    request: AddOffsetsToTxnRequest,
    ctx: RequestContext,
) -> AddOffsetsToTxnResponse:
    """Add the partition of `__consumer_offsets` that holds the group to the transaction.

    Clients send this request with transaction.version 0 and 1. With version 2, TxnOffsetCommit adds the partition.
    """
    try:
        topic = await topics.ensure_internal(CONSUMER_OFFSETS)
    except ProtocolError as error:
        logger.warning("cannot make %s: %s", CONSUMER_OFFSETS, error)
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    partition = CONSUMER_OFFSETS, partition_for(request.group_id, topic.partition_count)
    errors = await transactions.add_partitions(
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


async def describe(
    transactions: TransactionService, request: DescribeTransactionsRequest, _ctx: RequestContext
) -> DescribeTransactionsResponse:
    """Return the state, producer and partitions of each transactional id, or its error."""
    states = []
    turns = Turns()
    for name in request.transactional_ids:
        await turns.next()
        states.append(await transactions.describe(name))
    return DescribeTransactionsResponse(transaction_states=states)


def bind_init_producer_id(parts: Parts) -> Handler:
    """Return the handler of InitProducerId. If no producer id is left, it waits until a block is reserved."""
    transactions = parts.transactions
    return lambda request, ctx: transactions.init_producer_id(request, ctx.api_version)


def bind_add_offsets(parts: Parts) -> Handler:
    """Return the handler of AddOffsetsToTxn."""
    return partial(add_offsets, parts.topics, parts.transactions, parts.logger)


def bind_end(parts: Parts) -> Handler:
    """Return the handler of EndTxn. It answers when the decision is committed, before the markers are written."""
    transactions = parts.transactions
    return lambda request, ctx: transactions.end_txn(request, ctx.api_version)


def bind_describe(parts: Parts) -> Handler:
    """Return the handler of DescribeTransactions."""
    return partial(describe, parts.transactions)


def bind_list(parts: Parts) -> Handler:
    """Return the handler of ListTransactions. A pattern must match the whole transactional id."""
    transactions = parts.transactions
    return lambda request, _ctx: transactions.list_transactions(request)
