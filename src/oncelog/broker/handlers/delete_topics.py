"""DeleteTopics: delete topics by name or by id. Source: Kafka's `ControllerApis.deleteTopics`."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.metadata.loader import Deadline
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder, counted, mapped
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.cluster.topics import TopicInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from oncelog.protocol.schema import NO_UUID

_WITH_TOPIC_IDS = 6
_WITH_OWN_ERROR = 3
"""The first version whose clients know TOPIC_DELETION_DISABLED."""


async def handle(
    config: DynamicConfig,
    cache: MetadataCache,
    topics: TopicAdministration,
    request: DeleteTopicsRequest,
    ctx: RequestContext,
) -> DeleteTopicsResponse:
    """Return one result for each topic. A topic that is named twice, by name or by id, gets INVALID_REQUEST."""
    asked = request.topics
    if ctx.api_version < _WITH_TOPIC_IDS:
        asked = await mapped(request.topic_names, lambda name: DeleteTopicState(name=name))
    named = await counted((state.name, state.topic_id) for state in asked)
    deadline = Deadline(request.timeout_ms)
    if config.current.delete_topic_enable and any(
        times == 1 and (name is None) != (topic_id == NO_UUID) for (name, topic_id), times in named.items()
    ):
        try:
            deadline.check()
        except ProtocolError as error:
            return await _refused(asked, error)
    found: dict[int, TopicInfo] = {}
    ids: set[UUID] = set()
    results = []
    yielder = Yielder()
    for (name, topic_id), times in named.items():
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        results.append(result)
        await yielder.next()
        try:
            if not config.current.delete_topic_enable:
                old = ctx.api_version < _WITH_OWN_ERROR
                code = ErrorCode.INVALID_REQUEST if old else ErrorCode.TOPIC_DELETION_DISABLED
                raise ProtocolError(code, "delete.topic.enable is false")
            if times > 1:
                what = "name" if topic_id == NO_UUID else "id"
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {what}.")
            topic = _find(cache.image, DeleteTopicState(name=name, topic_id=topic_id), ctx)
            if not ctx.may(AclOperation.DELETE, *CLUSTER):
                if ctx.may(AclOperation.DESCRIBE, AclResource.TOPIC, topic.name):
                    result.name = topic.name
                ctx.authorize(AclOperation.DELETE, AclResource.TOPIC, topic.name)
            if topic.topic_id in ids:
                message = "The provided topic name maps to an ID that was already supplied."
                raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
            ids.add(topic.topic_id)
            found[len(results) - 1] = topic
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
    for slot, topic in found.items():
        await _delete(topics, topic, results[slot], deadline, ctx)
    return DeleteTopicsResponse(responses=results)


async def _refused(asked: list[DeleteTopicState], error: ProtocolError) -> DeleteTopicsResponse:
    code, message = error.code, str(error)

    def refused(state: DeleteTopicState) -> DeletableTopicResult:
        return DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=code, error_message=message)

    return DeleteTopicsResponse(responses=await mapped(asked, refused))


async def _delete(
    topics: TopicAdministration,
    topic: TopicInfo,
    result: DeletableTopicResult,
    deadline: Deadline,
    ctx: RequestContext,
) -> None:
    result.name, result.topic_id = topic.name, topic.topic_id
    try:
        ctx.count_mutations(topic.partition_count)
        await topics.delete(topic, deadline)
    except ProtocolError as error:
        result.error_code, result.error_message = error.code, str(error)


def _find(image: MetadataImage, state: DeleteTopicState, ctx: RequestContext) -> TopicInfo:
    """Return the topic. The error says whether a named topic exists only if the client may describe it."""
    if state.name is not None:
        if state.topic_id != NO_UUID:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        if not ctx.may(AclOperation.DELETE, *CLUSTER):
            ctx.authorize(AclOperation.DESCRIBE, AclResource.TOPIC, state.name)
        topic = image.topic(state.name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {state.name!r} does not exist")
        return topic
    if state.topic_id == NO_UUID:
        raise ProtocolError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    topic = image.topic_by_id(state.topic_id)
    if topic is None:
        raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {state.topic_id}")
    return topic


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DeleteTopics."""
    return partial(handle, services.config, services.cache, services.topics)
