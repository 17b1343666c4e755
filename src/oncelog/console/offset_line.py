"""Draw a part of a log as a line of offsets. No I/O.

From top to bottom: the positions of groups, the line with its spans and markers, the scale, the high watermark and
other limits, and a bracket for each open transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oncelog.console import svg
from oncelog.console.formats import number
from oncelog.console.log_spans import COMMIT, MARKERS, Span

WIDTH, SIDE = 1000.0, 14.0
BAND, ROW, TICKS = 46.0, 20.0, 24.0
SMALLEST = 1.2
"""The width of the narrowest span, so that a single record is visible at any scale."""
CELL = 4.0
"""From this width of an offset on, records are drawn one by one."""
MOST_SHAPES = 1500
LONGEST_NAME = 32


class Limit(NamedTuple):
    """A limit of the log: a short name, the offset, and what it means."""

    name: str
    offset: int
    about: str


class Position(NamedTuple):
    """The committed offset of a group: its name, the offset, and the address of its page."""

    name: str
    offset: int
    target: str


class Bracket(NamedTuple):
    """An open transaction: its first offset, a label, the address of its page, and whether it hangs."""

    offset: int
    label: str
    target: str
    hanging: bool


@dataclass(frozen=True)
class Line:
    """Everything that is drawn. The window is from `begin` to before `end`, the log from `start` to before `leo`.

    `read_to` is the offset up to which spans are known. `target` returns the address for an offset.
    """

    name: str
    begin: int
    end: int
    start: int
    lso: int
    hw: int
    leo: int
    read_to: int
    spans: Sequence[Span]
    positions: Sequence[Position]
    open: Sequence[Bracket]
    target: Callable[[int], str]

    @property
    def limits(self) -> list[Limit]:
        """Return the limits of the log, in order."""
        return [
            Limit("start", self.start, "the first offset in the log"),
            Limit("LSO", self.lso, "the last stable offset: read_committed consumers read up to here"),
            Limit("HW", self.hw, "the high watermark: all in-sync replicas have the records before it"),
            Limit("LEO", self.leo, "the log end offset, which the next record gets"),
        ]


class _Scale:
    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, max(end, begin + 1)
        self.unit = (WIDTH - 2 * SIDE) / (self.end - self.begin)

    def x(self, offset: int) -> float:
        return SIDE + (min(max(offset, self.begin), self.end) - self.begin) * self.unit

    def holds(self, offset: int) -> bool:
        return self.begin <= offset <= self.end


def _rows(places: Sequence[tuple[float, float]]) -> list[int]:
    """Return the lowest row for each label (left and right edge), so that none overlaps another."""
    ends: list[float] = []
    found = []
    for left, right in places:
        row = next((index for index, end in enumerate(ends) if end + 8 <= left), len(ends))
        ends[row : row + 1] = [right]
        found.append(row)
    return found


def _label_left(x: float, width: float) -> float:
    """Return the left edge of a label at `x` that stays inside the drawing."""
    return min(max(x - width / 2, 2.0), WIDTH - width - 2)


def shorten(name: str, most: int) -> str:
    """Return a name with at most so many characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def draw(line: Line) -> str:
    """Return the drawing of the window."""
    scale = _Scale(line.begin, line.end)
    shown = sorted((each for each in line.positions if scale.holds(each.offset)), key=lambda each: each.offset)
    names = [f"{shorten(each.name, LONGEST_NAME)} {number(each.offset)}" for each in shown]
    lefts = [_label_left(scale.x(each.offset), svg.width_of(name)) for each, name in zip(shown, names, strict=True)]
    rows = _rows([(left, left + svg.width_of(name)) for left, name in zip(lefts, names, strict=True)])
    top = 8 + ROW * (max(rows, default=0) + 1 if rows else 0)
    parts = [_unread(line, scale, top), *_band(line, scale, top)]
    for each, name, left, row in zip(shown, names, lefts, rows, strict=True):
        y = top - 8 - ROW * row - 6
        x = scale.x(each.offset)
        pin = svg.tag("path", class_="pin", d=f"M{x:.1f} {y + 4:.1f}V{top + BAND:.1f}")
        knob = svg.tag("circle", class_="knob", cx=x, cy=top, r=3.5)
        words = svg.text(left + svg.width_of(name) / 2, y, name, class_="group-label", text_anchor="middle")
        parts.append(svg.link(each.target, pin + knob + words, f"{name}: position of group {each.name}"))
    bottom = top + BAND
    parts += _ticks(scale, bottom)
    limits, height = _limits(line, scale, top, bottom + TICKS)
    parts += limits
    brackets, height = _brackets(line, scale, height)
    label = (
        f"Log of {line.name}, offsets {line.begin} to {line.end}: start {line.start}, last stable offset {line.lso}, "
        f"high watermark {line.hw}, log end offset {line.leo}"
    )
    return svg.drawing(WIDTH, height + 4, label, [_PATTERNS, *parts, *brackets], "line")


_PATTERNS = svg.tag(
    "defs",
    svg.tag(
        "pattern",
        svg.tag("path", class_="hatch-line", d="M0 0V7"),
        id="hatch",
        width=7,
        height=7,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    + svg.tag(
        "pattern",
        svg.tag("path", class_="dots-line", d="M0 0V4"),
        id="stripes",
        width=4,
        height=4,
        patternUnits="userSpaceOnUse",
    ),
)


def _unread(line: Line, scale: _Scale, top: float) -> str:
    """Return the empty line, what only read_uncommitted sees, and what followers do not have yet."""
    parts = [svg.tag("rect", class_="rail", x=SIDE, y=top, width=WIDTH - 2 * SIDE, height=BAND, rx=4)]
    for class_, begin, end, words in (
        ("unstable", line.lso, line.hw, "read_committed consumers do not see these offsets yet"),
        ("uncommitted", line.hw, line.leo, "Not all in-sync replicas have these offsets yet"),
        ("unread", max(line.read_to, line.begin), line.hw, "The console has not read these offsets yet"),
    ):
        left, right = scale.x(begin), scale.x(end)
        if right > left:
            deep = 7 if class_ == "unstable" else 0
            box = {"x": left, "y": top - deep, "width": right - left, "height": BAND + 2 * deep}
            parts.append(svg.tag("rect", svg.title(words), class_=class_, **box))
    return "".join(parts)


def _band(line: Line, scale: _Scale, top: float) -> list[str]:
    parts: list[str] = []
    drawn = 0.0
    for span in line.spans:
        left, right = scale.x(span.first), scale.x(span.last + 1)
        if span.last < line.begin or span.first >= line.end:
            continue
        if right < drawn + SMALLEST / 2 or len(parts) > MOST_SHAPES:  # it is hidden by its neighbour
            continue
        marker = span.state in MARKERS
        width = max(right - left - (0.8 if right - left > 3 else 0), SMALLEST)
        drawn = left + width
        shape = svg.tag(
            "rect",
            class_=f"span {'marker' if marker else span.state}",
            x=left,
            y=top - 5 if marker else top,
            width=width,
            height=BAND + 10 if marker else BAND,
            rx=2,
        )
        if span.state == "aborted":
            shape += svg.tag("rect", class_="hatched", x=left, y=top, width=width, height=BAND, fill="url(#hatch)")
        if span.state == "open":
            shape += svg.tag("rect", class_="striped", x=left, y=top, width=width, height=BAND, fill="url(#stripes)")
        if marker and width >= 7:
            sign = "✓" if span.state == COMMIT else "✕"
            shape += svg.text(left + width / 2, top + BAND / 2 + 4, sign, class_="sign", text_anchor="middle")
        elif not marker and scale.unit >= CELL and span.last > span.first:
            cells = range(max(span.first, line.begin) + 1, min(span.last, line.end - 1) + 1)
            path = "".join(f"M{scale.x(each):.1f} {top + 10}v{BAND - 20}" for each in cells)
            shape += svg.tag("path", class_="cells", d=path) if path else ""
        parts.append(svg.link(line.target(span.first), shape, describe(span)))
    return parts


def describe(span: Span) -> str:
    """Return a span in words."""
    where = f"offset {span.first}" if span.first == span.last else f"offsets {span.first} to {span.last}"
    who = "" if span.producer_id < 0 else f", producer {span.producer_id} epoch {span.producer_epoch}"
    what = {"plain": "no transaction", "ended": "transaction has ended, the outcome is further on"}
    return f"{where}: {what.get(span.state, span.state)}{who}"


def _ticks(scale: _Scale, top: float) -> list[str]:
    """Return the scale: at most about ten offsets that are round numbers."""
    length = scale.end - scale.begin
    step = next(
        factor * 10**power for power in range(20) for factor in (1, 2, 5) if length / (factor * 10**power) <= 11
    )
    parts = []
    for offset in range(-(-scale.begin // step) * step, scale.end + 1, step):
        x = scale.x(offset)
        parts.append(svg.tag("path", class_="tick", d=f"M{x:.1f} {top + 4:.1f}v5"))
        parts.append(svg.text(x, top + 20, number(offset), class_="tick-label", text_anchor="middle"))
    return parts


def _limits(line: Line, scale: _Scale, top: float, below: float) -> tuple[list[str], float]:
    """Return the limits with their labels, and the height that they need. Limits at one offset share a label."""
    together: dict[int, list[Limit]] = {}
    for limit in line.limits:
        if scale.holds(limit.offset):
            together.setdefault(limit.offset, []).append(limit)
    labels = [
        (offset, " · ".join(each.name for each in some) + f" {number(offset)}") for offset, some in together.items()
    ]
    lefts = [_label_left(scale.x(offset), svg.width_of(words) + 8) for offset, words in labels]
    rows = _rows([(left, left + svg.width_of(words) + 8) for left, (_, words) in zip(lefts, labels, strict=True)])
    parts = []
    for (offset, words), left, row in zip(labels, lefts, rows, strict=True):
        y = below + 16 + ROW * row
        x = scale.x(offset)
        class_ = "limit stable" if any(each.name == "LSO" for each in together[offset]) else "limit"
        about = "; ".join(f"{each.name} is {each.about}" for each in together[offset])
        inner = (
            svg.title(about)
            + svg.tag("path", d=f"M{x:.1f} {top - 7:.1f}V{y - 12:.1f}")
            + svg.tag("rect", x=left, y=y - 13, width=svg.width_of(words) + 8, height=17, rx=3)
            + svg.text(left + svg.width_of(words) / 2 + 4, y, words, text_anchor="middle")
        )
        parts.append(svg.tag("g", inner, class_=class_))
    return parts, below + 8 + ROW * (max(rows, default=-1) + 1)


def _brackets(line: Line, scale: _Scale, top: float) -> tuple[list[str], float]:
    parts = []
    height = top
    for each in line.open:
        if each.offset > line.end:
            continue
        left, right = scale.x(each.offset), max(scale.x(line.hw), scale.x(each.offset) + 4)
        height += 12
        left_end = f"M{left:.1f} {height - 6:.1f}v6" if each.offset >= line.begin else f"M{left:.1f} {height:.1f}"
        path = svg.tag("path", class_="bracket", d=f"{left_end}H{right:.1f}v-6")
        height += 16
        words = each.label
        at = _label_left((left + right) / 2, svg.width_of(words))
        inner = path + svg.text(at + svg.width_of(words) / 2, height, words, text_anchor="middle")
        class_ = "held hanging" if each.hanging else "held"
        parts.append(svg.tag("g", svg.link(each.target, inner, words), class_=class_))
        height += 6
    return parts, height


def draw_overview(line: Line) -> str:
    """Return the whole log as a thin line, with the window, the groups and what is held back."""
    scale = _Scale(line.start, line.leo)
    left, right = scale.x(line.begin), scale.x(line.end)
    unstable = scale.x(line.hw) - scale.x(line.lso)
    parts = [svg.tag("rect", class_="rail", x=SIDE, y=8, width=WIDTH - 2 * SIDE, height=10, rx=5)]
    if unstable > 0:
        parts.append(svg.tag("rect", class_="unstable", x=scale.x(line.lso), y=8, width=unstable, height=10))
    parts += [
        svg.tag("circle", svg.title(f"{each.name} {each.offset}"), class_="knob", cx=scale.x(each.offset), cy=13, r=3)
        for each in line.positions
    ]
    parts.append(svg.tag("rect", class_="window", x=left, y=3, width=max(right - left, 3.0), height=20, rx=3))
    label = f"The whole log, offsets {line.start} to {line.leo}. The window below shows {line.begin} to {line.end}"
    return svg.drawing(WIDTH, 26.0, label, parts, "overview")
