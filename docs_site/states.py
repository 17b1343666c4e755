"""Draw the state machines of groups, transactions and producers from their transition tables."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from docs_site import svg
from docs_site.markdown import table
from oncelog.client.consumer import classic_membership
from oncelog.client.consumer.classic_membership import MemberState
from oncelog.client.producer.transaction_states import LEGAL
from oncelog.coordinator.groups.classic.group import PREVIOUS, GroupState
from oncelog.coordinator.transactions.metadata import PREVIOUS_STATES, TransactionState

BOX_WIDTH, BOX_HEIGHT = 168, 40
STEP_X, STEP_Y = 236, 112
HEAD_LENGTH, HEAD_WIDTH = 10, 8
MARGIN = 64
BENDS = (0, 26, -26, 60, -60, 96, -96, 140, -140)
"""How far the middle of an edge may be from the straight line, in the order of preference."""

Cell = tuple[float, float]
Point = tuple[float, float]
S = TypeVar("S", bound=Enum)


@dataclass(frozen=True)
class Machine:
    """A state machine: its edges by name of the state, and the cell (column, row) of each state that is drawn."""

    title: str
    edges: frozenset[tuple[str, str]]
    cells: Mapping[str, Cell]
    left_out: frozenset[str] = frozenset()
    """States that are not drawn, because nothing leads to them or every state does."""


def _from_previous(previous: Mapping[S, frozenset[S]], name: str) -> frozenset[tuple[str, str]]:
    return frozenset((_name(old, name), _name(new, name)) for new, olds in previous.items() for old in olds)


def _name(state: Enum, attribute: str) -> str:
    return str(getattr(state, attribute))


GROUP = Machine(
    "States of a classic group",
    frozenset((old, new) for old, new in _from_previous(PREVIOUS, "value") if new != GroupState.DEAD.value),
    {"Empty": (0, 0), "PreparingRebalance": (1, 0), "CompletingRebalance": (2, 0), "Stable": (1.5, 1)},
    frozenset({"Dead"}),
)
TRANSACTION = Machine(
    "States of a transaction at its coordinator",
    _from_previous(PREVIOUS_STATES, "text"),
    {
        "Empty": (0, 0.8),
        "Ongoing": (1, 0.8),
        "PrepareCommit": (2, 0),
        "PrepareAbort": (2, 1.6),
        "CompleteCommit": (3, 0),
        "CompleteAbort": (3, 1.6),
    },
    frozenset({"Dead", "PrepareEpochFence"}),
)
PRODUCER = Machine(
    "States of a transactional producer",
    frozenset((old.value, new.value) for old, news in LEGAL.items() for new in news),
    {
        "uninitialized": (0, 0),
        "initializing": (1, 0),
        "ready": (2, 0),
        "in transaction": (2, 1),
        "prepared": (3, 2),
        "committing": (3, 0.6),
        "aborting": (1, 1.6),
        "abortable error": (2, 3),
    },
    frozenset({"fatal error"}),
)
MACHINES = {"group-states": GROUP, "transaction-states": TRANSACTION, "producer-states": PRODUCER}
"""The drawings by the name of their file."""


def page() -> str:
    """Return the page with the drawings and the tables."""
    return "\n".join(
        [
            "# State machines\n",
            "These diagrams are drawn from the tables that the code checks every transition against, unless the text "
            "says otherwise.\n",
            "## Groups { #groups }\n",
            f"![{GROUP.title}](group-states.svg)\n",
            "A classic consumer group. Every state can also change to Dead, when the group is deleted.\n",
            _table(GROUP),
            "## Members { #members }\n",
            "The steps of a classic group's member in the Python client. The client has no table of them; this is from "
            "the docstring of its module.\n",
            f"```text\n{_members()}\n```\n",
            "## Transactions { #transactions }\n",
            f"![{TRANSACTION.title}](transaction-states.svg)\n",
            "A transactional id at its coordinator. The numbers are those of the log's records. Kafka's states Dead "
            "and PrepareEpochFence have numbers, too, but no transition leads to them here.\n",
            _table(TRANSACTION, {state.text: state.value for state in TransactionState}),
            "## Producers { #producers }\n",
            f"![{PRODUCER.title}](producer-states.svg)\n",
            "A transactional producer of the Python client. Every state can also change to fatal error, which ends the "
            "producer.\n",
            _table(PRODUCER),
        ]
    )


def _members() -> str:
    """Return the diagram in the docstring of `classic_membership`."""
    paragraphs = (inspect.getdoc(classic_membership) or "").split("\n\n")
    (diagram,) = (each for each in paragraphs if MemberState.SYNCING.name in each and each.startswith("    "))
    return textwrap.dedent(diagram)


def _table(machine: Machine, numbers: Mapping[str, int] | None = None) -> str:
    rows = []
    for state in machine.cells:
        following = sorted(new for old, new in machine.edges if old == state)
        number = [str(numbers[state])] if numbers else []
        rows.append((*number, state, ", ".join(following)))
    return table((*(["number"] if numbers else []), "state", "may change to"), rows)


# -- drawing --------------------------------------------------------------------------------------------------------


def drawing(machine: Machine) -> str:
    """Return a machine as SVG."""
    centres = {name: (_centre(cell)) for name, cell in machine.cells.items()}
    parts = []
    lowest = max(y for _, y in centres.values())
    for name, (x, y) in centres.items():
        parts.append(
            f'<rect class="box" x="{x - BOX_WIDTH / 2:.1f}" y="{y - BOX_HEIGHT / 2:.1f}" width="{BOX_WIDTH}" '
            f'height="{BOX_HEIGHT}" rx="8"/>'
        )
        parts.append(svg.label(x, y + 5, name, anchor="middle"))
    for old, new in sorted(machine.edges):
        parts.append(
            _loop(centres[old], down=centres[old][1] == lowest)
            if old == new
            else _edge(old, new, centres, (new, old) in machine.edges)
        )
    width = max(x for x, _ in centres.values()) + BOX_WIDTH / 2 + MARGIN
    height = max(y for _, y in centres.values()) + BOX_HEIGHT / 2 + MARGIN
    return svg.document(width, height, parts, machine.title)


def _centre(cell: Cell) -> Point:
    return MARGIN + BOX_WIDTH / 2 + cell[0] * STEP_X, MARGIN + BOX_HEIGHT / 2 + cell[1] * STEP_Y


def _loop(centre: Point, *, down: bool) -> str:
    """Return an edge from a state to itself, above or below its box."""
    side = 1 if down else -1
    x, y = centre[0], centre[1] + side * BOX_HEIGHT / 2
    return _curve((x - 24, y), (x, y + side * 72), (x + 24, y))


def _edge(old: str, new: str, centres: Mapping[str, Point], both_ways: bool) -> str:
    start, end = centres[old], centres[new]
    others = [centre for name, centre in centres.items() if name not in (old, new)]
    bends = BENDS[1:] if both_ways else BENDS
    bend = next((each for each in bends if not _crosses(start, end, each, others)), bends[0])
    middle = _control(start, end, bend)
    first, last = _leave(start, middle), _leave(end, middle)
    return _curve(first, middle, last)


def _curve(start: Point, middle: Point, end: Point) -> str:
    """Return a curve with a head at its end."""
    length = math.dist(middle, end)
    along = ((end[0] - middle[0]) / length, (end[1] - middle[1]) / length)
    across = (-along[1] * HEAD_WIDTH / 2, along[0] * HEAD_WIDTH / 2)
    base = (end[0] - along[0] * HEAD_LENGTH, end[1] - along[1] * HEAD_LENGTH)
    return (
        f'<path class="line" d="M{start[0]:.1f} {start[1]:.1f} '
        f'Q{middle[0]:.1f} {middle[1]:.1f} {base[0]:.1f} {base[1]:.1f}"/>'
        f'<path class="head" d="M{end[0]:.1f} {end[1]:.1f} L{base[0] + across[0]:.1f} {base[1] + across[1]:.1f} '
        f'L{base[0] - across[0]:.1f} {base[1] - across[1]:.1f} z"/>'
    )


def _control(start: Point, end: Point, bend: float) -> Point:
    """Return the control point of a curve whose middle is `bend` to the left of the straight line."""
    length = math.dist(start, end)
    across = ((end[1] - start[1]) / length, -(end[0] - start[0]) / length)
    return (start[0] + end[0]) / 2 + 2 * bend * across[0], (start[1] + end[1]) / 2 + 2 * bend * across[1]


def _leave(centre: Point, towards: Point) -> Point:
    """Return where the line from a box's centre crosses its border."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    scale = min(
        BOX_WIDTH / 2 / abs(dx) if dx else math.inf,
        BOX_HEIGHT / 2 / abs(dy) if dy else math.inf,
    )
    return centre[0] + dx * scale, centre[1] + dy * scale


def _crosses(start: Point, end: Point, bend: float, others: list[Point]) -> bool:
    """Return whether a curve touches one of the other boxes."""
    return any(
        abs(x - box[0]) < BOX_WIDTH / 2 + 6 and abs(y - box[1]) < BOX_HEIGHT / 2 + 6
        for x, y in _points(start, _control(start, end, bend), end)
        for box in others
    )


def _points(start: Point, middle: Point, end: Point) -> Iterator[Point]:
    for step in range(41):
        t = step / 40
        a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t**2
        yield a * start[0] + b * middle[0] + c * end[0], a * start[1] + b * middle[1] + c * end[1]
