"""Handle the requests of transactional producers, and of tools that inspect transactions (KIP-98, 664).

AddPartitionsToTxn, TxnOffsetCommit and WriteTxnMarkers have their own modules.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.coordinator_topics import requiring_topic
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder, counted, filtered
from oncelog.coordinator.partitioning import partition_for
from oncelog.coordinator.transactions.coordinator import init_error
from oncelog.coordinator.transactions.queries import no_description
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from oncelog.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE

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
    ctx.authorize(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, request.transactional_id)
    ctx.authorize(AclOperation.READ, AclResource.GROUP, request.group_id)
    try:
        topic = await topics.ensure_internal(CONSUMER_OFFSETS)
    except ProtocolError as error:
        logger.warning("cannot create topic %s: %s", CONSUMER_OFFSETS, error)
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
    transactions: TransactionService, request: DescribeTransactionsRequest, ctx: RequestContext
) -> DescribeTransactionsResponse:
    """Return the state, producer and partitions of each transactional id, or its error.

    An id that the request names twice is described once, so that a small request does not cause a huge response.
    """
    states = []
    yielder = Yielder()
    for name in await counted(request.transactional_ids):
        await yielder.next()
        try:
            ctx.authorize(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, name)
        except ProtocolError as error:
            states.append(no_description(name, error.code))
            continue
        state = await transactions.describe(name)
        state.topics = await filtered(
            state.topics, lambda topic: ctx.may(AclOperation.DESCRIBE, AclResource.TOPIC, topic.topic)
        )
        states.append(state)
    return DescribeTransactionsResponse(transaction_states=states)


async def init_producer_id(
    transactions: TransactionService, request: InitProducerIdRequest, ctx: RequestContext
) -> InitProducerIdResponse:
    """Return a producer id and its epoch. If no producer id is left, wait until a block is reserved.

    Without a transactional id, the client must have IDEMPOTENT_WRITE, or be allowed to write to any topic (KIP-679).
    """
    name = request.transactional_id
    try:
        if name is None:
            if not ctx.may_some(AclOperation.WRITE, AclResource.TOPIC):
                ctx.authorize(AclOperation.IDEMPOTENT_WRITE, *CLUSTER)
        else:
            ctx.authorize(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, name)
            if request.enable2_pc:
                ctx.authorize(AclOperation.TWO_PHASE_COMMIT, AclResource.TRANSACTIONAL_ID, name)
    except ProtocolError as error:
        return init_error(error.code, ctx.api_version)
    return await transactions.init_producer_id(request, ctx.api_version)


async def end(transactions: TransactionService, request: EndTxnRequest, ctx: RequestContext) -> EndTxnResponse:
    """Answer after the decision is committed, and before the markers are written."""
    ctx.authorize(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, request.transactional_id)
    return await transactions.end_txn(request, ctx.api_version)


async def list_transactions(
    transactions: TransactionService, request: ListTransactionsRequest, ctx: RequestContext
) -> ListTransactionsResponse:
    """List the transactions that the client may describe. A pattern must match the whole transactional id."""
    response = await transactions.list_transactions(request)
    response.transaction_states = await filtered(
        response.transaction_states,
        lambda state: ctx.may(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, state.transactional_id),
    )
    return response


def bind_init_producer_id(services: HandlerServices) -> Handler:
    """Return the handler of InitProducerId. Without a transactional id, it needs no coordinator."""
    idempotent = partial(init_producer_id, services.transactions)
    transactional = requiring_topic(services.topics, TRANSACTION_STATE, idempotent)

    def handler(request: InitProducerIdRequest, ctx: RequestContext) -> Any:
        return (idempotent if request.transactional_id is None else transactional)(request, ctx)

    return handler


def bind_add_offsets(services: HandlerServices) -> Handler:
    """Return the handler of AddOffsetsToTxn."""
    return partial(add_offsets, services.topics, services.transactions, services.runtime.logger)


def bind_end(services: HandlerServices) -> Handler:
    """Return the handler of EndTxn."""
    return partial(end, services.transactions)


def bind_describe(services: HandlerServices) -> Handler:
    """Return the handler of DescribeTransactions."""
    return requiring_topic(services.topics, TRANSACTION_STATE, partial(describe, services.transactions))


def bind_list(services: HandlerServices) -> Handler:
    """Return the handler of ListTransactions."""
    return partial(list_transactions, services.transactions)
