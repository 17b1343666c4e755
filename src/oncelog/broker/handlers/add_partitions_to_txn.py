"""AddPartitionsToTxn: add partitions to a transaction, or verify that they are in it.

Up to version 3, a client sends the request for one transaction. Since version 4, a broker sends it for several at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from oncelog.broker.coordinators.transactions import TransactionService
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import in_turns
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.topics import INTERNAL_TOPICS
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from oncelog.protocol.topics import TopicPartition

_BATCHED = 4
_KNOWS_PRODUCER_FENCED = 2
_FENCED_AS = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
_TRANSACTIONS_AT_ONCE = 20
"""The maximum number of transactions of one request that wait for their coordinators at the same time."""

Results = list[AddPartitionsToTxnTopicResult]


async def handle(
    cache: MetadataCache, service: TransactionService, request: AddPartitionsToTxnRequest, ctx: RequestContext
) -> AddPartitionsToTxnResponse:
    """Add all partitions of a transaction, or none of them."""
    version = ctx.api_version
    if version < _BATCHED:
        ctx.authorize(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
        only = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            verify_only=False,
            topics=request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _add(cache, service, only, ctx))
    ctx.authorize(AclOperation.CLUSTER_ACTION, *CLUSTER)
    answer = AddPartitionsToTxnResponse(results_by_transaction=[])
    for first in range(0, len(request.transactions), _TRANSACTIONS_AT_ONCE):
        transactions = request.transactions[first : first + _TRANSACTIONS_AT_ONCE]
        answer.results_by_transaction += await asyncio.gather(
            *(_of_transaction(cache, service, transaction, ctx) for transaction in transactions)
        )
    return answer


async def _of_transaction(
    cache: MetadataCache, service: TransactionService, transaction: AddPartitionsToTxnTransaction, ctx: RequestContext
) -> AddPartitionsToTxnResult:
    results = await _add(cache, service, transaction, ctx)
    return AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)


async def _add(
    cache: MetadataCache, service: TransactionService, transaction: AddPartitionsToTxnTransaction, ctx: RequestContext
) -> Results:
    version = ctx.api_version
    errors = await in_turns(_check_partitions(cache, transaction.topics, ctx))
    if any(errors.values()):
        return await in_turns(_results(errors, {ErrorCode.NONE: ErrorCode.OPERATION_NOT_ATTEMPTED}))
    added = await service.add_partitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        errors,
        verify_only=transaction.verify_only,
        client_version=2 if version >= _BATCHED else 0,
    )
    return await in_turns(_results(added, {} if version >= _KNOWS_PRODUCER_FENCED else _FENCED_AS))


def _check_partitions(
    cache: MetadataCache, topics: Iterable[AddPartitionsToTxnTopic], ctx: RequestContext
) -> Steps[dict[TopicPartition, ErrorCode]]:
    """Return an error for each partition that does not exist or that the client may not write, NONE for the others.

    From version 4 on, the client is a broker, which has checked whether its own client may write. In earlier versions,
    as in Kafka, no client may add an internal topic.
    """
    errors = {}
    for topic in topics:
        info = cache.image.topic(topic.name)
        count = 0 if info is None else info.partition_count
        refused = ctx.api_version < _BATCHED and (
            topic.name in INTERNAL_TOPICS or not ctx.allowed(AclOperation.WRITE, AclResource.TOPIC, topic.name)
        )
        for index in topic.partitions:
            yield
            exists = 0 <= index < count
            code = ErrorCode.NONE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            errors[topic.name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED if refused else code
        yield
    return errors


def _results(errors: dict[TopicPartition, ErrorCode], instead: dict[ErrorCode, ErrorCode]) -> Steps[Results]:
    """Return the results by topic. `instead` maps an error to the error that the client gets."""
    by_topic: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (name, index), error in errors.items():
        yield
        topic = by_topic.get(name)
        if topic is None:
            topic = by_topic[name] = AddPartitionsToTxnTopicResult(name=name, results_by_partition=[])
        topic.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=instead.get(error, error))
        )
    return list(by_topic.values())


def bind(services: HandlerServices) -> Handler:
    """Return the handler of AddPartitionsToTxn."""
    return partial(handle, services.cache, services.transactions)
