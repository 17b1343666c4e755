"""Compare what writers know about their records with what a reader finds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

SHOWN = 5
"""How many examples of each kind the verdict has."""

Place = tuple[int, int]
"""The partition of a record, and its offset: negative if the writer does not know it."""
UNKNOWN = -1
Found = dict[int, list[tuple[int, str]]]
"""Partition -> (offset, value) of its records, in their order."""


@dataclass
class History:
    """The outcomes that one writer has recorded. Values are WRITER.NUMBER, with increasing numbers."""

    acknowledged: dict[str, Place] = field(default_factory=dict)
    """Value -> place. A transactional writer adds the records of a transaction after its commit."""
    aborted: set[str] = field(default_factory=set)
    """The values of aborted transactions."""
    undecided: list[list[str]] = field(default_factory=list)
    """The values of each transaction whose outcome the writer does not know."""
    failed: list[str] = field(default_factory=list)
    """Why records were not acknowledged. Each of them may be in the log once."""

    def ends(self) -> dict[int, int]:
        """Return the offset of the last acknowledged record of each partition."""
        return last_offsets(self.acknowledged.values())

    @staticmethod
    def read(lines: Iterable[str]) -> History:
        """Read the output of a writer: JSON as Kafka's VerifiableProducer prints it. Skip other lines."""
        history = History()
        for line in lines:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            match event.get("name"):
                case "producer_send_success":
                    history.acknowledged[event["value"]] = (event["partition"], event["offset"])
                case "producer_send_error":
                    history.failed.append(f"{event['value']}: {event['message']}")
                case "aborted":
                    history.aborted.update(event["values"])
                case "undecided":
                    history.undecided.append(event["values"])
        return history


def last_offsets(places: Iterable[Place]) -> dict[int, int]:
    """Return the highest offset of each partition."""
    last: dict[int, int] = {}
    for partition, offset in places:
        last[partition] = max(offset, last.get(partition, offset))
    return last


class Verdict(NamedTuple):
    """The number of records of each kind."""

    acknowledged: int
    read: int
    lost: int
    """Acknowledged, but not found."""
    duplicated: int
    """Found again."""
    reordered: int
    """Found after a record that the same writer sent later to the same partition."""
    moved: int
    """Found in another place than the acknowledged one."""
    aborted: int
    """Found, although their transaction was aborted."""
    torn: int
    """Found, although another record of their transaction is missing."""
    examples: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Return whether each record is where it must be."""
        return not self.examples

    def __str__(self) -> str:
        counts = ", ".join(f"{number:,} {name}" for name, number in zip(self._fields[:-1], self, strict=False))
        return "\n  ".join([counts, *self.examples])


def compare(history: History, found: Found) -> Verdict:
    """Compare the history of all writers of a topic with the topic's records, read with read_committed."""
    places: dict[str, list[Place]] = {}
    for partition, records in found.items():
        for offset, value in records:
            places.setdefault(value, []).append((partition, offset))
    lost = [value for value in history.acknowledged if value not in places]
    duplicated = [f"{value} at {at}" for value, at in places.items() if len(at) > 1]
    moved = [
        f"{value} at {places[value][0]} instead of {place}"
        for value, place in history.acknowledged.items()
        if value in places and place[1] >= 0 and place not in places[value]
    ]
    aborted = sorted(history.aborted & places.keys())
    torn = [
        f"{seen[0]} without {next(value for value in values if value not in places)}"
        for values in history.undecided
        if (seen := [value for value in values if value in places]) and len(seen) < len(values)
    ]
    kinds = {
        "lost": lost,
        "duplicated": duplicated,
        "reordered": _reordered(found),
        "moved": moved,
        "aborted": aborted,
        "torn": torn,
    }
    examples = tuple(f"{kind}: {each}" for kind, every in kinds.items() for each in every[:SHOWN])
    total = sum(len(records) for records in found.values())
    return Verdict(len(history.acknowledged), total, *map(len, kinds.values()), examples)


def _reordered(found: Found) -> list[str]:
    """Return the records that are after a later one of the same writer."""
    wrong: list[str] = []
    for partition, records in found.items():
        by_writer: dict[str, list[tuple[int, int]]] = {}
        for offset, value in records:
            writer, _, number = value.rpartition(".")
            by_writer.setdefault(writer, []).append((int(number), offset))
        for writer, numbers in by_writer.items():
            wrong += [
                f"{writer}.{number} at {(partition, offset)} after {writer}.{before}"
                for (before, _), (number, offset) in pairwise(numbers)
                if number < before
            ]
    return wrong


def compare_copy(source: Found, copy: Found) -> Verdict:
    """Compare a copy with its source: each partition must have the same values in the same order."""
    examples: list[str] = []
    lost = duplicated = reordered = 0
    for partition in sorted(source.keys() | copy.keys()):
        values = [value for _, value in source.get(partition, [])]
        copied = [value for _, value in copy.get(partition, [])]
        if values == copied:
            continue
        wanted, got = Counter(values), Counter(copied)
        missing, extra = wanted - got, got - wanted
        lost, duplicated = lost + missing.total(), duplicated + extra.total()
        reordered += not missing and not extra
        place = next((n for n, pair in enumerate(zip(values, copied, strict=False)) if pair[0] != pair[1]), None)
        examples.append(
            f"partition {partition}: missing {[*missing][:SHOWN]}, extra {[*extra][:SHOWN]}, different from {place} on"
        )
    counts = (sum(map(len, source.values())), sum(map(len, copy.values())))
    return Verdict(*counts, lost, duplicated, reordered, 0, 0, 0, tuple(examples))


def compare_replicas(topic: str, replicas: Sequence[tuple[str, bytes]]) -> list[str]:
    """Return the replicas of a partition, given as (broker, log), whose log is not the beginning of the longest one."""
    longest = max(replicas, key=lambda each: len(each[1]))
    return [
        f"{topic}: the log of {broker} differs from that of {longest[0]} at byte {_first_difference(log, longest[1])}"
        for broker, log in replicas
        if not longest[1].startswith(log)
    ]


def _first_difference(one: bytes, other: bytes) -> int:
    return next(index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
