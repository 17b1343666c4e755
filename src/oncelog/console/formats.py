"""How values look on a page. No I/O."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

NOTHING = "–"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS = ((86_400_000, "d", 3_600_000, "h"), (3_600_000, "h", 60_000, "min"), (60_000, "min", 1000, "s"))


def crumbs_to(topic: str, partition: int | None = None) -> list[tuple[str, str]]:
    """Return the texts and addresses above a page of a topic, or of a partition."""
    found = [("Topics", "/topics"), (topic, address("topics", topic))]
    return found if partition is None else [*found, (str(partition), address("topics", topic, partition))]


def number(value: int) -> str:
    """Return a number with a thin space between groups of three digits."""
    return f"{value:,}".replace(",", "\u2009")


def size(value: int) -> str:
    """Return a number of bytes in the unit that has one to four digits."""
    amount = float(value)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{value} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def duration(ms: int) -> str:
    """Return a duration in ms with its two largest units."""
    for large, name, small, rest in _STEPS:
        if ms >= large:
            left = ms % large // small
            return f"{ms // large} {name} {left} {rest}" if left else f"{ms // large} {name}"
    return f"{max(ms, 0) // 1000} s"


def moment(ms: int) -> str:
    """Return a time in ms since the epoch, in UTC. If it is in no year of the calendar, return the number."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"


def cell(value: Any, kind: str) -> str:
    """Return a value of a table as text. Templates escape it."""
    if value is None or value == []:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind in _OF_NUMBERS and isinstance(value, int):
        return _OF_NUMBERS[kind](value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


_OF_NUMBERS = {"number": number, "bytes": size, "ms": duration, "time": moment}


def address(*parts: str | int, **query: str | int) -> str:
    """Return the address of a page. Each part and value may have any characters."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    return f"{path}?{urlencode(query)}" if query else path


def text_of(data: bytes | None, form: str, limit: int) -> tuple[str, bool]:
    """Return bytes of a record as text, and whether it is cut at `limit` bytes. `form` is text, json or hex."""
    if data is None:
        return "null", False
    cut = len(data) > limit
    some = data[:limit]
    if form == "hex":
        return some.hex(" "), cut
    text = some.decode("utf-8", "replace")
    if form == "json" and not cut:
        try:
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False), cut
        except (ValueError, RecursionError):
            return text, cut
    return text, cut
