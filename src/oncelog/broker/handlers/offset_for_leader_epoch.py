"""OffsetForLeaderEpoch: where an epoch of a partition ended, for those who look for what was cut off (KIP-101, 320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.handlers.fetch import check_leader_epoch
from oncelog.broker.turns import Turns
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, ctx: RequestContext
) -> OffsetForLeaderEpochResponse:
    """The largest epoch not above the one asked for, with its end offset (exclusive); -1 and -1 where there is none."""
    response = OffsetForLeaderEpochResponse()
    turns = Turns()
    for topic in request.topics:
        result = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(result)
        for asked in topic.partitions:
            await turns.next()
            result.partitions.append(_find(broker, topic.topic, asked))
    return response


def _find(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    found = EpochEndOffset(partition=asked.partition)
    try:
        replica = broker.partitions.find(topic, asked.partition)
        check_leader_epoch(replica, asked.current_leader_epoch)
    except ProtocolError as error:
        found.error_code = error.code
    else:
        found.leader_epoch, found.end_offset = replica.end_offset_for_epoch(asked.leader_epoch)
    return found
