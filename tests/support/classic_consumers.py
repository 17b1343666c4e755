"""Consumers of the classic protocol whose metadata a coordinator can read, for groups that change the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncelog.protocol.messages.consumer_protocol import (
    AssignedPartition,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from oncelog.protocol.schema import encode_versioned, read_version
from support.groups import Member
from support.wire import code, until

REBALANCE_IN_PROGRESS = code("REBALANCE_IN_PROGRESS")
Named = Mapping[str, Iterable[int]]
"""Partitions by topic."""


def subscription(
    *topics: str, owned: Named | None = None, version: int = 3, generation: int = -1, user_data: bytes | None = None
) -> bytes:
    """Return what a consumer says of itself in JoinGroup."""
    parts = [TopicPartition(topic=name, partitions=list(some)) for name, some in (owned or {}).items()]
    message = ConsumerProtocolSubscription(
        topics=list(topics), owned_partitions=parts, generation_id=generation, user_data=user_data
    )
    return encode_versioned(message, version)


def assignment(parts: Named, *, version: int = 3, user_data: bytes | None = None) -> bytes:
    """Return what a leader sends to a member in SyncGroup."""
    named = [AssignedPartition(topic=name, partitions=list(some)) for name, some in parts.items()]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=named, user_data=user_data), version)


def read_assignment(data: bytes) -> dict[str, list[int]]:
    """Return the partitions in a response of SyncGroup."""
    if not data:
        return {}
    message = ConsumerProtocolAssignment.decode(memoryview(data)[2:], read_version(data))
    return {each.topic: sorted(each.partitions) for each in message.assigned_partitions}


class ClassicConsumer(Member):
    """A consumer of the classic protocol, which rejoins when the coordinator wants it to."""

    def __init__(self, bootstrap: str, group: str, *topics: str, assignor: str = "range", **options: Any) -> None:
        """`options` are those of `join_request`."""
        self.topics, self.assignor = topics, assignor
        self.owned: dict[str, list[int]] = {}
        super().__init__(bootstrap, group, protocols={assignor: subscription(*topics)}, **options)

    def rejoin(self) -> Any:
        """Join again, saying what it owns, and take over the assignment. Return the response to JoinGroup."""
        said = subscription(*self.topics, owned=self.owned, generation=self.generation)
        answer = self.join(protocols={self.assignor: said})
        if not answer.error_code:
            self.take_assignment(self.sync())
        return answer

    def take_assignment(self, answer: Any) -> None:
        """Take over what a response of SyncGroup assigns."""
        assert not answer.error_code, answer
        self.owned = read_assignment(answer.assignment)

    def catch_up(self) -> int:
        """Send a heartbeat, rejoin if it says so, and return the error code of the heartbeat."""
        error = self.heartbeat()
        if error == REBALANCE_IN_PROGRESS:
            answer = self.rejoin()
            assert not answer.error_code, answer
        return error


def classic_pair(bootstrap: str, group: str, topic: str, **options: Any) -> tuple[ClassicConsumer, ClassicConsumer]:
    """Create a stable group of two consumers of the classic protocol. The leader comes first, and owns partitions 0
    and 1 of the topic; the other owns 2 and 3.
    """
    members = [ClassicConsumer(bootstrap, group, topic, **options) for _ in range(2)]
    members[0].wire.find_coordinator(group, 0)
    assert not members[0].join().error_code
    members[0].sync({members[0].member_id: assignment({})})
    members[1].ask_to_join()
    until(members[0].heartbeat, lambda error: error == REBALANCE_IN_PROGRESS, "the member must rejoin")
    members[0].ask_to_join()
    for each in members:
        assert not each.take().error_code
    leader, other = sorted(members, key=lambda each: not each.leads)
    parts = {leader.member_id: assignment({topic: [0, 1]}), other.member_id: assignment({topic: [2, 3]})}
    leader.take_assignment(leader.sync(parts))
    other.take_assignment(other.sync())
    assert (leader.owned, other.owned) == ({topic: [0, 1]}, {topic: [2, 3]})
    return leader, other
