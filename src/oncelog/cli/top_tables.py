"""Draw a `Picture` as tables that fit a terminal: columns by width, rows by height."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from oncelog.cli.common import printable
from oncelog.watch.document import coverage, rows_of
from oncelog.watch.readings import Picture

NO_SCREEN_ROWS = 20
"""Rows of each table if the output has no height."""
MOST_TROUBLES = 3
ALARM = "bold red"
WARNING = "yellow"


def count(value: float | None) -> str:
    """Return a number in at most six characters, such as 940, 12.3k or 4.5M."""
    if value is None:
        return "-"
    size = abs(value)
    if size < 10 and value != int(value):
        return f"{value:.1f}"
    for limit, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.1f}{unit}"
    return f"{value:.0f}"


def change(value: float | None) -> str:
    """Return a change per second with its sign."""
    return "-" if value is None else f"{'+' if value > 0 else ''}{count(value)}"


def age(ms: int | None) -> str:
    """Return a time span in its two largest units."""
    if ms is None:
        return "-"
    seconds = ms // 1000
    for unit, size, smaller, small in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // small:02d}{smaller}"
    return f"{seconds}s"


class Column(NamedTuple):
    """A column: its heading, the text of a row, and the narrowest terminal that shows it."""

    heading: str
    cell: Callable[[Any], str]
    from_width: int = 0
    justify: Literal["left", "right"] = "right"


def _name(of: Callable[[Any], str | None], heading: str, from_width: int = 0) -> Column:
    return Column(heading, lambda row: printable(of(row) or "-"), from_width, "left")


def _broker_state(row: Any) -> str:
    if not row.running:
        return "down"
    return "no answer" if row.problem else "running"


def _topic_note(row: Any) -> str:
    if row.offline:
        return f"{row.offline} of {row.partitions} partitions offline"
    return row.problem or (f"{row.unread} partitions not read yet" if row.unread else "")


COLUMNS: dict[str, tuple[Column, ...]] = {
    "topics": (
        _name(lambda row: row.topic, "TOPIC"),
        Column("PARTS", lambda row: str(row.partitions), 70),
        Column("RECORDS/S", lambda row: count(row.records_per_s)),
        Column("BYTES/S", lambda row: count(row.bytes_per_s), 50),
        Column("SIZE", lambda row: count(row.size_bytes), 90),
        Column("HW-LSO", lambda row: count(row.lso_distance), 40),
        _name(lambda row: f"{row.held_by or ''}{' (hangs)' if row.hanging else ''}", "HELD BY", 60),
        _name(_topic_note, "NOTE", 100),
    ),
    "groups": (
        _name(lambda row: row.group, "GROUP"),
        _name(lambda row: row.state, "STATE", 60),
        _name(lambda row: row.type, "TYPE", 100),
        Column("LAG", lambda row: count(row.lag)),
        Column("CHANGE/S", lambda row: change(row.lag_per_s), 40),
        Column("TO HW", lambda row: count(row.lag_to_high_watermark), 80),
        Column("PARTS", lambda row: count(row.partitions), 80),
        _name(
            lambda row: row.problem or (f"{row.uncounted} partitions not counted" if row.uncounted else ""), "NOTE", 50
        ),
    ),
    "transactions": (
        _name(lambda row: row.transactional_id or f"producer id {row.producer_id}", "TRANSACTION"),
        _name(lambda row: row.state, "STATE"),
        Column("AGE", lambda row: age(row.age_ms)),
        Column("TIMEOUT", lambda row: age(row.timeout_ms), 80),
        Column("PARTS", lambda row: count(row.partitions), 60),
        Column("PRODUCER", lambda row: str(row.producer_id), 100),
        _name(lambda row: ", ".join(row.holds_back), "HOLDS BACK", 60),
    ),
    "brokers": (
        Column("BROKER", lambda row: f"{row.broker}{'*' if row.controller else ''}"),
        _name(_broker_state, "STATE"),
        _name(lambda row: None if row.host is None else f"{row.host}:{row.port}", "ADDRESS", 60),
        _name(lambda row: row.rack, "RACK", 100),
        Column("RECORDS/S", lambda row: count(row.records_per_s), 100),
        Column("BYTES/S", lambda row: count(row.bytes_per_s), 120),
        Column("LEADS", lambda row: str(row.leaders)),
        Column("REPLICAS", lambda row: str(row.replicas), 70),
        Column("UNDER-REPL", lambda row: str(row.under_replicated), 40),
        Column("OUT OF SYNC", lambda row: str(row.out_of_sync), 80),
        _name(lambda row: row.problem, "NOTE", 110),
    ),
}
"""Subject -> its columns. BROKER has a * at the controller."""


OPTIONAL = frozenset({"NOTE", "RACK"})
"""Columns that are omitted while no row has a value."""


def _is_empty(column: Column, rows: Sequence[Any]) -> bool:
    return all(column.cell(row) == "-" for row in rows)


def _style(subject: str, row: Any) -> str:
    """Return the style of a row: what needs a person is red, what may need one is yellow."""
    if subject == "topics":
        return ALARM if row.hanging or row.offline else WARNING if row.problem else ""
    if subject == "groups":
        return WARNING if row.problem else ""
    if subject == "transactions":
        return ALARM if row.hanging else ""
    return ALARM if not row.running else WARNING if row.problem or row.under_replicated or row.out_of_sync else ""


def share(height: int, wanted: Sequence[int]) -> list[int]:
    """Divide `height` lines among tables that want so many lines each: evenly, but no table gets more than it wants."""
    got = [0] * len(wanted)
    left = min(height, sum(wanted))
    while left > 0:
        for index, most in enumerate(wanted):
            if left > 0 and got[index] < most:
                got[index] += 1
                left -= 1
    return got


@dataclass(frozen=True, slots=True)
class View:
    """What a terminal shows of a picture. `on_screen`: fit its height; otherwise, each table has `NO_SCREEN_ROWS`."""

    picture: Picture
    subjects: tuple[str, ...]
    interval: float
    hanging_after_ms: int
    on_screen: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the head and a table for each subject."""
        width = options.max_width
        head = list(self._head(width))
        rows = {name: rows_of(self.picture, name, self.hanging_after_ms) for name in self.subjects}
        room = NO_SCREEN_ROWS * len(rows)
        if self.on_screen:
            room = (options.height or console.height) - len(head) - 2 * len(rows)  # an empty line, and the headings
        yield from head
        heights = share(room, [max(1, len(each)) for each in rows.values()])
        for (name, found), height in zip(rows.items(), heights, strict=True):
            yield Text()
            yield self._table(name, found, height, width)

    def _head(self, width: int) -> Iterator[RenderableType]:
        picture = self.picture
        seen = coverage(picture)
        clock = datetime.fromtimestamp(picture.time_ms / 1000, UTC).strftime("%H:%M:%S")
        requests = f"requests {sum(picture.requests.turn.values())} ({picture.requests.total} in all)"
        shown = [f"{clock} UTC", f"every {self.interval:g} s", requests]
        if {"topics", "groups", "transactions"} & set(self.subjects):
            shown.append(f"partitions {seen['partitions'].read}/{seen['partitions'].total}")
        if "groups" in self.subjects:
            shown.append(f"groups {seen['groups'].read}/{seen['groups'].total}")
        shown.append(f"cluster {picture.cluster_id or '-'}")  # the terminal may cut the end
        yield _cell(printable("  ".join(shown)), "bold")
        if not picture.reachable:
            yield _cell("no broker can be reached; this is the last reading", ALARM)
        for trouble in picture.troubles[:MOST_TROUBLES]:
            yield _cell(printable(f"{trouble.about}: {trouble.text}"), WARNING)
        if len(picture.troubles) > MOST_TROUBLES:
            yield _cell(f"and {len(picture.troubles) - MOST_TROUBLES} more troubles", WARNING)

    def _table(self, subject: str, rows: list[Any], lines: int, width: int) -> RenderableType:
        shown = rows[:lines]
        columns = [
            column
            for column in COLUMNS[subject]
            if width >= column.from_width and not (column.heading in OPTIONAL and _is_empty(column, shown))
        ]
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        for index, column in enumerate(columns):
            heading = column.heading
            if index == 0 and len(shown) < len(rows):
                heading = f"{heading} ({len(shown)} of {len(rows)})"
            # A long name is cut before a number is: the table takes width from columns that may wrap (no cell does).
            table.add_column(_cell(heading), justify=column.justify, no_wrap=column.justify == "right")
        for row in shown:
            table.add_row(*(_cell(column.cell(row)) for column in columns), style=_style(subject, row))
        if lines and not rows:
            table.add_row(Text("none"), *(Text() for _ in columns[1:]), style="dim")
        return table


def _cell(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
