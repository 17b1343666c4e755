"""Assignors that leave partitions where they are (Kafka's StickyAssignor and CooperativeStickyAssignor; KIP-54, 429).

Pure. Balanced first: nobody could hand a partition on, directly or through others, to a member that has two fewer. Then
sticky: what need not move stays.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from oncelog.client.types import TopicPartition


class Claim(NamedTuple):
    """What a member says it had, and in which generation (-1: it does not know)."""

    partitions: Sequence[TopicPartition] = ()
    generation: int = -1


NO_CLAIM = Claim()


def sticky_assignor(
    partitions: Mapping[str, int], members: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """Every partition to one of the members that read its topic, with as few moves as the balance allows."""
    readers: dict[str, list[str]] = {}
    for member in sorted(members):
        for topic in members[member]:
            if partitions.get(topic, 0):
                readers.setdefault(topic, []).append(member)
    kept = _kept(partitions, members, claims)
    if len({frozenset(topics) for topics in members.values()}) == 1:
        _trim(kept, sum(partitions[topic] for topic in readers))
    held = {tp for found in kept.values() for tp in found}
    free = [(topic, index) for topic in readers for index in range(partitions[topic]) if (topic, index) not in held]
    _deal_out(kept, sorted(free, key=lambda tp: (len(readers[tp[0]]), tp)), readers)
    while _improve(kept, readers):
        pass
    return {member: sorted(found) for member, found in kept.items()}


def cooperative_sticky_assignor(
    partitions: Mapping[str, int], members: Mapping[str, Sequence[str]], claims: Mapping[str, Claim]
) -> dict[str, list[TopicPartition]]:
    """The same, but what has to change hands is given to nobody yet: its owner lets it go first, and joins again."""
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
    """What each member may keep: it is there, it reads it, and nobody claims it in the same or a later generation."""
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


def _trim(kept: dict[str, set[TopicPartition]], total: int) -> None:
    """Where all read the same, nobody keeps more than its share; as few as must have one more than the others."""
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
    """Each to the reader of its topic that has least; those that few may read come first."""
    heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for tp in free:
        group = tuple(readers[tp[0]])
        heap = heaps.get(group)
        if heap is None:
            heap = heaps[group] = [(len(kept[member]), member) for member in group]
            heapq.heapify(heap)
        while heap[0][0] != len(kept[heap[0][1]]):  # it has got more through another topic
            heapq.heapreplace(heap, (len(kept[heap[0][1]]), heap[0][1]))
        kept[heap[0][1]].add(tp)


def _improve(kept: dict[str, set[TopicPartition]], readers: Mapping[str, Sequence[str]]) -> bool:
    """Hand partitions on from one that has much, through others, to one that has at least two fewer; False if none."""
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
    """The shortest chain of (from, topic, to) that ends at a member with at least two fewer; empty if there is none."""
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
