"""The tables of `oncelog top`: numbers, ages, lines for each table, and names that are not trusted."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from oncelog.cli.top_tables import View, age, change, count, share
from oncelog.client.discovery.topology import Partition, Topic
from oncelog.protocol.schema import NO_UUID
from oncelog.watch.readings import Picture, Requests, Trouble, WatchedBroker, WatchedTransaction

SUBJECTS = ("topics", "groups", "transactions", "brokers")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "-"), (0, "0"), (0.25, "0.2"), (7.0, "7"), (940, "940"), (9999, "9999"), (12_345, "12.3k")),
        *((4_500_000, "4.5M"), (2.5e9, "2.5G"), (7e12, "7.0T"), (3e18, "3000.0P"), (-12_345, "-12.3k")),
    ],
)
def test_count(value: float | None, text: str) -> None:
    assert count(value) == text


def test_change() -> None:
    assert [change(value) for value in (None, 0, 3, -2.5)] == ["-", "0", "+3", "-2.5"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0, "0s"), (59, "59s"), (61, "1m01s"), (3661, "1h01m"), (90_000, "1d01h")]
)
def test_age(seconds: int | None, text: str) -> None:
    assert age(None if seconds is None else seconds * 1000 + 999) == text


def test_lines_are_shared() -> None:
    assert share(10, [2, 50, 1]) == [2, 7, 1]
    assert share(3, [9, 9, 9, 9]) == [1, 1, 1, 0]
    assert share(100, [1, 2]) == [1, 2]
    assert share(-5, [1, 2]) == [0, 0]


def picture(topics: int = 3) -> Picture:
    names = [f"topic-{number}" for number in range(topics)]
    return Picture(
        at=0.0,
        time_ms=0,
        reachable=True,
        cluster_id="c",
        controller=1,
        brokers={1: WatchedBroker(1, "h", 9092, None)},
        topics={name: Topic(name, NO_UUID, False, {0: Partition(1, 0, (1,), (1,))}) for name in names},
        partitions={},
        unanswered={},
        holders={},
        groups={},
        group_readings={},
        transactions=(),
        all_transactions_known=True,
        listed_at=1.0,
        troubles=(),
        requests=Requests(),
    )


def drawn(found: Picture, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(View(found, SUBJECTS, 2.0, 900_000, on_screen=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [1, 20, 40, 79, 80, 120, 200])
@pytest.mark.parametrize("height", [1, 5, 24, 60])
def test_screen_of_any_size_is_filled_at_most(width: int, height: int) -> None:
    lines = drawn(picture(topics=500), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 9), "head and headings are always drawn; the terminal cuts them"


def test_rows_that_are_left_out_are_counted() -> None:
    assert any("TOPIC (" in line and " of 500)" in line for line in drawn(picture(topics=500), 100, 24))
    assert any(line.startswith("TOPIC  ") for line in drawn(picture(), 100, 24))


def test_names_cannot_change_the_terminal() -> None:
    evil = "\x1b]0;x\x07[bold]\n"
    item = WatchedTransaction(evil, "Ongoing", 1, 1)
    lines = drawn(replace(picture(), transactions=(item,), troubles=(Trouble("groups", evil),)), 120, 40)
    written = "\n".join(lines)
    assert "\x1b]" not in written
    assert "\x07" not in written
    assert r"\u001b]0;x\u0007[bold]\n" in written


def test_outage_is_named() -> None:
    assert "no broker can be reached" in drawn(replace(picture(), reachable=False), 100, 24)[1]
