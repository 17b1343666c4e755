"""CreatePartitions: add partitions to topics (KIP-195).

Source: Kafka's `ReplicationControlManager.createPartitions`.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter

from oncelog.broker.handlers.create_topics import check_replicas
from oncelog.broker.metadata.loader import Deadline
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder, by_key, counted, mapped
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.topics import MAX_NEW_PARTITIONS, TopicInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(
    cache: MetadataCache, topics: TopicAdministration, request: CreatePartitionsRequest, ctx: RequestContext
) -> CreatePartitionsResponse:
    """Return one result for each name. A repeated name gets INVALID_REQUEST."""
    named = await counted(topic.name for topic in request.topics)
    deadline = Deadline(request.timeout_ms)
    if 1 in named.values():
        try:
            deadline.check()
        except ProtocolError as error:
            return await _refused(request, error)
    results = []
    allowed = MAX_NEW_PARTITIONS
    yielder = Yielder()
    for topic in (await by_key(request.topics, attrgetter("name"))).values():
        result = CreatePartitionsTopicResult(name=topic.name)
        await yielder.next()
        try:
            if named[topic.name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            ctx.authorize(AclOperation.ALTER, AclResource.TOPIC, topic.name)
            found = cache.image.topic(topic.name)
            if found is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} does not exist")
            added = await _replicas(topics, found, topic, allowed)
            allowed -= len(added)
            ctx.count_mutations(len(added))
            if not request.validate_only:
                await topics.add_partitions(found, added, deadline)
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    return CreatePartitionsResponse(results=results)


async def _refused(request: CreatePartitionsRequest, error: ProtocolError) -> CreatePartitionsResponse:
    code, message = error.code, str(error)
    return CreatePartitionsResponse(
        results=await mapped(
            request.topics,
            lambda topic: CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message),
        )
    )


async def _replicas(
    topics: TopicAdministration, topic: TopicInfo, wanted: CreatePartitionsTopic, allowed: int
) -> list[tuple[int, ...]]:
    """Return the brokers of each new partition. The request may still create `allowed` partitions.

    Raises INVALID_PARTITIONS, INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST, POLICY_VIOLATION.
    """
    present = topic.partition_count
    if wanted.count == present:
        raise ProtocolError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        message = (
            f"The topic {topic.name} currently has {present} partition(s); {wanted.count} would not be an increase."
        )
        raise ProtocolError(ErrorCode.INVALID_PARTITIONS, message)
    if topic.internal:
        message = f"{topic.name} is an internal topic; its number of partitions cannot be changed"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    more = wanted.count - present
    if more > allowed:
        message = f"a request may add at most {MAX_NEW_PARTITIONS} partitions, counted over all its topics"
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, message)
    factor = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        return await topics.place(more, factor)
    if len(wanted.assignments) != more:
        message = (
            f"Attempted to add {more} additional partition(s), but only {len(wanted.assignments)} assignment(s) "
            "were specified."
        )
        raise ProtocolError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    assigned = [tuple(entry.broker_ids) for entry in wanted.assignments]
    registered = await topics.registered()
    for number, ids in enumerate(assigned, present):
        check_replicas(topics, registered, number, ids, factor)
    return assigned


def bind(services: HandlerServices) -> Handler:
    """Return the handler of CreatePartitions."""
    return partial(handle, services.cache, services.topics)
