"""Draw a sequence diagram: the messages between participants, from top to bottom in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from docs_site import svg

LANE, ROW, TOP, TIMES = 252, 34, 90, 64
"""Width of a lane, height of a row, height of the lanes' names, and width of the times, in pixels."""
HEAD, CHARACTER = 8, 6.4
"""Length of an arrow's head, and the usual width of a small letter, in pixels."""


@dataclass(frozen=True)
class Arrow:
    """A message from one lane to another. A lost one ends halfway. `step` is its number in KIP-98."""

    at: float
    """The time in seconds. All rows use the same clock."""
    source: str
    target: str
    text: str
    lost: bool = False
    step: str = ""


@dataclass(frozen=True)
class Note:
    """An event within one lane. `wrong` marks it as an error."""

    at: float
    lane: str
    text: str
    step: str = ""
    wrong: bool = False


Row = Arrow | Note


def drawing(title: str, lanes: Sequence[str], rows: Sequence[Row]) -> str:
    """Return the rows as SVG, in their order. Times are printed in ms since the first row.

    The name of a lane may have two lines, with a line break between them.
    """
    bottom = TOP + ROW * len(rows)
    parts = [svg.label(16, 26, title, kind="title")]
    for lane in lanes:
        x = _x(lanes, lane)
        name, _, more = lane.partition("\n")
        parts += [svg.label(x, 52, name, anchor="middle"), svg.label(x, 68, more, anchor="middle", kind="small")]
        parts.append(svg.line(x, TOP - 14, x, bottom))
    for number, row in enumerate(rows, 1):
        y = TOP + ROW * number
        parts.append(svg.label(12, y, f"{(row.at - rows[0].at) * 1000:.0f} ms", kind="small"))
        parts += _arrow(lanes, row, y) if isinstance(row, Arrow) else _note(lanes, row, y)
    return svg.document(TIMES + LANE * len(lanes), bottom + 16, parts, title)


def _x(lanes: Sequence[str], lane: str) -> float:
    return TIMES + LANE * (lanes.index(lane) + 0.5)


def _arrow(lanes: Sequence[str], row: Arrow, y: float) -> list[str]:
    start, end = _x(lanes, row.source), _x(lanes, row.target)
    sign = 1 if end > start else -1
    place = (start + end) / 2 - row.lost * sign * LANE / 4
    text = _numbered(row)
    ground = svg.bar(place - CHARACTER * len(text) / 2, y - 22, CHARACTER * len(text), 15, "ground")
    words = ground + svg.label(place, y - 10, text, anchor="middle", kind="small")
    y -= 4
    if row.lost:
        middle = (start + end) / 2
        cross = [svg.line(middle - 5, y - side * 5, middle + 5, y + side * 5, "lost") for side in (1, -1)]
        return [words, svg.line(start, y, middle, y, "lost"), *cross]
    base = end - sign * HEAD
    head = f'<path class="head" d="M{end:.1f} {y:.1f} L{base:.1f} {y - 4:.1f} L{base:.1f} {y + 4:.1f} z"/>'
    return [words, svg.line(start, y, base, y), head]


def _note(lanes: Sequence[str], row: Note, y: float) -> list[str]:
    x, width = _x(lanes, row.lane), LANE - 12
    box = f'<rect class="box" x="{x - width / 2:.1f}" y="{y - 20:.1f}" width="{width}" height="26" rx="6"/>'
    return [box, svg.label(x, y - 3, _numbered(row), anchor="middle", kind="wrong" if row.wrong else "")]


def _numbered(row: Row) -> str:
    return f"{row.step}  {row.text}" if row.step else row.text
