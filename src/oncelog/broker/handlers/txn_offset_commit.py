"""TxnOffsetCommit: offsets that become visible with a transaction."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from oncelog.broker.groups import operation_error
from oncelog.broker.handlers.offset_topics import Refused, answered, merge, take_existing
from oncelog.broker.turns import in_turns
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_KNOWS_LOADING = 2


async def handle(broker: Broker, request: TxnOffsetCommitRequest, ctx: RequestContext) -> TxnOffsetCommitResponse:
    """Answer partitions that do not exist, and give the others to the group's coordinator."""
    known, refused = await in_turns(take_existing(request.topics, lambda topic: broker.metadata.topic(topic.name)))
    response = TxnOffsetCommitResponse()
    if known:
        request.topics = known
        try:
            response = await broker.groups.commit_transactional_offsets(request, ctx.api_version)
        except ProtocolError as error:
            code = operation_error(error)
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.api_version < _KNOWS_LOADING:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # KAFKA-7296
            all_refused = (Refused(topic, topic.partitions, code) for topic in known)
            response.topics = await in_turns(answered(all_refused, TxnOffsetCommitResponseTopic))
    if refused:
        others = await in_turns(answered(refused, TxnOffsetCommitResponseTopic))
        await in_turns(merge(response.topics, others, attrgetter("name")))
    return response
