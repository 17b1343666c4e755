"""What a group member has read while brokers were killed, as Kafka's VerifiableConsumer prints it with --verbose."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stories.bounces.verdict import SHOWN, Found, History, Place, Verdict, last_offsets


@dataclass
class Reading:
    """The records of a group member, and those that it should not have read again."""

    values: dict[Place, str] = field(default_factory=dict)
    """Place -> value, of each record."""
    again: list[str] = field(default_factory=list)
    """Records that it read again, although their offsets were committed, or without a new assignment."""
    changed: list[str] = field(default_factory=list)
    """Records that had another value when it read them again."""
    backward: list[str] = field(default_factory=list)
    """Records that are before the previous one of their partition, and that it had not read before."""
    resumed: int = 0
    """Records that it read again after a new assignment, because their offsets were not committed. This is right."""
    _last: dict[int, int] = field(default_factory=dict)
    """Partition -> the last offset since its assignment."""
    _committed: dict[int, int] = field(default_factory=dict)

    @staticmethod
    def read(lines: Iterable[str]) -> Reading:
        """Read the output of VerifiableConsumer. Skip lines that are no events."""
        reading = Reading()
        for line in lines:
            if line.startswith("{"):
                reading._add(json.loads(line))
        return reading

    def _add(self, event: dict[str, Any]) -> None:
        match event.get("name"):
            case "partitions_assigned":
                self._last.clear()
            case "record_data":
                self._add_record((event["partition"], event["offset"]), event["value"])
            case "offsets_committed" if event["success"]:
                for each in event["offsets"]:
                    self._committed[each["partition"]] = each["offset"]

    def _add_record(self, place: Place, value: str) -> None:
        partition, offset = place
        before = self._last.get(partition, -1)
        self._last[partition] = offset
        if place not in self.values:
            if offset <= before:
                self.backward.append(f"{value} at {place} after offset {before}")
        elif self.values[place] != value:
            self.changed.append(f"{value} at {place}, before {self.values[place]}")
        elif offset <= before or offset < self._committed.get(partition, 0):
            self.again.append(f"{value} at {place}, committed {self._committed.get(partition)}")
        else:
            self.resumed += 1
        self.values[place] = value

    def reaches(self, ends: dict[int, int]) -> bool:
        """Return whether it has read up to these offsets, given for each partition."""
        mine = self.ends()
        return all(mine.get(partition, -1) >= offset for partition, offset in ends.items())

    def ends(self) -> dict[int, int]:
        """Return the last offset of each partition."""
        return last_offsets(self.values)


def compare_reading(history: History, found: Found, reading: Reading) -> Verdict:
    """Compare what a group member has read with the topic, and with the acknowledged records.

    It may not have read the end of the topic, unless the records there are acknowledged.
    """
    ends = reading.ends()
    there = {(partition, offset): value for partition, records in found.items() for offset, value in records}
    kinds = {
        "lost": [
            f"{value} at {place}"
            for place, value in there.items()
            if place not in reading.values and (place[1] <= ends.get(place[0], -1) or value in history.acknowledged)
        ],
        "duplicated": reading.again,
        "reordered": reading.backward,
        "moved": reading.changed
        + [f"{value} at {place}" for place, value in reading.values.items() if there.get(place) != value],
    }
    examples = tuple(f"{kind}: {each}" for kind, every in kinds.items() for each in every[:SHOWN])
    return Verdict(len(history.acknowledged), len(reading.values), *map(len, kinds.values()), 0, 0, examples)
