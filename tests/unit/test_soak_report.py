"""The verdict of the soak: changes that it must report, and changes that it must ignore."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.soak_report import Sample, chart, judge, plan_of, write_csv

PLAN = plan_of(30)
CALM = Sample(0, 100, 60, 8, 0.5, 2, 9, 3, 12, 50)


def run(end: Sample) -> list[Sample]:
    """Return a calm half hour whose last two minutes are like `end`."""
    return [replace(end if at >= 1680 else CALM, seconds=at) for at in range(0, 1801, 5)]


def test_windows_are_the_fifth_and_the_last_minute_and_fit_in_a_short_run() -> None:
    assert (PLAN.reference, PLAN.end) == ((300, 420), (1680, 1800))
    for minutes in (0.5, 2, 11, 12, 60):
        plan = plan_of(minutes)
        assert plan.calibrated <= plan.reference[0] < plan.reference[1] <= plan.end[0] < plan.end[1] == minutes * 60


@pytest.mark.parametrize(
    ("end", "bad"),
    [
        ({}, []),
        ({"memory_mb": 119, "descriptors": 75, "threads": 10, "delay_ms": 3.9, "produce_ms": 5.9}, []),
        ({"memory_mb": 10, "descriptors": 1, "threads": 1, "delay_ms": 0.1}, []),
        ({"memory_mb": 121}, ["memory (MB)"]),
        ({"descriptors": 80}, ["descriptors"]),
        ({"threads": 15}, ["threads"]),
        ({"delay_ms": 4.1}, ["event-loop delay (ms)"]),
        ({"produce_ms": 6.1}, ["produce latency (ms)"]),
        ({"delay_max_ms": 900, "cpu": 1}, []),
    ],
)
def test_verdicts_of_the_report(end: dict[str, float], bad: list[str]) -> None:
    assert [each.name for each in judge(run(replace(CALM, **end)), PLAN) if not each.good] == bad  # type: ignore[arg-type]


def test_changing_connections_are_not_a_leak() -> None:
    samples = [replace(each, descriptors=60 + (500 if index % 2 else 0)) for index, each in enumerate(run(CALM))]
    assert all(each.good for each in judge(samples, PLAN))


def test_run_without_samples_in_a_window_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples between 1680 and 1800 s"):
        judge([replace(CALM, seconds=310)], PLAN)


def test_samples_are_written_as_csv_and_drawn_as_svg(tmp_path: Path) -> None:
    samples = run(CALM)
    write_csv(samples, tmp_path / "soak.csv")
    lines = (tmp_path / "soak.csv").read_text().splitlines()
    assert lines[0].startswith("seconds,memory_mb,descriptors,threads,")
    assert len(lines) == 1 + len(samples)
    drawn = ElementTree.fromstring(chart(samples, PLAN, "a < b"))
    assert len([each for each in drawn.iter() if each.tag.endswith("polyline")]) == 8
    assert "a < b" in "".join(drawn.itertext())
