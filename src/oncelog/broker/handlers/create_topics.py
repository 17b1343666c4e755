"""CreateTopics: check names, partitions, assignments and settings, then create the topics."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.entries import describe_topic
from oncelog.broker.config.topics import check_topic_configs, without_effect
from oncelog.broker.metadata.loader import Deadline
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import RequestContext, may_create
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder, counted, mapped
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.topics import MAX_NEW_PARTITIONS, check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from oncelog.protocol.schema import NO_UUID
from oncelog.protocol.texts import first_named

TOPICS_A_TURN = 10
"""Topics that the handler checks before the event loop serves other requests."""

MAX_SHOWN = 8
"""The maximum number of broker ids of a rejected assignment that an error message shows."""
RESERVED = "__cluster_metadata"
"""The log of Kafka's own metadata. No topic may have its name."""

Described = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]
"""All settings of a topic, by the settings that the request sets."""


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """The handler, with the services that it uses."""

    config: DynamicConfig
    cache: MetadataCache
    topics: TopicAdministration
    logger: logging.Logger

    async def handle(self, request: CreateTopicsRequest, ctx: RequestContext) -> CreateTopicsResponse:
        """Return one result for each name. A repeated name gets INVALID_REQUEST."""
        named = await counted(topic.name for topic in request.topics)
        deadline = Deadline(request.timeout_ms)
        if any(times == 1 and name != RESERVED for name, times in named.items()):
            try:
                deadline.check()
            except ProtocolError as error:
                return await _refused(request, error)
        wanted = await mapped(request.topics, lambda topic: self._partitions(topic) if named[topic.name] == 1 else 0)
        too_many = sum(wanted) > MAX_NEW_PARTITIONS
        results = []
        timed_out = ""
        """The message of the first topic whose creation timed out. The other topics would wait as long."""
        described: Described = {}
        yielder = Yielder(TOPICS_A_TURN)
        for topic in request.topics:
            await yielder.next()
            if named[topic.name] == 0:
                continue
            try:
                if named[topic.name] > 1:
                    named[topic.name] = 0
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                if topic.name == RESERVED:
                    message = f"Creation of internal topic {RESERVED} is prohibited."
                    raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
                if not may_create(ctx, topic.name, ctx.may):
                    ctx.authorize(AclOperation.CREATE, AclResource.TOPIC, topic.name)
                if too_many:
                    message = (
                        f"a request may create at most {MAX_NEW_PARTITIONS} partitions, counted over all its topics"
                    )
                    raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
                if timed_out:
                    raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, timed_out)
                before = None if request.validate_only else deadline
                results.append(await self._create(topic, described, ctx, before))
            except ProtocolError as error:
                if error.code is ErrorCode.REQUEST_TIMED_OUT:
                    timed_out = str(error)
                results.append(
                    CreatableTopicResult(name=topic.name, error_code=error.code, error_message=str(error), configs=[])
                )
        return CreateTopicsResponse(topics=results)

    def _partitions(self, topic: CreatableTopic) -> int:
        """Return the number of requested partitions. An illegal negative number counts as 0 in the sum."""
        if topic.assignments:
            return len(topic.assignments)
        return self.config.current.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0)

    async def _create(
        self, topic: CreatableTopic, described: Described, ctx: RequestContext, deadline: Deadline | None
    ) -> CreatableTopicResult:
        """Create one topic, or only validate it if there is no deadline."""
        check_topic_name(topic.name)
        image = self.cache.image
        if image.topic(topic.name) is not None:
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} already exists")
        colliding = image.colliding(topic.name)
        if colliding is not None:
            message = f"topic {topic.name!r} collides with {colliding!r}: names must differ in more than '.' and '_'"
            raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        configs = check_topic_configs(self.config.current, {entry.name: entry.value for entry in topic.configs})
        assignment = await self._assignment(topic)
        ctx.count_mutations(len(assignment))
        topic_id = NO_UUID
        if deadline is not None:
            for sentence in without_effect(configs):
                self.logger.warning("topic %s: %s", topic.name, sentence)
            created = await self.topics.create(
                topic.name, partitions=len(assignment), configs=configs, assignment=assignment, deadline=deadline
            )
            topic_id = created.topic_id
        if not ctx.may(AclOperation.DESCRIBE_CONFIGS, AclResource.TOPIC, topic.name):
            hidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return CreatableTopicResult(name=topic.name, topic_id=topic_id, topic_config_error_code=hidden, configs=[])
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            num_partitions=len(assignment),
            replication_factor=len(assignment[0]),
            configs=self._described(configs, described),
        )

    def _described(self, configs: dict[str, str], described: Described) -> list[CreatableTopicConfigs]:
        """Return all settings of a topic. Topics of one request with the same configs share the list."""
        key = tuple(configs.items())
        if key not in described:
            described[key] = [
                CreatableTopicConfigs(name=entry.name, value=entry.value, config_source=entry.source)
                for entry in describe_topic(self.config, configs)
            ]
        return described[key]

    async def _assignment(self, topic: CreatableTopic) -> list[tuple[int, ...]]:
        if topic.assignments:
            if topic.num_partitions != -1 or topic.replication_factor != -1:
                message = "if replicas are assigned, partitions and replication factor must be -1"
                raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
            return _manual_assignment(self.topics, await self.topics.registered(), topic.assignments)
        config = self.config.current
        partitions = config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
        factor = config.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
        if factor < 1:
            message = f"the replication factor must be at least 1, or -1 for the broker's default, not {factor}"
            raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
        if partitions < 1:
            message = f"the number of partitions must be at least 1, or -1 for the broker's default, not {partitions}"
            raise ProtocolError(ErrorCode.INVALID_PARTITIONS, message)
        return await self.topics.place(partitions, factor)


async def _refused(request: CreateTopicsRequest, error: ProtocolError) -> CreateTopicsResponse:
    code, message = error.code, str(error)

    def refused(topic: CreatableTopic) -> CreatableTopicResult:
        return CreatableTopicResult(name=topic.name, error_code=code, error_message=message, configs=[])

    return CreateTopicsResponse(topics=await mapped(request.topics, refused))


def _manual_assignment(
    topics: TopicAdministration, registered: Collection[int], assignments: list[CreatableReplicaAssignment]
) -> list[tuple[int, ...]]:
    by_partition = {entry.partition_index: tuple(entry.broker_ids) for entry in assignments}
    if sorted(by_partition) != list(range(len(assignments))):
        message = "the assignment must name each of the partitions 0, 1, ... exactly once"
        raise ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    factor = len(assignments[0].broker_ids)
    for partition, ids in by_partition.items():
        check_replicas(topics, registered, partition, ids, factor)
    return [by_partition[partition] for partition in range(len(by_partition))]


def check_replicas(
    topics: TopicAdministration, registered: Collection[int], partition: int, ids: tuple[int, ...], factor: int
) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless `ids` are `factor` registered brokers, each named once.

    At least one of them must be running.
    """
    known = set(registered)
    shown = first_named(ids, len(ids), MAX_SHOWN)
    if not ids or len(set(ids)) != len(ids) or not known.issuperset(ids):
        message = f"partition {partition} is assigned to [{shown}], but must name different brokers of {sorted(known)}"
        raise ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if len(ids) != factor:
        message = f"partition {partition} has {len(ids)} replica(s), but the others have {factor}"
        raise ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if not set(ids).intersection(topics.broker_ids()):
        message = f"all brokers of partition {partition} ([{shown}]) are down; start one of them, or name a running one"
        raise ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def bind(services: HandlerServices) -> Handler:
    """Return the handler of CreateTopics."""
    return CreateTopics(services.config, services.cache, services.topics, services.runtime.logger).handle
