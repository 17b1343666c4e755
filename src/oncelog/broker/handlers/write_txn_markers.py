"""WriteTxnMarkers: another broker's coordinator, or an operator, ends transactions in partitions of this broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_NOT_THE_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


Partition = tuple[str, int]
Errors = dict[int, dict[Partition, ErrorCode]]
"""By producer and partition."""


def handle(
    broker: Broker, request: WriteTxnMarkersRequest, _ctx: RequestContext
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    """Each partition has its own error; a producer that is named twice has one result.

    Like a produce with acks=all it is answered once the markers are committed: where `flush.messages` asks for it,
    after the sync. KAFKA_STORAGE_ERROR where that never happens.
    """
    errors: Errors = {}
    for marker in request.markers:
        of_producer = errors.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for index in topic.partition_indexes:
                of_producer[topic.name, index] = _write(broker, marker, topic.name, index)
    written = {
        partition
        for of_producer in errors.values()
        for partition, error in of_producer.items()
        if error is ErrorCode.NONE
    }
    committed: asyncio.Future[dict[Partition, ErrorCode]] = broker.loop.create_future()
    broker.partitions.when_committed(sorted(written), partial(_resolve, committed))
    if committed.done():
        return _response(errors, committed.result())
    return _when_committed(errors, committed)


async def _when_committed(
    errors: Errors, committed: asyncio.Future[dict[Partition, ErrorCode]]
) -> WriteTxnMarkersResponse:
    return _response(errors, await committed)


def _resolve(committed: asyncio.Future[dict[Partition, ErrorCode]], lost: dict[Partition, ErrorCode]) -> None:
    if not committed.done():  # it is cancelled when the connection is gone
        committed.set_result(lost)


def _response(errors: Errors, lost: dict[Partition, ErrorCode]) -> WriteTxnMarkersResponse:
    """`lost`: the partitions whose marker was written and is not there to stay."""
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=producer_id,
                topics=_topics({where: error or lost.get(where, error) for where, error in of_producer.items()}),
            )
            for producer_id, of_producer in errors.items()
        ]
    )


def _write(broker: Broker, marker: WritableTxnMarker, topic: str, index: int) -> ErrorCode:
    try:
        broker.partitions.append_marker(
            topic,
            index,
            commit=marker.transaction_result,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
    except ProtocolError as error:
        broker.log.info("marker of producer %d for %s-%d refused: %s", marker.producer_id, topic, index, error)
        # Kafka asks which partitions are here, not which exist.
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if error.code in _NOT_THE_LEADER else error.code
    return ErrorCode.NONE


def _topics(errors: dict[Partition, ErrorCode]) -> list[WritableTxnMarkerTopicResult]:
    by_topic: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
    for (topic, index), error in errors.items():
        result = WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
        by_topic.setdefault(topic, []).append(result)
    return [WritableTxnMarkerTopicResult(name=topic, partitions=results) for topic, results in by_topic.items()]
