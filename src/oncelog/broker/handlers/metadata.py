"""Metadata: brokers, and the topics asked for; makes a missing topic where that is allowed."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from oncelog.broker.requests import operations
from oncelog.broker.requests.refused_items import RefusedItems
from oncelog.broker.turns import Turns, by_key
from oncelog.cluster.metadata import (
    INTERNAL_TOPICS,
    MAX_NEW_PARTITIONS,
    NO_LEADER,
    PartitionInfo,
    TopicInfo,
    check_topic_name,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from oncelog.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_BY_TOPIC_ID = 12
"""From this version on, a request may name topics by their ids."""


async def handle(broker: Broker, request: MetadataRequest, ctx: RequestContext) -> MetadataResponse:
    """Describe the requested topics. Null topics (in version 0: no topics) mean every topic.

    If a request names a topic twice, describe it once, as Kafka does: a small request must not cause a huge answer.
    """
    if ctx.api_version < _BY_TOPIC_ID:
        _check_names(request, ctx.api_version)
    if request.topics is None or (ctx.api_version == 0 and not request.topics):
        turns = Turns()
        everything = tuple(broker.metadata.topics())
        return _response(broker, request, [await _topic(broker, topic, turns) for topic in everything])
    turns = Turns()
    asked = (await by_key(request.topics, attrgetter("name", "topic_id"))).values()
    if request.allow_auto_topic_creation and broker.config.auto_create_topics_enable:
        missing = []
        for topic in asked:
            await turns.next()
            if topic.name and broker.metadata.topic(topic.name) is None:
                missing.append(topic.name)
        if len(missing) * broker.config.num_partitions > MAX_NEW_PARTITIONS:
            broker.log.info("%d missing topics in one Metadata request: none of them is created", len(missing))
        elif missing:
            await _create(broker, missing)
    return _response(broker, request, [await _asked(broker, topic, turns) for topic in asked])


def _check_names(request: MetadataRequest, version: int) -> None:
    """Raise INVALID_REQUEST if the request names a topic by id: versions 10 and 11 allow ids only in responses."""
    for topic in request.topics or ():
        if topic.name is None or topic.topic_id != NO_UUID:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Metadata version {version} asks for topics by name only")


async def _create(broker: Broker, missing: list[str]) -> None:
    """Create the requested topics for which this is possible."""
    turns = Turns()
    refused = RefusedItems()
    for name in missing:
        await turns.next()
        try:
            if name in INTERNAL_TOPICS:
                await broker.ensure_internal_topic(name)
            elif _may_be_created(broker, name):
                await broker.create_topic(
                    name,
                    partitions=broker.config.num_partitions,
                    replication_factor=broker.config.default_replication_factor,
                )
        except ProtocolError as error:
            refused.add("%r: %s", name, error)
    refused.log(broker.log, "cannot create a topic on demand")


def _may_be_created(broker: Broker, name: str) -> bool:
    """Return whether the name is legal. Do not log illegal names: a request may have many, of any length."""
    try:
        check_topic_name(name)
    except ProtocolError:
        return False
    return broker.metadata.colliding(name) is None


async def _asked(broker: Broker, asked: MetadataRequestTopic, turns: Turns) -> MetadataResponseTopic:
    await turns.next()
    if asked.name is None:
        found = broker.metadata.topic_by_id(asked.topic_id)
        if found is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id)
        return await _topic(broker, found, turns)
    found = broker.metadata.topic(asked.name)
    if found is not None:
        return await _topic(broker, found, turns)
    try:
        check_topic_name(asked.name)
    except ProtocolError as error:
        return MetadataResponseTopic(error_code=error.code, name=asked.name, topic_id=NO_UUID)
    collides = broker.metadata.colliding(asked.name) is not None
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if collides else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return MetadataResponseTopic(error_code=code, name=asked.name, topic_id=NO_UUID)


async def _topic(broker: Broker, topic: TopicInfo, turns: Turns) -> MetadataResponseTopic:
    partitions = []
    for index, info in enumerate(topic.partitions):
        await turns.next()
        partitions.append(_partition(broker, topic.name, index, info))
    return MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.internal, partitions=partitions
    )


def _partition(broker: Broker, topic: str, index: int, info: PartitionInfo) -> MetadataResponsePartition:
    """A partition whose log directory has failed has no leader (KIP-112)."""
    offline = broker.partitions.is_offline(topic, index)
    return MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if offline else ErrorCode.NONE,
        partition_index=index,
        leader_id=NO_LEADER if offline else info.leader,
        leader_epoch=info.leader_epoch,
        replica_nodes=list(info.replicas),
        isr_nodes=[] if offline else list(info.isr),
        offline_replicas=[broker.node_id] if offline else [],
    )


def _response(broker: Broker, request: MetadataRequest, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    """`include_..._operations` come in the versions that have the fields, and are false in the others."""
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:
                topic.topic_authorized_operations = operations.OF_TOPIC
    of_cluster = operations.OF_CLUSTER if request.include_cluster_authorized_operations else operations.NOT_ASKED
    me = MetadataResponseBroker(node_id=broker.node_id, host=broker.advertised_host, port=broker.advertised_port)
    return MetadataResponse(
        brokers=[me],
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        topics=topics,
        cluster_authorized_operations=of_cluster,
    )
