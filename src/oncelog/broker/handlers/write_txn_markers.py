"""WriteTxnMarkers: end transactions in partitions of this broker, for another broker's coordinator or an operator."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from oncelog.broker.coordinators.markers import MARKERS_A_TURN
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER, Operation
from oncelog.broker.requests.parts import Handler, Parts
from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Turns, cancel
from oncelog.cluster.leader import Term
from oncelog.cluster.waits import Wait
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_NOT_THE_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

COMMIT_TIMEOUT_S = 10.0
"""The maximum time to wait for commits. A coordinator waits longer for the response, which has other markers too."""

Partition = tuple[str, int]
Errors = dict[int, dict[Partition, ErrorCode]]
"""The error of each marker, by producer and partition."""
Lost = dict[Partition, ErrorCode]
"""Partitions whose marker was appended, but not committed."""
Terms = dict[Partition, Term | None]
"""The term in which each partition got its first marker of the request."""


async def handle(
    partitions: Partitions, logger: logging.Logger, request: WriteTxnMarkersRequest, ctx: RequestContext
) -> WriteTxnMarkersResponse:
    """Return an error for each partition. A producer that the request names twice has one result.

    Wait until the markers are committed, as a Produce with acks=all does. If `flush.messages` requires a sync, this
    includes the sync. If a marker is never committed, its error is KAFKA_STORAGE_ERROR, or UNKNOWN_TOPIC_OR_PARTITION
    if the topic is deleted meanwhile. If it is not committed in time, its error is REQUEST_TIMED_OUT.
    """
    if not ctx.may(Operation.ALTER, *CLUSTER):
        ctx.authorize(Operation.CLUSTER_ACTION, *CLUSTER)
    errors: Errors = {}
    terms: Terms = {}
    refused = RefusedItems()
    turns = Turns(MARKERS_A_TURN)
    for marker in request.markers:
        await turns.next()
        of_producer = errors.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            await turns.next()
            for index in topic.partition_indexes:
                await turns.next()
                of_producer[topic.name, index] = _write(partitions, marker, topic.name, index, refused, terms)
    refused.log(logger, "WriteTxnMarkers cannot append a marker")
    return await _response(errors, await _committed(partitions, errors, terms))


async def _committed(partitions: Partitions, errors: Errors, terms: Terms) -> Lost:
    """Wait until all appended markers are committed or lost. Return an error for each that is not committed."""
    turns = Turns()
    waiting: set[Partition] = set()
    for of_producer in errors.values():
        for where, error in of_producer.items():
            await turns.next()
            if error is ErrorCode.NONE:
                waiting.add(where)
    lost: Lost = {}
    all_done = asyncio.get_running_loop().create_future()

    def ended(where: Partition, found: Lost) -> None:
        waiting.discard(where)
        lost.update(found)
        if not waiting and not all_done.done():
            all_done.set_result(None)

    waits: list[Wait] = []
    try:
        for where in sorted(waiting):
            await turns.next()
            waits += partitions.when_committed([where], partial(ended, where), terms)
        if waiting:
            await asyncio.wait({all_done}, timeout=COMMIT_TIMEOUT_S)
        return lost | dict.fromkeys(waiting, ErrorCode.REQUEST_TIMED_OUT)
    finally:
        cancel(waits)


async def _response(errors: Errors, lost: Lost) -> WriteTxnMarkersResponse:
    turns = Turns()
    markers = []
    for producer_id, of_producer in errors.items():
        by_topic: dict[str, WritableTxnMarkerTopicResult] = {}
        for (name, index), error in of_producer.items():
            await turns.next()
            topic = by_topic.get(name)
            if topic is None:
                topic = by_topic[name] = WritableTxnMarkerTopicResult(name=name, partitions=[])
            code = error or lost.get((name, index), error)
            topic.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
        markers.append(WritableTxnMarkerResult(producer_id=producer_id, topics=list(by_topic.values())))
        await turns.next()
    return WriteTxnMarkersResponse(markers=markers)


def _write(
    partitions: Partitions, marker: WritableTxnMarker, topic: str, index: int, refused: RefusedItems, terms: Terms
) -> ErrorCode:
    try:
        partitions.append_marker(
            topic,
            index,
            commit=marker.transaction_result,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
        )
    except ProtocolError as error:
        refused.add("producer %d, %s-%d: %s", marker.producer_id, topic, index, error)
        # Kafka checks whether this broker has the partition, and not whether the partition exists.
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if error.code in _NOT_THE_LEADER else error.code
    replica = partitions.hosted(topic, index)
    terms.setdefault((topic, index), None if replica is None else replica.term)
    return ErrorCode.NONE


def bind(parts: Parts) -> Handler:
    """Return the handler of WriteTxnMarkers."""
    return partial(handle, parts.partitions, parts.logger)
