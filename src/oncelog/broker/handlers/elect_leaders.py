"""ElectLeaders (KIP-183, KIP-460): every partition has one replica, so its leader never changes.

Source: Kafka's `ReplicationControlManager.electLeaders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from oncelog.broker.metadata.loader import Deadline
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER, Operation
from oncelog.broker.requests.parts import Handler, Parts
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Turns
from oncelog.cluster.image import MetadataCache
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)

_PREFERRED, _UNCLEAN = 0, 1
_NO_LEADER = {
    _PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    _UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""The error of a partition without a leader, by the type of the election."""

Elected = tuple[ErrorCode, str]
"""The result of one partition's election, with Kafka's message."""


async def handle(
    cache: MetadataCache, partitions: Partitions, request: ElectLeadersRequest, ctx: RequestContext
) -> ElectLeadersResponse:
    """Return ELECTION_NOT_NEEDED for each named partition that has a leader.

    A request without topics means every partition. The response then omits partitions that have a leader, as in
    Kafka.
    """
    ctx.authorize(Operation.ALTER, *CLUSTER)
    named, election_type = request.topic_partitions, request.election_type
    if named is not None and not named:
        return ElectLeadersResponse()
    turns = Turns()
    try:
        Deadline(request.timeout_ms).check()
        if election_type not in _NO_LEADER:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}")
    except ProtocolError as error:
        code, message = error.code, str(error)
        refused = [
            await _results(topic.topic, topic.partitions, lambda _: (code, message), turns) for topic in named or ()
        ]
        return ElectLeadersResponse(error_code=code, replica_election_results=refused)
    wanted: Iterable[tuple[str, Iterable[int]]]
    if named is None:
        wanted = [(topic.name, range(topic.partition_count)) for topic in cache.image.topics()]
        elect = _elect_if_needed
    else:
        wanted = ((topic.topic, topic.partitions) for topic in named)
        elect = _elect
    return ElectLeadersResponse(
        replica_election_results=[
            await _results(topic, indexes, partial(elect, cache, partitions, topic, election_type), turns)
            for topic, indexes in wanted
        ]
    )


async def _results(
    topic: str, indexes: Iterable[int], elect: Callable[[int], Elected | None], turns: Turns
) -> ReplicaElectionResult:
    """Return the results of a topic. Omit the partitions for which `elect` returns None."""
    await turns.next()
    result = ReplicaElectionResult(topic=topic, partition_result=[])
    for index in indexes:
        await turns.next()
        elected = elect(index)
        if elected is not None:
            code, message = elected
            result.partition_result.append(
                ElectLeadersPartitionResult(partition_id=index, error_code=code, error_message=message)
            )
    return result


def _elect_if_needed(
    cache: MetadataCache, partitions: Partitions, topic: str, election_type: int, index: int
) -> Elected | None:
    """Return None for a partition that has a leader."""
    return _elect(cache, partitions, topic, election_type, index) if partitions.is_offline(topic, index) else None


def _elect(cache: MetadataCache, partitions: Partitions, topic: str, election_type: int, index: int) -> Elected:
    """Return why no leader was elected, with Kafka's message."""
    found = cache.image.topic(topic)
    if found is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
    if not 0 <= index < found.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
    if partitions.is_offline(topic, index):
        return _NO_LEADER[election_type], f"the log directory of {topic}-{index} is offline"
    return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."


def bind(parts: Parts) -> Handler:
    """Return the handler of ElectLeaders."""
    return partial(handle, parts.cache, parts.partitions)
