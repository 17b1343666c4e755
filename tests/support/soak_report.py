"""Report the measurements of a soak: samples as CSV, a verdict, and a chart as SVG."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path

from docs_site import svg

WIDTH, HEIGHT, LEFT, GAP = 960, 150, 90, 40
"""Of a chart's panels, in pixels."""


@dataclass(frozen=True)
class Sample:
    """The state of the broker at one moment, and the measurements of the probes since the last sample."""

    seconds: float
    memory_mb: float
    """Anonymous resident memory, without the pages of files."""
    descriptors: int
    threads: int
    cpu: float
    """CPU time of the broker divided by the elapsed time: 1.0 is one core."""
    delay_ms: float
    """Median time of an ApiVersions request: the delay that the event loop causes for every client."""
    delay_max_ms: float
    produce_ms: float
    """Median time of a Produce request with one small record and acks=all."""
    produce_max_ms: float
    rate: float
    """Target records per second of each client."""


@dataclass(frozen=True)
class Verdict:
    """One judged quantity: its value in the reference window, its value at the end, and the limit at the end."""

    name: str
    before: float
    after: float
    limit: float

    @property
    def good(self) -> bool:
        """Return whether the value at the end is within the limit."""
        return self.after <= self.limit

    def __str__(self) -> str:
        word = "ok" if self.good else "TOO MUCH"
        return f"{self.name}: {self.before:,.2f} -> {self.after:,.2f} (at most {self.limit:,.2f}): {word}"


@dataclass(frozen=True)
class Plan:
    """The times of the calibration and of the two compared windows, in seconds of the run."""

    calibrated: float
    reference: tuple[float, float]
    end: tuple[float, float]


MORE_DESCRIPTORS, MORE_THREADS, LEAST_MS = 10, 4, 1.0


def plan_of(minutes: float) -> Plan:
    """The reference begins at minute five; the end is the last two minutes. A shorter run is divided in proportion."""
    whole = minutes * 60
    if minutes >= 12:
        return Plan(240, (300, 420), (whole - 120, whole))
    return Plan(0.35 * whole, (0.45 * whole, 0.65 * whole), (0.8 * whole, whole))


def judge(samples: Sequence[Sample], plan: Plan) -> list[Verdict]:
    """Compare the end of a run with its reference window.

    For descriptors and threads, compare the minimum of each window: misbehaving clients come and go, but a leak raises
    the minimum. Between two checks of retention, the logs hold a varying number of segments, so the minimum of a window
    varies by some percent. For other quantities, compare the median. Treat delays below a millisecond as equal.
    """

    def over(window: tuple[float, float], value: Callable[[Sample], float], of: Callable[..., float]) -> float:
        inside = [value(each) for each in samples if window[0] <= each.seconds <= window[1]]
        if not inside:
            raise ValueError(f"no samples between {window[0]:.0f} and {window[1]:.0f} s")
        return of(inside)

    def verdict(
        name: str, value: Callable[[Sample], float], of: Callable[..., float], most: Callable[[float], float]
    ) -> Verdict:
        before = over(plan.reference, value, of)
        return Verdict(name, before, over(plan.end, value, of), most(before))

    median = statistics.median
    return [
        verdict("memory (MB)", lambda s: s.memory_mb, median, lambda before: 1.2 * before),
        verdict("descriptors", lambda s: s.descriptors, min, lambda before: 1.1 * before + MORE_DESCRIPTORS),
        verdict("threads", lambda s: s.threads, min, lambda before: before + MORE_THREADS),
        verdict("event-loop delay (ms)", lambda s: s.delay_ms, median, lambda before: 2 * max(before, LEAST_MS)),
        verdict("produce latency (ms)", lambda s: s.produce_ms, median, lambda before: 2 * max(before, LEAST_MS)),
    ]


def write_csv(samples: Sequence[Sample], path: Path) -> None:
    """Return one line per sample, after a line with the field names."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Sample)])
        writer.writeheader()
        writer.writerows({name: round(value, 3) for name, value in asdict(each).items()} for each in samples)


PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("memory (MB)", ("memory_mb",)),
    ("descriptors, threads", ("descriptors", "threads")),
    ("event-loop delay (ms)", ("delay_ms", "delay_max_ms")),
    ("produce latency (ms)", ("produce_ms", "produce_max_ms")),
    ("CPU (cores)", ("cpu",)),
)
COLOURS = ("#1f6feb", "#d29922")


def chart(samples: Sequence[Sample], plan: Plan, title: str) -> str:
    """Return an SVG with a panel for each quantity over time. The compared windows are shaded."""
    end = max(samples[-1].seconds, 1)
    parts = [svg.label(LEFT, 22, title, kind="title")]
    for index, (name, columns) in enumerate(PANELS):
        top = 40 + index * (HEIGHT + GAP)
        most = max(getattr(each, column) for each in samples for column in columns) or 1
        for window in (plan.reference, plan.end):
            x, width = _x(window[0], end), _x(window[1], end) - _x(window[0], end)
            parts.append(f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" class="shade"/>')
        parts.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" class="line"/>')
        parts.append(svg.label(LEFT - 8, top + 12, f"{most:,.5g}", anchor="end"))
        parts.append(svg.label(LEFT - 8, top + HEIGHT, "0", anchor="end"))
        for number, column in enumerate(columns):
            points = " ".join(
                f"{_x(each.seconds, end):.1f},{top + HEIGHT * (1 - getattr(each, column) / most):.1f}"
                for each in samples
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number]}" stroke-width="1.5"/>')
            label = f"{name}: {column}" if number == 0 else column
            x = LEFT + 8 + 300 * number
            parts.append(f'<text x="{x}" y="{top - 6}" fill="{COLOURS[number]}">{escape(label)}</text>')
    bottom = 40 + len(PANELS) * (HEIGHT + GAP) - GAP + 18
    for tenth in range(0, 11, 2):
        at = end * tenth / 10
        parts.append(svg.label(_x(at, end), bottom, f"{at / 60:.1f} min", anchor="middle"))
    return svg.document(LEFT + WIDTH + 30, bottom + 12, parts, title)


def _x(seconds: float, end: float) -> float:
    return LEFT + WIDTH * min(seconds / end, 1)
