"""Draw the numbers of `scripts/bench --json FILE` as a bar chart.

    scripts/bench --chart [FILE.json [FILE.svg]]

Without arguments, draw benchmarks/results.json to docs/images/benchmark.svg.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from docs_site import svg

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results.json"
CHART = ROOT / "docs" / "images" / "benchmark.svg"
KAFKA, OURS = "Apache Kafka", "oncelog"
WIDTH, LEFT, RIGHT, TOP = 760, 250, 96, 86
BAR, BETWEEN, AFTER = 15, 3, 14
"""Height of a bar, space between the two bars of a row and after a row, in pixels."""


class Shown(NamedTuple):
    """A row of the chart: its name in the results, its label, and the unit of its numbers."""

    row: str
    label: str
    unit: str


MORE = (
    Shown("produce 100 B, default batches", "produce 100 B, default batches", "records/s"),
    Shown("produce 100 B, 64 KiB batches, linger 5", "produce 100 B, 64 KiB batches", "records/s"),
    Shown("produce 1 KiB, 128 KiB batches", "produce 1 KiB, 128 KiB batches", "MB/s"),
    Shown("transactions of 100 ms, 100 B", "transactions of 100 ms, 100 B", "records/s"),
    Shown("consume 1 KiB", "consume 1 KiB", "MB/s"),
)
"""Rows in which more is better."""

LESS = (
    Shown("end-to-end latency, mean", "end-to-end latency, mean", "ms"),
    Shown("ready after start", "ready after start", "s"),
    Shown("resident memory after the load", "memory after the load", "MB"),
)
"""Rows in which less is better."""


def chart(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the chart of the results as SVG. Each row has a scale of its own."""
    medians = results["medians"]
    parts = [
        svg.label(20, 28, "oncelog and Apache Kafka 4.3.1, driven by Kafka's tools on one machine", kind="title"),
        svg.bar(20, 42, 12, 12, "first"),
        svg.label(38, 53, OURS),
        svg.bar(120, 42, 12, 12, "second"),
        svg.label(138, 53, KAFKA),
    ]
    y = float(TOP)
    for title, rows in (("More is better", MORE), ("Less is better", LESS)):
        parts.append(svg.label(20, y, title, kind="small"))
        y += 10
        for shown in rows:
            values = {name: medians[name][shown.row] for name in (OURS, KAFKA)}
            parts.append(svg.label(LEFT - 12, y + BAR + 6, shown.label, anchor="end"))
            for name, kind in ((OURS, "first"), (KAFKA, "second")):
                width = (WIDTH - LEFT - RIGHT - 40) * values[name] / max(values.values())
                parts.append(svg.bar(LEFT, y, width, BAR, kind))
                parts.append(svg.label(LEFT + width + 6, y + BAR - 3, f"{_number(values[name])} {shown.unit}"))
                y += BAR + BETWEEN
            y += AFTER - BETWEEN
        y += AFTER
    return svg.document(WIDTH, y, parts, "Benchmark of oncelog beside Apache Kafka 4.3.1")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench --chart", description="Draw results as SVG.")
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("output", type=Path, nargs="?", default=CHART)
    arguments = parser.parse_args()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(chart(json.loads(arguments.results.read_text())))
    print(arguments.output)


if __name__ == "__main__":
    main()
