"""Assign the partitions of topics to the members of a group. Pure functions (Kafka's `ConsumerGroupPartitionAssignor`).

`range` gives each member neighbouring partitions: the same numbers of each topic if all members subscribe to the same
topics, and these have equally many partitions. `uniform` balances the number of partitions. As far as that allows, it
leaves with each member what it has, and prefers partitions with a replica in the member's rack. Both give each
partition of a subscribed topic to exactly one subscriber.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from oncelog.coordinator.groups.topics import Racks

Partitions = Mapping[UUID, frozenset[int]]
Assignment = dict[str, dict[UUID, set[int]]]
"""Member id -> topic id -> partitions. Topics without a partition are absent."""


class Subscriber(NamedTuple):
    """A member: the ids of its topics, its instance id if it is static, what it was assigned before, and its rack."""

    topics: frozenset[UUID]
    instance_id: str | None = None
    before: Partitions = MappingProxyType({})
    rack: str | None = None


Members = Mapping[str, Subscriber]
Counts = Mapping[UUID, int]
"""Topic id -> number of partitions. Topics that do not exist are absent."""
RacksOf = Mapping[UUID, Racks]


def in_order(members: Members) -> list[str]:
    """Return the member ids: static members by their instance ids, then the others by their ids."""

    def key(member_id: str) -> tuple[bool, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, member_id if instance_id is None else instance_id

    return sorted(members, key=key)


def assign_range(members: Members, counts: Counts, racks: RacksOf) -> Assignment:
    """Assign neighbouring partitions (`RangeAssignor`)."""
    found: Assignment = {member_id: {} for member_id in members}
    for subscribers, topics in _by_subscribers(members, counts):
        for topic in topics:
            for place, (begin, end) in enumerate(_ranges(counts[topic], len(subscribers))):
                if begin < end:
                    found[subscribers[place]][topic] = set(range(begin, end))
    return found


def _ranges(count: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield where each part begins and ends. The first ones are longer by one if the count cannot be divided."""
    begin = 0
    for place in range(parts):
        end = begin + count // parts + (place < count % parts)
        yield begin, end
        begin = end


def _by_subscribers(members: Members, counts: Counts) -> list[tuple[list[str], list[UUID]]]:
    """Return the topics with the same subscribers, those with few subscribers first. Omit topics without any."""
    subscribers: dict[UUID, list[str]] = {}
    for member_id in in_order(members):
        for topic in members[member_id].topics & counts.keys():
            subscribers.setdefault(topic, []).append(member_id)
    found: dict[tuple[str, ...], list[UUID]] = {}
    for topic in sorted(subscribers):
        found.setdefault(tuple(subscribers[topic]), []).append(topic)
    return [(list(each), topics) for each, topics in sorted(found.items(), key=lambda entry: len(entry[0]))]


def assign_uniform(members: Members, counts: Counts, racks: RacksOf) -> Assignment:
    """Assign equally many partitions, with few moves (`UniformAssignor`)."""
    uniform = _Uniform(members, counts)
    uniform.keep()
    for subscribers, topics in uniform.topics:
        uniform.prefer_racks(subscribers, topics, racks)
        uniform.give_to_least(subscribers, topics)
    uniform.balance()
    return uniform.found


class _Uniform:
    """The assignment while it is built: what each member has, and what is free."""

    def __init__(self, members: Members, counts: Counts) -> None:
        self.topics = _by_subscribers(members, counts)
        self.found: Assignment = {member_id: {} for member_id in members}
        self._members = members
        self._loads = dict.fromkeys(in_order(members), 0)
        self._free = {topic: set(range(counts[topic])) for _, topics in self.topics for topic in topics}
        total = sum(map(len, self._free.values()))
        self._is_balanced = all(len(subscribers) == len(members) for subscribers, _ in self.topics)
        """All members subscribe to the same topics, so no member needs more than `_most`, and some one more."""
        self._most, self._extra = divmod(total, len(members)) if self._is_balanced and members else (total, 0)

    def keep(self) -> None:
        """Leave with each member what it had, but not more than its share."""
        for member_id in self._loads:
            member = self._members[member_id]
            had = (
                (topic, partition)
                for topic, partitions in member.before.items()
                if topic in member.topics
                for partition in sorted(partitions & self._free.get(topic, set()))
            )
            for topic, partition in had:
                if not self._may_keep(member_id):
                    break
                self._give(member_id, topic, partition)

    def _may_keep(self, member_id: str) -> bool:
        if self._loads[member_id] < self._most:
            return True
        if self._loads[member_id] == self._most and self._extra:
            self._extra -= 1
            return True
        return False

    def _give(self, member_id: str, topic: UUID, partition: int) -> None:
        self._free[topic].discard(partition)
        self.found[member_id].setdefault(topic, set()).add(partition)
        self._loads[member_id] += 1

    def prefer_racks(self, subscribers: Sequence[str], topics: Sequence[UUID], racks: RacksOf) -> None:
        """Give free partitions to members in the rack of a replica, but not more than the members' share."""
        in_rack: dict[str, list[tuple[int, int, str]]] = {}
        for order, member_id in enumerate(subscribers):
            rack = self._members[member_id].rack
            if rack is not None:
                in_rack.setdefault(rack, []).append((self._loads[member_id], order, member_id))
        for heap in in_rack.values():
            heapq.heapify(heap)
        for topic in topics:
            for partition, near in enumerate(racks.get(topic, ())) if in_rack else ():
                heaps = [in_rack[rack] for rack in near if rack in in_rack]
                if partition in self._free[topic] and heaps:
                    heap = min(heaps, key=lambda each: each[0])
                    load, order, member_id = heap[0]
                    if load < self._most:
                        heapq.heapreplace(heap, (load + 1, order, member_id))
                        self._give(member_id, topic, partition)

    def give_to_least(self, subscribers: Sequence[str], topics: Sequence[UUID]) -> None:
        """Give each free partition to the member that has the fewest."""
        heap = [(self._loads[member_id], order, member_id) for order, member_id in enumerate(subscribers)]
        heapq.heapify(heap)
        for topic in topics:
            for partition in sorted(self._free[topic]):
                load, order, member_id = heap[0]
                heapq.heapreplace(heap, (load + 1, order, member_id))
                self._give(member_id, topic, partition)

    def balance(self) -> None:
        """Move partitions from members with more to subscribers with at least two fewer, until there are none."""
        while not self._is_balanced:
            moves = [self._balance(subscribers, topics) for subscribers, topics in self.topics]
            self._is_balanced = not any(moves)

    def _balance(self, subscribers: Sequence[str], topics: Sequence[UUID]) -> bool:
        """Balance the partitions of topics with the same subscribers. Return whether any moved."""
        held = {
            member_id: [(topic, each) for topic in topics for each in sorted(self.found[member_id].get(topic, ()))]
            for member_id in subscribers
        }
        least = [(self._loads[member_id], order, member_id) for order, member_id in enumerate(subscribers)]
        most = [(-load, order, member_id) for load, order, member_id in least if held[member_id]]
        heapq.heapify(least)
        heapq.heapify(most)
        moved = False
        while most:
            load, order, member_id = most[0]
            if -load != self._loads[member_id] or not held[member_id]:
                heapq.heappop(most)
                if held[member_id]:
                    heapq.heappush(most, (-self._loads[member_id], order, member_id))
                continue
            few, place, taker = least[0]
            if few != self._loads[taker]:
                heapq.heapreplace(least, (self._loads[taker], place, taker))
                continue
            if -load - few < 2:
                break
            topic, partition = held[member_id].pop()
            self._take(member_id, topic, partition)
            self._give(taker, topic, partition)
            moved = True
        return moved

    def _take(self, member_id: str, topic: UUID, partition: int) -> None:
        self.found[member_id][topic].discard(partition)
        if not self.found[member_id][topic]:
            del self.found[member_id][topic]
        self._loads[member_id] -= 1


Assignor = Callable[[Members, Counts, RacksOf], Assignment]
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
"""By the names of `group.consumer.assignors`. The first one is the default."""
