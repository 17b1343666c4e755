"""Who reads what: the leader of a classic group divides the partitions (Kafka's RangeAssignor, RoundRobinAssignor).

Pure: (partitions by topic, topics by member, what each had) -> partitions by member. Every member's list is sorted.
Range and round-robin serve members in the order in which they come. The sticky ones are in `sticky`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from oncelog.client.consumer.sticky import Claim, cooperative_sticky_assignor, sticky_assignor
from oncelog.client.types import TopicPartition

Assignor = Callable[
    [Mapping[str, int], Mapping[str, Sequence[str]], Mapping[str, Claim]], dict[str, list[TopicPartition]]
]


def range_assignor(
    partitions: Mapping[str, int], members: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """Each topic in contiguous ranges over its members; the first get one more if it does not come out."""
    result: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for topic in sorted({topic for topics in members.values() for topic in topics}):
        readers = [member for member, topics in members.items() if topic in topics]
        count = partitions.get(topic, 0)
        each, more = divmod(count, len(readers))
        start = 0
        for index, member in enumerate(readers):
            size = each + (index < more)
            result[member] += [(topic, partition) for partition in range(start, start + size)]
            start += size
    return result


def round_robin_assignor(
    partitions: Mapping[str, int], members: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """All partitions of all topics, dealt out one by one to the members that read the topic."""
    result: dict[str, list[TopicPartition]] = {member: [] for member in members}
    names = list(members)
    turn = 0
    for topic in sorted({topic for topics in members.values() for topic in topics}):
        for partition in range(partitions.get(topic, 0)):
            while topic not in members[names[turn % len(names)]]:
                turn += 1
            result[names[turn % len(names)]].append((topic, partition))
            turn += 1
    return {member: sorted(found) for member, found in result.items()}


ASSIGNORS: dict[str, Assignor] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}
"""By the name that goes over the wire."""

COOPERATIVE = frozenset({"cooperative-sticky"})
"""Those that let members keep their partitions during a rebalance (KIP-429), where every member can."""
