"""ElectLeaders (KIP-183, KIP-460): every partition has one replica, so its leader never changes.

Source: Kafka's `ReplicationControlManager.electLeaders`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from oncelog.broker.deadline import Deadline
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext

_PREFERRED, _UNCLEAN = 0, 1
_NO_LEADER = {
    _PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    _UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""The error of a partition without a leader, by the type of the election."""


def handle(broker: Broker, request: ElectLeadersRequest, _ctx: RequestContext) -> ElectLeadersResponse:
    """Return ELECTION_NOT_NEEDED for each named partition that has a leader.

    A request without topics means every partition; those that need no election are then left out, as in Kafka.
    """
    named, election_type = request.topic_partitions, request.election_type
    if named is not None and not named:
        return ElectLeadersResponse()
    try:
        Deadline(broker, request.timeout_ms).check()
        if election_type not in _NO_LEADER:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}")
    except ProtocolError as error:
        code, message = error.code, str(error)
        refused = [_results(topic.topic, topic.partitions, lambda _: (code, message)) for topic in named or ()]
        return ElectLeadersResponse(error_code=code, replica_election_results=refused)
    if named is None:
        wanted = [
            (topic.name, [index for index in range(topic.partition_count) if _offline(broker, topic.name, index)])
            for topic in broker.metadata.topics()
        ]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in named]
    return ElectLeadersResponse(
        replica_election_results=[
            _results(topic, indexes, partial(_elect, broker, topic, election_type)) for topic, indexes in wanted
        ]
    )


def _results(topic: str, indexes: list[int], elect: Callable[[int], tuple[ErrorCode, str]]) -> ReplicaElectionResult:
    results = []
    for index in indexes:
        code, message = elect(index)
        results.append(ElectLeadersPartitionResult(partition_id=index, error_code=code, error_message=message))
    return ReplicaElectionResult(topic=topic, partition_result=results)


def _elect(broker: Broker, topic: str, election_type: int, index: int) -> tuple[ErrorCode, str]:
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
