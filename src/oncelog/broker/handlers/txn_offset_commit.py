"""TxnOffsetCommit: offsets that become visible with a transaction."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING
from uuid import UUID

from oncelog.broker.coordinators.groups import operation_error
from oncelog.broker.handlers.offset_topics import Refused, answered, merge, still_existing, take_existing
from oncelog.broker.turns import in_turns
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext
    from oncelog.cluster.metadata import TopicInfo

_KNOWS_LOADING = 2


async def handle(broker: Broker, request: TxnOffsetCommitRequest, ctx: RequestContext) -> TxnOffsetCommitResponse:
    """Answer partitions that do not exist, and give the others to the group's coordinator."""
    ids: dict[str, UUID] = {}
    deleted: list[Refused] = []

    def find(topic: TxnOffsetCommitRequestTopic) -> TopicInfo | None:
        info = broker.metadata.topic(topic.name)
        if info is not None:
            ids[topic.name] = info.topic_id
        return info

    def existing(topics: list[TxnOffsetCommitRequestTopic]) -> list[TxnOffsetCommitRequestTopic]:
        return still_existing(
            topics,
            lambda topic: broker.metadata.topic_by_id(ids[topic.name]) is not None,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            deleted,
        )

    known, refused = await in_turns(take_existing(request.topics, find))
    response = TxnOffsetCommitResponse()
    if known:
        request.topics = known
        try:
            response = await broker.groups.commit_transactional_offsets(request, ctx.api_version, existing)
            refused += deleted
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
