"""How to reach the cluster and the schema registry, and what the user says about formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from oncelog import errors
from oncelog.client.consumer.blocking import Consumer
from oncelog.client.serialization.registry import SchemaRegistry
from oncelog.tables.bounds import ALL, Range
from oncelog.tables.choosing import Wanted, chosen
from oncelog.tables.layout import Layout
from oncelog.tables.ranges import found_ranges, read

SAMPLE_OFFSETS = 100
"""How many offsets at the end of each partition a sample has."""
SAMPLE_PARTITIONS = 16
SAMPLE_BYTES = 1 << 24
"""The size at which a sample ends, after the records of one response."""
FAIL, NULL = BAD_RECORDS = ("fail", "null")


@dataclass(frozen=True)
class Source:
    """A cluster whose topics are read as tables."""

    bootstrap_servers: str | Sequence[str] | None
    config: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the consumers."""
    registry: SchemaRegistry | None = None
    keys: Mapping[str, Wanted] = field(default_factory=dict)
    values: Mapping[str, Wanted] = field(default_factory=dict)
    """What the user says about the formats, by topic."""
    bad_records: str = FAIL
    max_disorder: timedelta | None = None
    """How much older than a record before it a record may be at most."""

    def __post_init__(self) -> None:
        if self.bad_records not in BAD_RECORDS:
            raise errors.ConfigError(f"bad_records must be {' or '.join(BAD_RECORDS)}, not {self.bad_records!r}")
        if self.max_disorder is not None and self.max_disorder < timedelta(0):
            raise errors.ConfigError(f"max_disorder must not be negative, but is {self.max_disorder}")

    def consumer(self, group_id: str | None = None) -> Consumer:
        """Return a new consumer, by default without a group. It never skips records that were deleted meanwhile."""
        fixed = {"isolation_level": "read_committed", "auto_offset_reset": "none", "enable_auto_commit": False}
        return Consumer(
            self.bootstrap_servers,
            self.config,
            **{**fixed, **self.options, **({} if group_id is None else {"group_id": group_id})},
        )

    def stop_us(self, times: Range) -> int | None:
        """Return the time after whose first record no record of a range of times can follow, or None."""
        if times.high is None or self.max_disorder is None:
            return None
        return times.high + self.max_disorder // timedelta(microseconds=1)

    def layout(self, consumer: Consumer, topic: str) -> Layout:
        """Return the columns of a topic. Raises ConfigError, RegistryError and the consumer's errors."""
        samples: list[pa.Table] = []

        def sample(part: str) -> pa.Array:
            if not samples:
                samples.append(sampled(consumer, topic))
            return samples[0].column(part).combine_chunks()

        key, value = (
            chosen(part, topic, given.get(topic, Wanted()), self.registry, lambda part=part: sample(part))  # type: ignore[misc]
            for part, given in (("key", self.keys), ("value", self.values))
        )
        return Layout(key, value)


def sampled(consumer: Consumer, topic: str) -> pa.Table:
    """Return some of a topic's last records, as bytes, or if the ends have none, the first ones."""
    found = found_ranges(consumer, topic, ALL)
    some = dict(sorted(found.whole.items(), key=lambda item: item[1][0] - item[1][1])[:SAMPLE_PARTITIONS])
    ends = {tp: (max(start, end - SAMPLE_OFFSETS), end) for tp, (start, end) in some.items()}
    tables = _some(read(consumer, found._replace(ranges=ends)), SAMPLE_BYTES)
    if not tables:  # the ends are markers of transactions, or aborted
        tables = _some(read(consumer, found._replace(ranges=some)), 1)
    if not tables:
        empty = pa.array([], pa.binary())
        return pa.table({"key": empty, "value": empty})
    return pa.concat_tables(tables).slice(0, SAMPLE_PARTITIONS * SAMPLE_OFFSETS).select(["key", "value"])


def _some(tables: Iterator[pa.Table], size: int) -> list[pa.Table]:
    """Return tables until they have this many bytes."""
    found: list[pa.Table] = []
    while sum(each.nbytes for each in found) < size and (table := next(tables, None)) is not None:
        found.append(table)
    return found
