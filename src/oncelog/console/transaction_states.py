"""Draw the states of transactions at their coordinators, with each transactional id in its state. No I/O.

Source: Kafka's `TransactionState` and its `validPreviousStates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oncelog.console import svg
from oncelog.console.formats import number
from oncelog.watch.readings import OPEN_STATES

ONGOING = "Ongoing"
FINISHED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
ABOUT = {
    "Empty": "no transaction yet",
    "Ongoing": "records are being sent",
    "PrepareCommit": "the decision to commit is in the log; markers are being written",
    "PrepareAbort": "the decision to abort is in the log; markers are being written",
    "CompleteCommit": "all markers are written",
    "CompleteAbort": "all markers are written",
}
BOXES: dict[str, tuple[float, float]] = {
    "Empty": (10, 78),
    "Ongoing": (260, 78),
    "PrepareCommit": (530, 8),
    "CompleteCommit": (800, 8),
    "PrepareAbort": (530, 148),
    "CompleteAbort": (800, 148),
}
EDGES = (
    ("Empty", "Ongoing"),
    ("Ongoing", "PrepareCommit"),
    ("Ongoing", "PrepareAbort"),
    ("PrepareCommit", "CompleteCommit"),
    ("PrepareAbort", "CompleteAbort"),
)
BOX_WIDTH, BOX_HEIGHT = 190.0, 66.0
DOTS_A_ROW, MOST_DOTS = 14, 28
STEP = 12.0


class Dot(NamedTuple):
    """A transactional id in the drawing: its name, state, the address of its page, and whether it is old."""

    name: str
    state: str
    target: str
    old: bool


def draw(dots: Sequence[Dot]) -> str:
    """Return the drawing. A state with more than `MOST_DOTS` ids shows the first ones."""
    by_state: dict[str, list[Dot]] = {}
    for dot in dots:
        by_state.setdefault(dot.state, []).append(dot)
    parts = [_ARROW, *(_edge(*edge) for edge in EDGES), *_back()]
    parts += [_box(state, by_state.get(state, [])) for state in BOXES]
    counts = ", ".join(f"{len(some)} {state}" for state, some in sorted(by_state.items())) or "none"
    return svg.drawing(1000.0, 246.0, f"States of transactional ids: {counts}", parts, "states")


_ARROW = svg.tag(
    "defs",
    svg.tag(
        "marker",
        svg.tag("path", d="M0 0L8 4L0 8z", class_="arrow-head"),
        id="arrow",
        viewBox="0 0 8 8",
        refX=8,
        refY=4,
        markerWidth=7,
        markerHeight=7,
        orient="auto-start-reverse",
    ),
)


def _edge(source: str, target: str) -> str:
    x1, y1 = BOXES[source][0] + BOX_WIDTH, BOXES[source][1] + BOX_HEIGHT / 2
    x2, y2 = BOXES[target][0], BOXES[target][1] + BOX_HEIGHT / 2
    middle = (x1 + x2) / 2
    return svg.tag(
        "path", class_="edge", d=f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2 - 2} {y2}", marker_end="url(#arrow)"
    )


def _back() -> list[str]:
    """Return the edges from a finished transaction to the next one."""
    x, y = BOXES["Ongoing"]
    bottom = BOXES["CompleteAbort"][1] + BOX_HEIGHT
    middle = BOXES["CompleteAbort"][0] + BOX_WIDTH / 2
    below = f"M{middle} {bottom}V{bottom + 16}H{x + BOX_WIDTH / 2}V{y + BOX_HEIGHT + 2}"
    between = f"M{middle} {BOXES['CompleteCommit'][1] + BOX_HEIGHT}V{y + BOX_HEIGHT / 2}H{x + BOX_WIDTH + 2}"
    return [svg.tag("path", class_="edge next", d=path, marker_end="url(#arrow)") for path in (below, between)]


def _box(state: str, dots: list[Dot]) -> str:
    x, y = BOXES[state]
    used = " used" if dots else ""
    open_ = " busy" if dots and state in OPEN_STATES else ""
    inner = svg.title(f"{state}: {ABOUT[state]}")
    inner += svg.tag("rect", x=x, y=y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=7)
    inner += svg.text(x + 11, y + 20, state, class_="state-name")
    inner += svg.text(x + BOX_WIDTH - 11, y + 20, number(len(dots)), class_="state-count", text_anchor="end")
    for index, dot in enumerate(dots[:MOST_DOTS]):
        cx = x + 15 + STEP * (index % DOTS_A_ROW)
        cy = y + 37 + STEP * (index // DOTS_A_ROW)
        circle = svg.tag("circle", cx=cx, cy=cy, r=4.2, class_="dot old" if dot.old else "dot")
        inner += svg.link(dot.target, circle, f"{dot.name}: {dot.state}")
    if len(dots) > MOST_DOTS:
        inner += svg.text(
            x + BOX_WIDTH - 11, y + BOX_HEIGHT - 4, f"+{len(dots) - MOST_DOTS}", class_="more", text_anchor="end"
        )
    return svg.tag("g", inner, class_=f"state{used}{open_}")
