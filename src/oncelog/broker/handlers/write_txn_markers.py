"""WriteTxnMarkers: end transactions in partitions of this broker, for another broker's coordinator or an operator."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from oncelog.broker.coordinators.markers import MARKERS_A_TURN
from oncelog.broker.coordinators.partition_markers import PartitionMarkers
from oncelog.broker.coordinators.record_batches import EndMarker
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.delayed import DelayedCommits
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.leader import Leadership
from oncelog.cluster.replica import Replica
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from oncelog.protocol.topics import TopicPartition

_NOT_THE_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

COMMIT_TIMEOUT_MS = 10_000
"""The maximum time to wait for commits. A coordinator waits longer for the response, which has other markers too."""

Errors = dict[int, dict[TopicPartition, ErrorCode]]
"""The error of each marker, by producer and partition."""
Appended = tuple[Replica, int, Leadership | None]
"""The replica that got a marker, the marker's offset, and the term of the append."""


async def handle(
    appender: PartitionMarkers, logger: logging.Logger, request: WriteTxnMarkersRequest, ctx: RequestContext
) -> WriteTxnMarkersResponse:
    """Return an error for each partition. A producer that the request names twice has one result.

    Wait until the markers are committed, as a Produce with acks=all does. If `flush.messages` requires a sync, this
    includes the sync. If a marker is never committed, its error is KAFKA_STORAGE_ERROR, or UNKNOWN_TOPIC_OR_PARTITION
    if the topic is deleted meanwhile. If it is not committed in time, its error is REQUEST_TIMED_OUT.
    """
    if not ctx.may(AclOperation.ALTER, *CLUSTER):
        ctx.authorize(AclOperation.CLUSTER_ACTION, *CLUSTER)
    errors: Errors = {}
    appended: dict[TopicPartition, Appended] = {}
    refused = RefusedItems()
    yielder = Yielder(MARKERS_A_TURN)
    for marker in request.markers:
        await yielder.next()
        of_producer = errors.setdefault(marker.producer_id, {})
        end = EndMarker(
            marker.transaction_result,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
        for topic in marker.topics:
            await yielder.next()
            for index in topic.partition_indexes:
                await yielder.next()
                of_producer[topic.name, index] = _write(appender, end, topic.name, index, refused, appended)
    refused.log(logger, "WriteTxnMarkers cannot append a marker")
    lost: dict[TopicPartition, ErrorCode] = {}
    with DelayedCommits(len(appended), COMMIT_TIMEOUT_MS, ctx.session) as commits:
        for replica, offset, term in appended.values():
            await yielder.next()
            commits.add(replica, offset, term)
        await commits.ended
    for where, error in zip(appended, commits.errors, strict=True):
        await yielder.next()
        lost[where] = error
    return await _response(errors, lost)


async def _response(errors: Errors, lost: Mapping[TopicPartition, ErrorCode]) -> WriteTxnMarkersResponse:
    yielder = Yielder()
    markers = []
    for producer_id, of_producer in errors.items():
        by_topic: dict[str, WritableTxnMarkerTopicResult] = {}
        for (name, index), error in of_producer.items():
            await yielder.next()
            topic = by_topic.get(name)
            if topic is None:
                topic = by_topic[name] = WritableTxnMarkerTopicResult(name=name, partitions=[])
            code = error or lost.get((name, index), error)
            topic.partitions.append(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code))
        markers.append(WritableTxnMarkerResult(producer_id=producer_id, topics=list(by_topic.values())))
        await yielder.next()
    return WriteTxnMarkersResponse(markers=markers)


def _write(
    appender: PartitionMarkers,
    marker: EndMarker,
    topic: str,
    index: int,
    refused: RefusedItems,
    appended: dict[TopicPartition, Appended],
) -> ErrorCode:
    try:
        replica, offset = appender.append(topic, index, marker)
    except ProtocolError as error:
        refused.add("producer %d, %s-%d: %s", marker.producer_id, topic, index, error)
        # Kafka checks whether this broker has the partition, and not whether the partition exists.
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if error.code in _NOT_THE_LEADER else error.code
    _, _, term = appended.get((topic, index), (None, None, replica.term))  # an earlier term's markers may be lost
    appended[topic, index] = replica, offset, term
    return ErrorCode.NONE


def bind(services: HandlerServices) -> Handler:
    """Return the handler of WriteTxnMarkers."""
    return partial(handle, services.markers, services.runtime.logger)
