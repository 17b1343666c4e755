"""The verdict of `scripts/bounce` finds each kind of wrong record."""

from __future__ import annotations

import json

import pytest

from stories.bounces.reading import Reading, compare_reading
from stories.bounces.verdict import Found, History, compare, compare_copy, compare_replicas

RIGHT: Found = {0: [(0, "w.0"), (1, "w.2"), (3, "w.4")], 1: [(0, "w.1"), (2, "w.3")]}


def history() -> History:
    acknowledged = {"w.0": (0, 0), "w.1": (1, 0), "w.2": (0, 1), "w.3": (1, -1)}
    return History(acknowledged, aborted={"w.8"}, undecided=[["w.4"], ["w.5", "w.6"]], failed=["w.7"])


def test_output_of_a_writer_is_read() -> None:
    events = [
        {"name": "startup_complete"},
        {"name": "producer_send_success", "value": "w.0", "partition": 1, "offset": 7},
        {"name": "producer_send_error", "value": "w.1", "message": "timed out"},
        {"name": "aborted", "values": ["w.2"]},
        {"name": "undecided", "values": ["w.3", "w.4"]},
    ]
    read = History.read(["a line of a log", *map(json.dumps, events)])
    assert read == History({"w.0": (1, 7)}, {"w.2"}, [["w.3", "w.4"]], ["w.1: timed out"])


def test_records_in_their_places_are_right() -> None:
    verdict = compare(history(), RIGHT)
    assert verdict.good
    assert (verdict.acknowledged, verdict.read) == (4, 5)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({**RIGHT, 1: [(2, "w.3")]}, "lost"),
        ({**RIGHT, 1: [*RIGHT[1], (3, "w.3")]}, "duplicated"),
        ({**RIGHT, 1: [*RIGHT[1], (3, "w.2")]}, "duplicated"),
        ({**RIGHT, 0: [(0, "w.0"), (1, "w.2"), (2, "w.7"), (3, "w.4")]}, "reordered"),
        ({**RIGHT, 1: [(1, "w.1"), (2, "w.3")]}, "moved"),
        ({**RIGHT, 0: [*RIGHT[0], (4, "w.8")]}, "aborted"),
        ({**RIGHT, 0: [*RIGHT[0], (4, "w.6")]}, "torn"),
    ],
)
def test_wrong_records_are_found(found: Found, kind: str) -> None:
    verdict = compare(history(), found)
    assert not verdict.good
    assert getattr(verdict, kind) == 1
    assert any(example.startswith(kind) for example in verdict.examples)


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["a", "b", "b"], "lost"), (["a", "b", "b", "c", "c"], "duplicated"), (["b", "a", "b", "c"], "reordered")],
)
def test_wrong_copy_is_found(values: list[str], kind: str) -> None:
    source: Found = {0: list(enumerate(["a", "b", "b", "c"]))}
    assert compare_copy(source, source).good
    verdict = compare_copy(source, {0: list(enumerate(values))})
    assert getattr(verdict, kind) == 1
    assert sum(verdict[2:-1]) == 1


def test_replica_that_differs_is_found() -> None:
    assert compare_replicas("t-0", [("broker 1", b"abc"), ("broker 2", b"ab"), ("broker 3", b"")]) == []
    (problem,) = compare_replicas("t-0", [("broker 1", b"abc"), ("broker 2", b"ax")])
    assert problem == "t-0: the log of broker 2 differs from that of broker 1 at byte 1"


def event(name: str, **rest: object) -> str:
    return json.dumps({"timestamp": 1, "name": name, **rest})


def record(partition: int, offset: int, value: str) -> str:
    return event("record_data", topic="t", key=None, partition=partition, offset=offset, value=value)


def committed(partition: int, offset: int, success: bool = True) -> str:
    return event(
        "offsets_committed", success=success, offsets=[{"topic": "t", "partition": partition, "offset": offset}]
    )


ASSIGNED = event("partitions_assigned", partitions=[])
READ = [ASSIGNED, *(record(partition, offset, value) for partition in RIGHT for offset, value in RIGHT[partition])]


def test_member_that_has_read_all_is_right() -> None:
    verdict = compare_reading(history(), RIGHT, Reading.read(["a line of a log", *READ]))
    assert verdict.good
    assert (verdict.acknowledged, verdict.read) == (4, 5)


def test_member_may_read_uncommitted_offsets_again_after_an_assignment() -> None:
    reading = Reading.read([*READ, committed(1, 0), committed(1, 3, success=False), ASSIGNED, *READ[-2:]])
    assert compare_reading(history(), RIGHT, reading).good
    assert reading.resumed == 2


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (READ[:-1], "lost"),  # acknowledged
        ([*READ[:2], *READ[3:]], "lost"),  # in the middle
        ([*READ, READ[-1]], "duplicated"),  # without a new assignment
        ([*READ, committed(1, 1), ASSIGNED, READ[-2]], "duplicated"),  # although it was committed
        ([*READ[:-2], READ[-1], READ[-2]], "reordered"),
        ([*READ, record(1, 3, "w.9")], "moved"),  # not in the topic any more
        ([*READ, ASSIGNED, record(1, 2, "w.9"), ASSIGNED, READ[-1]], "moved"),
    ],
)
def test_wrong_reading_is_found(lines: list[str], kind: str) -> None:
    verdict = compare_reading(history(), RIGHT, Reading.read(lines))
    assert not verdict.good
    assert getattr(verdict, kind) >= 1
    assert any(example.startswith(kind) for example in verdict.examples)
