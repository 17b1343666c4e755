"""ElectLeaders (KIP-183, KIP-460): let preferred leaders lead, or elect replicas that are not in sync.

Source: Kafka's `ReplicationControlManager.electLeaders`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from oncelog.broker.metadata.controller import Controller
from oncelog.broker.metadata.loader import Deadline
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import Yielder
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.topics import NO_LEADER
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)
from oncelog.protocol.topics import TopicPartition

_PREFERRED, _UNCLEAN = 0, 1
_NO_LEADER = {
    _PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    _UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""The error of a partition without a leader, by the type of the election."""

Elected = tuple[ErrorCode, str]
"""The result of one partition's election, with Kafka's message."""


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """The handler, with the services that it uses."""

    cache: MetadataCache
    partitions: Partitions
    controller: Controller

    async def handle(self, request: ElectLeadersRequest, ctx: RequestContext) -> ElectLeadersResponse:
        """Return one result for each named partition.

        A request without topics means every partition. The response then omits partitions that need no election, as in
        Kafka. Only the controller elects. Other brokers return NOT_CONTROLLER if an election is needed.
        """
        ctx.authorize(AclOperation.ALTER, *CLUSTER)
        named, election_type = request.topic_partitions, request.election_type
        if named is not None and not named:
            return ElectLeadersResponse()
        yielder = Yielder()
        wanted: Iterable[tuple[str, Sequence[int]]]
        if named is None:
            wanted = [(topic.name, range(topic.partition_count)) for topic in self.cache.image.topics()]
        else:
            wanted = [(topic.topic, topic.partitions) for topic in named]
        needed: set[TopicPartition] = set()
        try:
            Deadline(request.timeout_ms).check()
            if election_type not in _NO_LEADER:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}")
            for topic, indexes in wanted:
                for index in indexes:
                    await yielder.next()
                    if self._obstacle(topic, index, election_type) is None:
                        needed.add((topic, index))
            if needed:
                await self.controller.elect(needed, unclean=election_type == _UNCLEAN)
        except ProtocolError as error:
            code, message = error.code, str(error)
            refused = [
                await _results(topic.topic, topic.partitions, lambda _, __: (code, message), yielder)
                for topic in named or ()
            ]
            return ElectLeadersResponse(error_code=code, replica_election_results=refused)

        def elected(topic: str, index: int) -> Elected | None:
            result = self._elected(topic, index, election_type, tried=(topic, index) in needed)
            return None if named is None and result[0] == ErrorCode.ELECTION_NOT_NEEDED else result

        results = [await _results(topic, indexes, elected, yielder) for topic, indexes in wanted]
        return ElectLeadersResponse(replica_election_results=results)

    def _obstacle(self, topic: str, index: int, election_type: int) -> Elected | None:
        """Return why no election is possible or needed, with Kafka's message. Return None if one is."""
        if self.cache.image.topic(topic) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
        info = self.cache.image.partition(topic, index)
        if info is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
        if len(info.replicas) == 1 and self.partitions.is_offline(topic, index):
            return _NO_LEADER[election_type], f"the log directory of {topic}-{index} is offline"
        if info.leader == info.replicas[0] or (election_type == _UNCLEAN and info.leader != NO_LEADER):
            return ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
        return None

    def _elected(self, topic: str, index: int, election_type: int, *, tried: bool) -> Elected:
        """Return the result of one partition, after the controller has `tried` to elect its leader, or has not."""
        obstacle = self._obstacle(topic, index, election_type)
        if obstacle is None:
            return _NO_LEADER[election_type], f"no replica of {topic}-{index} can be elected"
        done = tried and obstacle[0] == ErrorCode.ELECTION_NOT_NEEDED
        return (ErrorCode.NONE, "") if done else obstacle


async def _results(
    topic: str, indexes: Iterable[int], elect: Callable[[str, int], Elected | None], yielder: Yielder
) -> ReplicaElectionResult:
    """Return the results of a topic. Omit the partitions for which `elect` returns None."""
    await yielder.next()
    result = ReplicaElectionResult(topic=topic, partition_result=[])
    for index in indexes:
        await yielder.next()
        elected = elect(topic, index)
        if elected is not None:
            code, message = elected
            result.partition_result.append(
                ElectLeadersPartitionResult(partition_id=index, error_code=code, error_message=message or None)
            )
    return result


def bind(services: HandlerServices) -> Handler:
    """Return the handler of ElectLeaders."""
    return ElectLeaders(services.cache, services.partitions, services.controller).handle
