"""DeleteTopics, by name or by id. Source: Kafka's `ControllerApis.deleteTopics`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from oncelog.broker.metadata.deadline import Deadline
from oncelog.broker.turns import Turns, counted, mapped
from oncelog.cluster.metadata import TopicInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from oncelog.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_WITH_TOPIC_IDS = 6
_WITH_OWN_ERROR = 3
"""The first version whose clients know TOPIC_DELETION_DISABLED."""


async def handle(broker: Broker, request: DeleteTopicsRequest, ctx: RequestContext) -> DeleteTopicsResponse:
    """Each topic has its own error; what is named twice, in whatever way, is answered with INVALID_REQUEST."""
    asked = request.topics
    if ctx.api_version < _WITH_TOPIC_IDS:
        asked = await mapped(request.topic_names, lambda name: DeleteTopicState(name=name))
    named = await counted((state.name, state.topic_id) for state in asked)
    deadline = Deadline(broker, request.timeout_ms)
    if broker.config.delete_topic_enable and any(
        times == 1 and (name is None) != (topic_id == NO_UUID) for (name, topic_id), times in named.items()
    ):
        try:
            deadline.check()
        except ProtocolError as error:
            return await _refused(asked, error)
    found: dict[int, TopicInfo] = {}
    ids: set[UUID] = set()
    results = []
    turns = Turns()
    for (name, topic_id), times in named.items():
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        results.append(result)
        await turns.next()
        try:
            if not broker.config.delete_topic_enable:
                old = ctx.api_version < _WITH_OWN_ERROR
                code = ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED
                raise ProtocolError(code, "delete.topic.enable is false")
            if times > 1:
                what = "name" if topic_id == NO_UUID else "id"
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
            topic = _find(broker, DeleteTopicState(name=name, topic_id=topic_id))
            if topic.topic_id in ids:
                message = "The provided topic name maps to an ID that was already supplied."
                raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
            ids.add(topic.topic_id)
            found[len(results) - 1] = topic
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
    for slot, topic in found.items():
        await _delete(broker, topic, results[slot], deadline)
    return DeleteTopicsResponse(responses=results)


async def _refused(asked: list[DeleteTopicState], error: ProtocolError) -> DeleteTopicsResponse:
    code, message = error.code, str(error)

    def refused(state: DeleteTopicState) -> DeletableTopicResult:
        return DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=code, error_message=message)

    return DeleteTopicsResponse(responses=await mapped(asked, refused))


async def _delete(broker: Broker, topic: TopicInfo, result: DeletableTopicResult, deadline: Deadline) -> None:
    result.name, result.topic_id = topic.name, topic.topic_id
    try:
        await broker.delete_topic(topic, deadline)
    except ProtocolError as error:
        result.error_code, result.error_message = error.code, str(error)


def _find(broker: Broker, state: DeleteTopicState) -> TopicInfo:
    if state.name is not None:
        if state.topic_id != NO_UUID:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        topic = broker.metadata.topic(state.name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {state.name!r} does not exist")
        return topic
    if state.topic_id == NO_UUID:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    topic = broker.metadata.topic_by_id(state.topic_id)
    if topic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {state.topic_id}")
    return topic
