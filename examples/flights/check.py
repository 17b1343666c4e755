"""Read the output, during the run and at the end, and compare it with pandas."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Self

import data
import pandas as pd
import pyarrow as pa
from rich import box
from rich.table import Table

from oncelog import Consumer


def partitions(topic: str) -> list[tuple[str, int]]:
    """Return all partitions of one of the demo's topics."""
    return [(topic, partition) for partition in range(data.PARTITIONS)]


class Watcher:
    """Count the committed rows of some topics as they arrive, in a thread of its own."""

    def __init__(self, brokers: str, topics: Sequence[str]) -> None:
        self._consumer = Consumer(
            brokers, isolation_level="read_committed", auto_offset_reset="earliest", enable_auto_commit=False
        )
        self._consumer.assign([part for topic in topics for part in partitions(topic)])
        self._counts: Counter[str] = Counter(dict.fromkeys(topics, 0))
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, "watcher")
        self._watching: Future[None] = Future()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for table in self._consumer.tables(timeout=0.2):
                for count in table["topic"].value_counts().to_pylist():
                    self._counts[count["values"]] += count["counts"]
                if self._stopping.is_set():
                    break

    def counts(self) -> dict[str, int]:
        """Return the number of rows so far, by topic. Raise what has ended the thread."""
        if self._watching.done():
            self._watching.result()
        return dict(self._counts)

    def __enter__(self) -> Self:
        self._watching = self._thread.submit(self._watch)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._thread.shutdown()
        self._consumer.close()


def read(brokers: str, topic: str, isolation_level: str = "read_committed") -> pa.Table:
    """Return all records of a topic that this isolation level shows."""
    parts = partitions(topic)
    tables = []
    with Consumer(
        brokers, isolation_level=isolation_level, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        while any(consumer.position(*part) < end for part, end in ends.items()):
            tables.extend(consumer.tables(timeout=0.2))
    return pa.concat_tables(tables)


class Result(NamedTuple):
    """The comparison of one topic with the expected rows of pandas. All fields are numbers of rows."""

    topic: str
    expected: int
    found: int
    lost: int
    duplicated: int
    different: int

    @property
    def right(self) -> bool:
        """Return whether the topic contains each row once and nothing else."""
        return self.expected == self.found and not (self.lost or self.duplicated or self.different)


def compare(topic: str, found: pd.DataFrame, expected: pd.DataFrame, keys: list[str]) -> Result:
    """Compare row by row and column by column. Rows are matched by their keys."""
    duplicated = int(found.duplicated(keys).sum())
    once = found.drop_duplicates(keys)
    joined = expected[keys].merge(once, how="left", on=keys, indicator=True)
    both = joined["_merge"] == "both"
    ours, theirs = joined.loc[both, expected.columns], expected[both.to_numpy()]
    same = (ours.to_numpy() == theirs.to_numpy()) | (ours.isna().to_numpy() & theirs.isna().to_numpy())
    strangers = len(once) - int(both.sum())
    different = int((~same.all(axis=1)).sum()) + strangers
    return Result(topic, len(expected), len(found), int((~both).sum()), duplicated, different)


def results(brokers: str) -> list[Result]:
    """Return one result for each topic."""
    wanted = [
        (data.FLIGHTS, data.flights(), ["id"]),
        (data.JOINED, data.expected_joined(), ["id"]),
        (data.DELAYS, data.expected_delays(), ["origin", "hour"]),
    ]
    return [
        compare(topic, data.rows(read(brokers, topic)["value"], expected), expected, keys)
        for topic, expected, keys in wanted
    ]


def table(found: Sequence[Result]) -> Table:
    """Return the closing table."""
    shown = Table(title="every flight exactly once? compared with pandas", box=box.SIMPLE_HEAD)
    shown.add_column("topic", no_wrap=True)
    for title in ("in", "out", "lost", "duplicated", "wrong"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    for result in found:
        verdict = "[green]right[/]" if result.right else "[bold red]WRONG[/]"
        shown.add_row(result.topic, *(f"{number:,}" for number in result[1:]), verdict)
    return shown
