"""What the members of one group said, in order, and whether it is right.

A member prints a line of JSON for each event: {"member": ..., "what": ..., ...}. All members of a group append to one
file, so its order is the order of events: a member reports that partitions were revoked before it lets the coordinator
know. The events are:

    assigned, revoked, lost    partitions: [[topic, partition], ...]
    read                       topic, partition, offsets
    committed                  topic, partition, offset: the commit was acknowledged
    refused                    error: a commit failed
    error                      error: the client reported it
    ended                      the member has left the group
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from oncelog.protocol.topics import TopicPartition

Event = dict[str, Any]


class GroupHistory:
    """The state of a group as its members see it. `problems()` returns what may not happen."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, str] = {}
        self.calls: dict[str, list[tuple[str, list[TopicPartition]]]] = defaultdict(list)
        """The calls of each member's listener."""
        self.assigned: Counter[TopicPartition] = Counter()
        self.times: Counter[tuple[TopicPartition, int]] = Counter()
        """How often each record was read."""
        self.committed: dict[TopicPartition, int] = {}
        self.refused: list[str] = []
        self.errors: list[str] = []
        self.ended: set[str] = set()
        self._read_to: dict[TopicPartition, int] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._shared: dict[tuple[TopicPartition, str], str] = {}
        self._wrong: list[str] = []
        self._apply: dict[str, Callable[[str, Event], None]] = {
            "assigned": self._assigned,
            "revoked": self._gone,
            "lost": self._gone,
            "read": self._read,
            "committed": self._committed,
            "refused": lambda member, event: self.refused.append(f"{member}: {event['error']}"),
            "error": lambda member, event: self.errors.append(f"{member}: {event['error']}"),
            "ended": lambda member, _: self.ended.add(member),
        }

    def add(self, lines: Iterable[str]) -> None:
        """Apply the next lines."""
        for line in lines:
            event = json.loads(line)
            self._apply[event["what"]](event["member"], event)

    def shares(self, members: Iterable[str]) -> dict[str, set[TopicPartition]]:
        """Return the partitions that each of these members has."""
        return {member: {place for place, owner in self.owners.items() if owner == member} for member in members}

    def of(self, member: str, what: str) -> list[TopicPartition]:
        """Return all partitions of a member's calls of this kind, in order."""
        return [place for kind, places in self.calls[member] if kind == what for place in places]

    def repeated(self) -> dict[tuple[TopicPartition, int], int]:
        """Return the records that were read more than once."""
        return {record: times for record, times in self.times.items() if times > 1}

    def problems(self) -> list[str]:
        """Return what was wrong: two owners at once, gaps, records of others' partitions, offsets that went back."""
        still = [f"{place} was given to {new} while {old} had it" for (place, old), new in self._shared.items()]
        late = [
            f"{owner} has ended and still has {place}" for place, owner in self.owners.items() if owner in self.ended
        ]
        return [*self._wrong, *still, *late]

    def _assigned(self, member: str, event: Event) -> None:
        places = _places(event)
        self.calls[member].append(("assigned", places))
        for place in places:
            old = self.owners.get(place)
            if old is not None:
                self._shared[place, old] = member
            self.owners[place] = member
            self.assigned[place] += 1
            self._positions.pop(place, None)

    def _gone(self, member: str, event: Event) -> None:
        places = _places(event)
        self.calls[member].append((event["what"], places))
        for place in places:
            if self.owners.get(place) == member:
                del self.owners[place]
            elif event["what"] == "lost":  # the coordinator had given it away; the member learns so later
                self._shared.pop((place, member), None)
            else:
                self._wrong.append(f"{member} gives {place} up, which it does not have")

    def _read(self, member: str, event: Event) -> None:
        place, offsets = (event["topic"], event["partition"]), event["offsets"]
        if self.owners.get(place) != member:
            self._wrong.append(f"{member} reads {place}, which {self.owners.get(place)} has")
        end = self._read_to.get(place, 0)
        first = self._positions.get(place)
        least, most = (self.committed.get(place, 0), end) if first is None else (first, first)
        if not least <= offsets[0] <= most or offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            self._wrong.append(f"{member} reads {offsets} of {place}, but the next offset is {least} to {most}")
        self._positions[place] = offsets[-1] + 1
        self._read_to[place] = max(end, offsets[-1] + 1)
        self.times.update((place, offset) for offset in offsets)

    def _committed(self, member: str, event: Event) -> None:
        place, offset = (event["topic"], event["partition"]), event["offset"]
        before = self.committed.get(place, 0)
        if offset < before:
            self._wrong.append(f"{member} commits {offset} of {place} after {before}")
        self.committed[place] = offset


def _places(event: Event) -> list[TopicPartition]:
    return [(topic, partition) for topic, partition in event["partitions"]]
