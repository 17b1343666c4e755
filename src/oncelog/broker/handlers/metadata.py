"""Metadata: describe the brokers and the requested topics. Create a missing topic if the settings allow it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from operator import attrgetter

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import Permitted, RequestContext, cluster_operations, may_create
from oncelog.broker.requests.nodes import Nodes
from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import ITEMS_A_TURN, Yielder, by_key, filtered, mapped
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.cluster.topics import (
    INTERNAL_TOPICS,
    MAX_NEW_PARTITIONS,
    PartitionInfo,
    TopicInfo,
    check_topic_name,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.protocol.schema import NO_UUID

_LISTENER_ERROR = 6
"""From this version on, clients know LISTENER_NOT_FOUND."""
_BY_TOPIC_ID = 12
"""From this version on, a request may name topics by their ids."""

_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@dataclass(frozen=True, slots=True)
class Metadata:
    """The handler, with the services that it uses."""

    cluster_id: str
    nodes: Nodes
    config: DynamicConfig
    cache: MetadataCache
    topics: TopicAdministration
    logger: logging.Logger

    async def handle(self, request: MetadataRequest, ctx: RequestContext) -> MetadataResponse:
        """Describe the requested topics. Null topics (in version 0: no topics) mean every topic.

        If a request names a topic twice, describe it once, as Kafka does, so that a small request does not cause a huge
        response.
        """
        if ctx.api_version < _BY_TOPIC_ID:
            _check_names(request, ctx.api_version)
        if request.topics is None or (ctx.api_version == 0 and not request.topics):
            yielder = Yielder()
            shown = await filtered(
                self.cache.image.topics(), lambda info: ctx.may(AclOperation.DESCRIBE, AclResource.TOPIC, info.name)
            )
            topics = [await self._topic(info, ctx, yielder) for info in shown]
            return await self._response(request, ctx, topics)
        yielder = Yielder()
        asked = await _once(request.topics)
        creates = request.allow_auto_topic_creation and self.config.current.auto_create_topics_enable
        if creates:
            missing = []
            for topic in asked:
                await yielder.next()
                if topic.name and self._refusal(topic.name, ctx, ctx.may, creates) is _UNKNOWN:
                    missing.append(topic.name)
            if len(missing) * self.config.current.num_partitions > MAX_NEW_PARTITIONS:
                self.logger.info(
                    "created none of the %d missing topics of a Metadata request: the limit is %d new partitions",
                    len(missing),
                    MAX_NEW_PARTITIONS,
                )
            elif missing:
                await self._create(missing, ctx)
        return await self._response(request, ctx, [await self._asked(topic, ctx, yielder, creates) for topic in asked])

    async def _create(self, missing: list[str], ctx: RequestContext) -> None:
        """Create the requested topics for which this is possible."""
        yielder = Yielder()
        refused = RefusedItems()
        for name in missing:
            await yielder.next()
            try:
                if name in INTERNAL_TOPICS or _may_be_created(self.cache.image, name):
                    ctx.count_mutations(self.config.current.num_partitions)
                    await self.topics.create_missing(name)
            except ProtocolError as error:
                refused.add("%r: %s", name, error)
                if error.code is ErrorCode.REQUEST_TIMED_OUT:  # the other topics would wait as long
                    break
        refused.log(self.logger, "cannot create a topic that a Metadata request names")

    def _refusal(self, name: str, ctx: RequestContext, permitted: Permitted, creates: bool) -> ErrorCode:
        """Return NONE if the topic exists and the client may describe it.

        Return TOPIC_AUTHORIZATION_FAILED if the client may not describe the topic. Return the same error if the request
        `creates` missing topics, and the client may not create this one. Otherwise, return UNKNOWN_TOPIC_OR_PARTITION.
        `permitted` is a method of `ctx`.
        """
        if not permitted(AclOperation.DESCRIBE, AclResource.TOPIC, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if self.cache.image.topic(name) is not None:
            return ErrorCode.NONE
        if creates and not may_create(ctx, name, permitted):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return _UNKNOWN

    async def _asked(
        self, asked: MetadataRequestTopic, ctx: RequestContext, yielder: Yielder, creates: bool
    ) -> MetadataResponseTopic:
        await yielder.next()
        image = self.cache.image
        if asked.name is None:
            found = image.topic_by_id(asked.topic_id)
            if found is None:
                return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
            if not ctx.allowed(AclOperation.DESCRIBE, AclResource.TOPIC, found.name):
                refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return MetadataResponseTopic(error_code=refused, name=None, topic_id=asked.topic_id)
            return await self._topic(found, ctx, yielder)
        code = self._refusal(asked.name, ctx, ctx.allowed, creates)
        if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return MetadataResponseTopic(error_code=code, name=asked.name, topic_id=NO_UUID)
        found = image.topic(asked.name)
        if found is not None:
            return await self._topic(found, ctx, yielder)
        try:
            check_topic_name(asked.name)
        except ProtocolError as error:
            return MetadataResponseTopic(error_code=error.code, name=asked.name, topic_id=NO_UUID)
        collides = image.colliding(asked.name) is not None
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if collides else _UNKNOWN
        return MetadataResponseTopic(error_code=code, name=asked.name, topic_id=NO_UUID)

    async def _topic(self, topic: TopicInfo, ctx: RequestContext, yielder: Yielder) -> MetadataResponseTopic:
        partitions: list[MetadataResponsePartition] = []
        for first in range(0, topic.partition_count, ITEMS_A_TURN):
            some = topic.partitions[first : first + ITEMS_A_TURN]
            await yielder.next(len(some))
            partitions += [self._partition(topic.name, index, info, ctx) for index, info in enumerate(some, first)]
        return MetadataResponseTopic(
            name=topic.name, topic_id=topic.topic_id, is_internal=topic.internal, partitions=partitions
        )

    def _partition(self, topic: str, index: int, info: PartitionInfo, ctx: RequestContext) -> MetadataResponsePartition:
        """Describe a partition. If its log directory has failed, it has no leader (KIP-112)."""
        view = self.nodes.describe(topic, index, info, ctx.session.listener)
        is_old = view.error == ErrorCode.LISTENER_NOT_FOUND and ctx.api_version < _LISTENER_ERROR
        return MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if is_old else view.error,
            partition_index=index,
            leader_id=view.leader,
            leader_epoch=info.leader_epoch,
            replica_nodes=list(info.replicas),
            isr_nodes=view.isr,
            offline_replicas=view.offline,
        )

    async def _response(
        self, request: MetadataRequest, ctx: RequestContext, topics: list[MetadataResponseTopic]
    ) -> MetadataResponse:
        """Return the response. In versions without the fields `include_..._operations`, these are false."""
        if request.include_topic_authorized_operations:
            yielder = Yielder()
            for topic in topics:
                await yielder.next()
                if topic.error_code not in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
                    topic.topic_authorized_operations = ctx.operations_on(AclResource.TOPIC, topic.name or "")
        of_cluster = cluster_operations(ctx, asked=request.include_cluster_authorized_operations)
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
                for each in self.nodes.recent(ctx.session.listener)
            ],
            cluster_id=self.cluster_id,
            controller_id=self.nodes.controller,
            topics=topics,
            cluster_authorized_operations=of_cluster,
        )


async def _once(topics: Iterable[MetadataRequestTopic]) -> Collection[MetadataRequestTopic]:
    """Return each requested topic once.

    If one is given by its id, ignore all names, as Kafka does (`KafkaApis.handleTopicMetadataRequest`): Java's client
    sends empty names with ids.
    """
    ids = await by_key(topics, attrgetter("topic_id"))
    ids.pop(NO_UUID, None)
    if ids:
        return await mapped(ids, lambda each: MetadataRequestTopic(name=None, topic_id=each))
    return (await by_key(topics, attrgetter("name"))).values()


def _check_names(request: MetadataRequest, version: int) -> None:
    """Raise INVALID_REQUEST if the request names a topic by id: versions 10 and 11 allow ids only in responses."""
    for topic in request.topics or ():
        if topic.name is None or topic.topic_id != NO_UUID:
            message = f"Metadata v{version} does not support topic ids in requests; use names, or version 12"
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)


def _may_be_created(image: MetadataImage, name: str) -> bool:
    """Return whether the name is valid and collides with no other. Invalid names are not logged: there may be many."""
    try:
        check_topic_name(name)
    except ProtocolError:
        return False
    return image.colliding(name) is None


def bind(services: HandlerServices) -> Handler:
    """Return the handler of Metadata."""
    return Metadata(
        services.membership.cluster_id,
        services.nodes,
        services.config,
        services.cache,
        services.topics,
        services.runtime.logger,
    ).handle
