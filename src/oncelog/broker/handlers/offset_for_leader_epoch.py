"""OffsetForLeaderEpoch: return the end of a leader epoch, so that a client detects truncated records (KIP-101, 320)."""

from __future__ import annotations

from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder
from oncelog.cluster.leader import end_offset_for_epoch
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


async def handle(
    partitions: Partitions, request: OffsetForLeaderEpochRequest, ctx: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Return the largest epoch up to the requested one, with its end offset (exclusive).

    If there is no such epoch, both are -1.
    """
    response = OffsetForLeaderEpochResponse()
    yielder = Yielder()
    for topic in request.topics:
        result = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(result)
        for asked in topic.partitions:
            await yielder.next()
            result.partitions.append(_find(partitions, topic.topic, asked, ctx))
    return response


def _find(partitions: Partitions, topic: str, asked: OffsetForLeaderPartition, ctx: RequestContext) -> EpochEndOffset:
    found = EpochEndOffset(partition=asked.partition)
    try:
        if not ctx.may(AclOperation.CLUSTER_ACTION, *CLUSTER):
            ctx.authorize(AclOperation.DESCRIBE, AclResource.TOPIC, topic)
        replica = partitions.require(topic, asked.partition)
        replica.check_leader_epoch(asked.current_leader_epoch)
    except ProtocolError as error:
        found.error_code = error.code
    else:
        found.leader_epoch, found.end_offset = end_offset_for_epoch(
            replica.log, replica.leader_epoch, asked.leader_epoch
        )
    return found


def bind(services: HandlerServices) -> Handler:
    """Return the handler of OffsetForLeaderEpoch."""
    return partial(handle, services.partitions)
