"""The assignors with which the leader of a classic group assigns the partitions (as Kafka's; KIP-54, 429).

An assignor is a pure function: (partitions by topic, topics by member, claims by member) -> partitions by member. Each
member's list is sorted. Range and round-robin follow the order of the members. The sticky assignors first balance: no
member could pass a partition, directly or through others, to a member that has two fewer. Then they move as few
partitions as possible.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from oncelog.protocol.topics import TopicPartition


class Claim(NamedTuple):
    """The partitions that a member reports to have, and in which generation (-1: unknown)."""

    partitions: Sequence[TopicPartition] = ()
    generation: int = -1


Assignor = Callable[
    [Mapping[str, int], Mapping[str, Sequence[str]], Mapping[str, Claim]], dict[str, list[TopicPartition]]
]


def range_assignor(
    partitions: Mapping[str, int], members: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """Assign each topic in contiguous ranges. The first members get one partition more if they are not a multiple."""
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
    """Assign all partitions of all topics one by one to the members that read the topic."""
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


def sticky_assignor(
    partitions: Mapping[str, int], members: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """Assign each partition to a member that reads its topic, with as few moves as the balance allows."""
    readers: dict[str, list[str]] = {}
    for member in sorted(members):
        for topic in members[member]:
            if partitions.get(topic, 0):
                readers.setdefault(topic, []).append(member)
    kept = _kept(partitions, members, claims)
    if len({frozenset(topics) for topics in members.values()}) == 1:
        _trim_to_share(kept, sum(partitions[topic] for topic in readers))
    held = {tp for found in kept.values() for tp in found}
    free = [(topic, index) for topic in readers for index in range(partitions[topic]) if (topic, index) not in held]
    _deal_out(kept, sorted(free, key=lambda tp: (len(readers[tp[0]]), tp)), readers)
    while _balance(kept, readers):
        pass
    return {member: sorted(found) for member, found in kept.items()}


def cooperative_sticky_assignor(
    partitions: Mapping[str, int], members: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """Assign as `sticky_assignor`, without the partitions that move: their owner revokes them and joins again."""
    result = sticky_assignor(partitions, members, claims)
    claimed: dict[TopicPartition, dict[str, int]] = {}
    for member, claim in claims.items():
        for tp in claim.partitions:
            claimed.setdefault(tp, {})[member] = claim.generation

    def free(tp: TopicPartition, member: str) -> bool:
        by = claimed.get(tp, {})
        return not by or (member in by and list(by.values()).count(by[member]) == 1)

    return {member: [tp for tp in found if free(tp, member)] for member, found in result.items()}


def _kept(
    partitions: Mapping[str, int], members: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]
) -> dict[str, set[TopicPartition]]:
    """Return the partitions that each member keeps: they exist, it reads them, and no other claim is as recent."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, claim in claims.items():
        for tp in claim.partitions:
            if tp[0] in members.get(member, ()) and tp[1] < partitions.get(tp[0], 0):
                generation, _ = best.get(tp, (-2, None))
                if claim.generation > generation:
                    best[tp] = (claim.generation, member)
                elif claim.generation == generation:
                    best[tp] = (generation, None)
    kept: dict[str, set[TopicPartition]] = {member: set() for member in members}
    for tp, (_, owner) in best.items():
        if owner is not None:
            kept[owner].add(tp)
    return kept


def _trim_to_share(kept: dict[str, set[TopicPartition]], total: int) -> None:
    """Leave each member its share, if all read the same topics. As few members as possible have one partition more."""
    share, more = divmod(total, len(kept))
    for member in sorted(kept, key=lambda member: (-len(kept[member]), member)):
        mine = kept[member]
        limit = share + (more > 0)
        more -= len(mine) > share and more > 0
        for tp in sorted(mine)[limit:]:
            mine.discard(tp)


def _deal_out(
    kept: dict[str, set[TopicPartition]], free: Sequence[TopicPartition], readers: Mapping[str, Sequence[str]]
) -> None:
    """Give each partition to the reader of its topic that has the fewest. Topics with few readers come first."""
    heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for tp in free:
        group = tuple(readers[tp[0]])
        heap = heaps.get(group)
        if heap is None:
            heap = heaps[group] = [(len(kept[member]), member) for member in group]
            heapq.heapify(heap)
        while heap[0][0] != len(kept[heap[0][1]]):  # it has more now, through another topic
            heapq.heapreplace(heap, (len(kept[heap[0][1]]), heap[0][1]))
        kept[heap[0][1]].add(tp)


def _balance(kept: dict[str, set[TopicPartition]], readers: Mapping[str, Sequence[str]]) -> bool:
    """Move partitions from one member, through others, to one with at least two fewer. Return whether any moved."""
    least = min(map(len, kept.values()))
    for giver in sorted(kept, key=lambda member: (-len(kept[member]), member)):
        if len(kept[giver]) - least < 2:
            return False
        path = _path(kept, readers, giver)
        for source, topic, target in reversed(path):
            moved = max(tp for tp in kept[source] if tp[0] == topic)
            kept[source].discard(moved)
            kept[target].add(moved)
        if path:
            return True
    return False


def _path(
    kept: Mapping[str, set[TopicPartition]], readers: Mapping[str, Sequence[str]], giver: str
) -> list[tuple[str, str, str]]:
    """Return the shortest chain of (from, topic, to) to a member with at least two partitions fewer; empty if none."""
    came: dict[str, tuple[str, str]] = {}
    layer = [giver]
    while layer:
        following = []
        for member in layer:
            for topic in sorted({tp[0] for tp in kept[member]}):
                for reader in readers[topic]:
                    if reader != giver and reader not in came:
                        came[reader] = (member, topic)
                        following.append(reader)
        poorest = min(following, key=lambda member: (len(kept[member]), member), default=None)
        if poorest is not None and len(kept[giver]) - len(kept[poorest]) >= 2:
            path = []
            target = poorest
            while target != giver:
                source, topic = came[target]
                path.append((source, topic, target))
                target = source
            return path[::-1]
        layer = following
    return []


ASSIGNORS: dict[str, Assignor] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
    "cooperative-sticky": cooperative_sticky_assignor,
}
"""By their names in Kafka's protocol."""

COOPERATIVE = frozenset({"cooperative-sticky"})
"""Assignors with which members keep their partitions during a rebalance (KIP-429)."""
