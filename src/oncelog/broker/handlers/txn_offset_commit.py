"""TxnOffsetCommit: offsets that become visible with a transaction."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from oncelog.broker.groups import operation_error
from oncelog.broker.handlers.offset_topics import Refused, merge, take_existing
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_KNOWS_LOADING = 2


async def handle(broker: Broker, request: TxnOffsetCommitRequest, ctx: RequestContext) -> TxnOffsetCommitResponse:
    """Partitions that do not exist have their error at once; what is left goes to the group's coordinator."""
    known, refused = take_existing(request.topics, lambda topic: broker.metadata.topic(topic.name))
    answered = TxnOffsetCommitResponse()
    if known:
        request.topics = known
        try:
            answered = await broker.groups.commit_transactional_offsets(request, ctx.api_version)
        except ProtocolError as error:
            code = operation_error(error)
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.api_version < _KNOWS_LOADING:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # KAFKA-7296
            answered.topics = [_refuse(Refused(topic, topic.partitions, code)) for topic in known]
    if refused:
        merge(answered.topics, [_refuse(each) for each in refused], attrgetter("name"))
    return answered


def _refuse(refused: Refused) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=refused.topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=refused.code)
            for partition in refused.partitions
        ],
    )
