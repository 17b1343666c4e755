"""TxnOffsetCommit: offsets that become visible with a transaction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncelog.broker.groups import operation_error
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
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
    known: list[TxnOffsetCommitRequestTopic] = []
    refused: list[TxnOffsetCommitResponseTopic] = []
    for topic in request.topics:
        info = broker.metadata.topic(topic.name)
        count = 0 if info is None else info.partition_count
        missing = [partition for partition in topic.partitions if not 0 <= partition.partition_index < count]
        topic.partitions = [partition for partition in topic.partitions if 0 <= partition.partition_index < count]
        if missing or info is None:
            refused.append(_refuse(topic.name, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if topic.partitions:
            known.append(topic)
    if not known:
        return TxnOffsetCommitResponse(topics=refused)
    request.topics = known
    try:
        response = await broker.groups.commit_transactional_offsets(request, ctx.api_version)
    except ProtocolError as error:
        code = operation_error(error)
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.api_version < _KNOWS_LOADING:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE  # KAFKA-7296
        response = TxnOffsetCommitResponse(topics=[_refuse(topic.name, topic.partitions, code) for topic in known])
    by_name = {topic.name: topic for topic in response.topics}
    for topic_response in refused:
        same = by_name.get(topic_response.name)
        if same is None:
            response.topics.append(topic_response)
        else:
            same.partitions += topic_response.partitions
    return response


def _refuse(
    name: str, partitions: Iterable[TxnOffsetCommitRequestPartition], code: ErrorCode
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=name,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            for partition in partitions
        ],
    )
