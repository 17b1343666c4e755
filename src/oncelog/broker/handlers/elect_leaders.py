"""ElectLeaders (KIP-183, KIP-460): every partition has one replica, so its leader never changes.

Source: Kafka's `ReplicationControlManager.electLeaders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from oncelog.broker.metadata.deadline import Deadline
from oncelog.broker.turns import Turns
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

_PREFERRED, _UNCLEAN = 0, 1
_NO_LEADER = {
    _PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    _UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""The error of a partition without a leader, by the type of the election."""

Elected = tuple[ErrorCode, str]
"""The result of one partition's election, with Kafka's message."""


async def handle(broker: Broker, request: ElectLeadersRequest, _ctx: RequestContext) -> ElectLeadersResponse:
    """Return ELECTION_NOT_NEEDED for each named partition that has a leader.

    A request without topics means every partition; those that need no election are then left out, as in Kafka.
    """
    named, election_type = request.topic_partitions, request.election_type
    if named is not None and not named:
        return ElectLeadersResponse()
    turns = Turns()
    try:
        Deadline(broker, request.timeout_ms).check()
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
        wanted = [(topic.name, range(topic.partition_count)) for topic in broker.metadata.topics()]
        elect = _elect_if_needed
    else:
        wanted = ((topic.topic, topic.partitions) for topic in named)
        elect = _elect
    return ElectLeadersResponse(
        replica_election_results=[
            await _results(topic, indexes, partial(elect, broker, topic, election_type), turns)
            for topic, indexes in wanted
        ]
    )


async def _results(
    topic: str, indexes: Iterable[int], elect: Callable[[int], Elected | None], turns: Turns
) -> ReplicaElectionResult:
    """Return the results of a topic. Leave out the partitions for which `elect` returns None."""
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


def _elect_if_needed(broker: Broker, topic: str, election_type: int, index: int) -> Elected | None:
    """Return None for a partition that has a leader."""
    return _elect(broker, topic, election_type, index) if _offline(broker, topic, index) else None


def _elect(broker: Broker, topic: str, election_type: int, index: int) -> Elected:
    """Return why no leader was elected, with Kafka's message."""
    found = broker.metadata.topic(topic)
    if found is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
    if not 0 <= index < found.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
    if _offline(broker, topic, index):
        return _NO_LEADER[election_type], f"{topic}-{index} is in a log directory that is offline"
    return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."


def _offline(broker: Broker, topic: str, index: int) -> bool:
    return broker.partitions.is_offline(topic, index)
