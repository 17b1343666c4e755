"""CreateTopics: names, partitions, assignments and configurations are checked before anything is made."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from oncelog.broker.topic_config import check_topic_configs, describe_topic
from oncelog.cluster.metadata import check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

MAX_PARTITIONS = 10_000
"""Of one request; Kafka bounds a batch of metadata records in the same way (POLICY_VIOLATION)."""
_NO_TOPIC_ID = UUID(int=0)


async def handle(broker: Broker, request: CreateTopicsRequest, ctx: RequestContext) -> CreateTopicsResponse:
    """Each topic has its own error; a name that comes twice is INVALID_REQUEST for all of its entries."""
    named = Counter(topic.name for topic in request.topics)
    results = []
    for topic in request.topics:
        if named[topic.name] == 0:
            continue
        try:
            if named[topic.name] > 1:
                named[topic.name] = 0
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} is named twice")
            results.append(await _create(broker, topic, validate_only=request.validate_only))
        except ProtocolError as error:
            results.append(
                CreatableTopicResult(
                    name=topic.name, error_code=error.code, error_message=str(error), configs=[]
                )
            )
    return CreateTopicsResponse(topics=results)


async def _create(broker: Broker, topic: CreatableTopic, *, validate_only: bool) -> CreatableTopicResult:
    check_topic_name(topic.name)
    if broker.metadata.topic(topic.name) is not None:
        raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r} already exists")
    colliding = broker.metadata.colliding(topic.name)
    if colliding is not None:
        message = f"topic {topic.name!r} collides with {colliding!r}: '.' and '_' count as one"
        raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    assignment = _assignment(broker, topic)
    configs = check_topic_configs({entry.name: entry.value for entry in topic.configs})
    topic_id = _NO_TOPIC_ID
    if not validate_only:
        created = await broker.create_topic(
            topic.name, partitions=len(assignment), configs=configs, assignment=assignment
        )
        topic_id = created.topic_id
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        num_partitions=len(assignment),
        replication_factor=len(assignment[0]),
        configs=[
            CreatableTopicConfigs(name=entry.name, value=entry.value, config_source=entry.source)
            for entry in describe_topic(broker.config, configs)
        ],
    )


def _assignment(broker: Broker, topic: CreatableTopic) -> list[tuple[int, ...]]:
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            message = "with an assignment, partitions and replication factor must be -1"
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
        return _manual_assignment(broker, topic.assignments)
    partitions = broker.config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = broker.config.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    if partitions < 1:
        raise ProtocolError(ErrorCode.INVALID_PARTITIONS, f"a topic has at least 1 partition, not {partitions}")
    if partitions > MAX_PARTITIONS:
        message = f"{partitions} partitions are more than the {MAX_PARTITIONS} that one request may ask for"
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
    if factor < 1:
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {factor} is below 1")
    return broker.assign(partitions, factor)


def _manual_assignment(
    broker: Broker, assignments: list[CreatableReplicaAssignment]
) -> list[tuple[int, ...]]:
    by_partition = {entry.partition_index: tuple(entry.broker_ids) for entry in assignments}
    if sorted(by_partition) != list(range(len(assignments))):
        message = "the assignment must name the partitions 0, 1, ... once each"
        raise ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    known = set(broker.broker_ids())
    for partition, ids in by_partition.items():
        if not ids or len(set(ids)) != len(ids) or not known.issuperset(ids):
            message = f"partition {partition} is assigned to {list(ids)}; brokers are {sorted(known)}"
            raise ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return [by_partition[partition] for partition in range(len(by_partition))]
