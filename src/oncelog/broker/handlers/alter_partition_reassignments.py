"""AlterPartitionReassignments (KIP-455): accept only the replicas that a partition already has.

Source: Kafka's `ReplicationControlManager.alterPartitionReassignments`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from oncelog.broker.metadata.loader import Deadline
from oncelog.broker.metadata.topics import TopicAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

Refusal = tuple[ErrorCode, str]
"""An error code and its message."""


async def handle(
    cache: MetadataCache, topics: TopicAdministration, request: AlterPartitionReassignmentsRequest, ctx: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Return an error for each partition that cannot be assigned as requested.

    Raises ProtocolError if the metadata cannot be read.
    """
    ctx.authorize(AclOperation.ALTER, *CLUSTER)
    if not request.topics:
        return AlterPartitionReassignmentsResponse()
    answer = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change
    )
    late: Refusal | None = None
    try:
        Deadline(request.timeout_ms).check()
    except ProtocolError as error:
        late = error.code, str(error)
        answer.error_code, answer.error_message = late
    registered = {} if late else await topics.registered()
    yielder = Yielder()
    for topic in request.topics:
        await yielder.next()
        results = []
        for wanted in topic.partitions:
            await yielder.next()
            result = ReassignablePartitionResponse(partition_index=wanted.partition_index)
            refused = late or _refusal(cache.image, registered, topic.name, wanted)
            if refused is not None:
                result.error_code, result.error_message = refused
            results.append(result)
        answer.responses.append(ReassignableTopicResponse(name=topic.name, partitions=results))
    return answer


def _refusal(
    image: MetadataImage, registered: Collection[int], topic: str, wanted: ReassignablePartition
) -> Refusal | None:
    """Return why a partition cannot be assigned as requested, None if it can."""
    found = image.topic(topic)
    if found is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}."
    index, replicas = wanted.partition_index, wanted.replicas
    if not 0 <= index < found.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}."
    if replicas is None:
        return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
    if tuple(replicas) != found.partitions[index].replicas:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, _why_invalid(registered, replicas)
    return None


def _why_invalid(registered: Collection[int], replicas: list[int]) -> str:
    """Return why a partition cannot have these replicas, with Kafka's message if it has one.

    A broker that is down remains registered, so it may be named.
    """
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    former = None
    for broker in sorted(replicas):
        if broker not in registered:
            return f"The manual partition assignment includes broker {broker}, but no such broker is registered."
        if broker == former:
            return f"The manual partition assignment includes the broker {broker} more than once."
        former = broker
    return "This version cannot move replicas to other brokers."


def bind(services: HandlerServices) -> Handler:
    """Return the handler of AlterPartitionReassignments."""
    return partial(handle, services.cache, services.topics)
