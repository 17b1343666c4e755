"""DeleteTopics, by name or by id."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from oncelog.cluster.metadata import TopicInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_WITH_TOPIC_IDS = 6
_NO_TOPIC_ID = UUID(int=0)


async def handle(broker: Broker, request: DeleteTopicsRequest, ctx: RequestContext) -> DeleteTopicsResponse:
    """Each topic has its own error; naming one twice is INVALID_REQUEST for it."""
    asked = request.topics
    if ctx.api_version < _WITH_TOPIC_IDS:
        asked = [DeleteTopicState(name=name) for name in request.topic_names]
    named = Counter((state.name, state.topic_id) for state in asked)
    results = []
    for (name, topic_id), times in named.items():
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        try:
            if times > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "the topic is named twice")
            if not broker.config.delete_topic_enable:
                raise ProtocolError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false")
            topic = _find(broker, name, topic_id)
            result.name, result.topic_id = topic.name, topic.topic_id
            await broker.delete_topic(topic)
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    return DeleteTopicsResponse(responses=results)


def _find(broker: Broker, name: str | None, topic_id: UUID) -> TopicInfo:
    if name is not None and topic_id != _NO_TOPIC_ID:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "a topic is named by its name or by its id, not by both")
    if name is None:
        topic = broker.metadata.topic_by_id(topic_id)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        return topic
    topic = broker.metadata.topic(name)
    if topic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
    return topic
