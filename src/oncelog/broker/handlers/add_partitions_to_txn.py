"""AddPartitionsToTxn: partitions join a transaction, or (brokers, since version 4) are looked up in it.

Up to version 3 a client asks for one transaction, since version 4 a broker asks for several at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_BATCHED = 4
_KNOWS_PRODUCER_FENCED = 2

Partition = tuple[str, int]
Results = list[AddPartitionsToTxnTopicResult]


async def handle(
    broker: Broker, request: AddPartitionsToTxnRequest, ctx: RequestContext
) -> AddPartitionsToTxnResponse:
    """All partitions of a transaction are added, or none of them."""
    version = ctx.api_version
    if version < _BATCHED:
        results = await _one(
            broker,
            request.v3_and_below_transactional_id,
            (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            request.v3_and_below_topics,
            verify_only=False,
            version=version,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    all_results = await asyncio.gather(
        *(
            _one(
                broker,
                transaction.transactional_id,
                (transaction.producer_id, transaction.producer_epoch),
                transaction.topics,
                verify_only=transaction.verify_only,
                version=version,
            )
            for transaction in request.transactions
        )
    )
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results)
            for transaction, results in zip(request.transactions, all_results, strict=True)
        ]
    )


async def _one(
    broker: Broker,
    transactional_id: str,
    producer: tuple[int, int],
    topics: Iterable[AddPartitionsToTxnTopic],
    *,
    verify_only: bool,
    version: int,
) -> Results:
    partitions = [(topic.name, index) for topic in topics for index in topic.partitions]
    missing = {partition for partition in partitions if not _exists(broker, partition)}
    if missing:
        return _results(
            {
                partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if partition in missing
                else ErrorCode.OPERATION_NOT_ATTEMPTED
                for partition in partitions
            }
        )
    errors = await broker.transactions.add_partitions(
        transactional_id,
        *producer,
        partitions,
        verify_only=verify_only,
        client_version=2 if version >= _BATCHED else 0,
    )
    if version < _KNOWS_PRODUCER_FENCED:
        fenced, older = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
        errors = {partition: older if error is fenced else error for partition, error in errors.items()}
    return _results(errors)


def _exists(broker: Broker, partition: Partition) -> bool:
    info = broker.metadata.topic(partition[0])
    return info is not None and 0 <= partition[1] < info.partition_count


def _results(errors: dict[Partition, ErrorCode]) -> Results:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, index), error in errors.items():
        result = AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
        by_topic.setdefault(topic, []).append(result)
    return [
        AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results)
        for topic, results in by_topic.items()
    ]
