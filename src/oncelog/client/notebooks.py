"""Show results as small HTML tables in notebooks, by IPython's `_repr_html_`. No I/O: a table never asks a broker.

A table has at most `MOST_ROWS` rows, and a cell at most `MOST_CHARACTERS` characters, however large a value is. All
text is escaped. Fields with secrets are omitted.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from itertools import islice
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
C = TypeVar("C", bound=type)

MOST_ROWS = 50
MOST_COLUMNS = 30
MOST_CHARACTERS = 200
MOST_ITEMS = 20
"""The most numbers or names of a list in one cell. Of a longer list, the cell has the length."""

MOST_BITS = 512
"""The most bits of an integer that is shown: Python does not convert very large ones to text."""


class _Short(reprlib.Repr):
    """The `repr` of any value, without that of its large parts."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = MOST_CHARACTERS

    def repr_int(self, value: int, level: int) -> str:
        bits = value.bit_length()
        return repr(value) if bits <= MOST_BITS else f"<int of {bits:,} bits>"

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[:MOST_CHARACTERS]) + ("…" if len(value) > MOST_CHARACTERS else "")


_SHORT = _Short()


class Client(Protocol):
    """A producer, consumer or Admin."""

    def metrics(self) -> Any:
        """Return what it counts, without a request. Raises UsageError before its start."""


class Rows(list[T]):
    """A list that a notebook shows as a table: one row for each item. Otherwise, it is a list like any other."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return list_html(self)


class RowsByKey(dict[Any, T]):
    """A dict that a notebook shows as a table: one row for each key. Otherwise, it is a dict like any other."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return mapping_html(self)


def for_notebooks(result: T) -> T:
    """Return a list or dict as `Rows` or `RowsByKey`, and any other value unchanged."""
    found: Any = result
    if type(found) is list:
        found = Rows(found)
    elif type(found) is dict:
        found = RowsByKey(found)
    shown: T = found
    return shown


def in_notebooks(*, hide: Iterable[str] = ()) -> Callable[[C], C]:
    """Let notebooks show a NamedTuple or dataclass as a table of its fields, except those to `hide`."""

    def decorate(kind: C) -> C:
        _HIDDEN[kind] = frozenset(hide)
        kind._repr_html_ = record_html  # type: ignore[attr-defined]
        return kind

    return decorate


_HIDDEN: dict[type, frozenset[str]] = {}
"""Class -> the fields that no table shows."""


def record_html(record: Any, caption: str = "") -> str:
    """Return a table with a row for each field, then a table for each field that has a list or dict of records."""
    simple: list[tuple[str, str]] = []
    more: list[str] = []
    for name in _fields(type(record)) or ():
        value = getattr(record, name)
        if isinstance(value, Mapping) and (not value or _fields(type(next(iter(value.values()))))):
            more.append(mapping_html(value, name) if value else "")
        elif isinstance(value, list) and value and _fields(type(value[0])):
            more.append(list_html(value, name))
        else:
            simple.append((name, _cell(value)))
    return _table((), simple, caption or type(record).__name__, len(simple)) + "".join(more)


def client_html(client: Client) -> str:
    """Return the metrics of a client, or the reason why it has none."""
    caption = type(client).__name__
    try:
        return record_html(client.metrics(), caption)
    except RuntimeError as error:  # UsageError, whose module imports this one
        return _table((), [("problem", _cell(str(error)))], caption, 1)


def list_html(items: Sequence[Any], caption: str = "") -> str:
    """Return a table with a row for each item. Its columns are the fields, if all items have the same."""
    shown = list(islice(items, MOST_ROWS))
    names = _common_fields(shown)
    rows = [[_cell(getattr(each, name)) for name in names] if names else [_cell(each)] for each in shown]
    kind = caption or (type(shown[0]).__name__ if names else "")
    return _table(names or ["value"], rows, kind, len(items))


def mapping_html(items: Mapping[Any, Any], caption: str = "") -> str:
    """Return a table with a row for each key."""
    shown = list(islice(items.items(), MOST_ROWS))
    names = _common_fields([value for _, value in shown])
    rows = [
        [_cell(key), *([_cell(getattr(value, name)) for name in names] if names else [_cell(value)])]
        for key, value in shown
    ]
    return _table(["key", *(names or ["value"])], rows, caption, len(items))


def _fields(kind: type) -> list[str] | None:
    """Return the names of the fields to show, or None if the class has no fields."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    elif is_dataclass(kind):
        names = [each.name for each in fields(kind)]
    else:
        return None
    return [name for name in names if name not in _HIDDEN.get(kind, ())]


def _common_fields(items: Sequence[Any]) -> list[str] | None:
    kinds = {type(each) for each in items}
    names = _fields(kinds.pop()) if len(kinds) == 1 else None
    return names[:MOST_COLUMNS] if names else None


def _cell(value: Any) -> str:
    """Return the text of a value, not yet escaped."""
    if isinstance(value, str):
        return _printable(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value[: MOST_CHARACTERS + 1]), len(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and value.bit_length() <= MOST_BITS:
        return _printable(str(value))  # an OffsetAndMetadata is a number here
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int:
        return _printable(f"{value[0][:MOST_CHARACTERS]}-{value[1]}")  # a partition
    if isinstance(value, (list, tuple, set, frozenset)) and not _fields(type(value)):
        if len(value) > MOST_ITEMS or any(_fields(type(each)) for each in value):
            return f"{len(value):,} items"
        return _printable(", ".join(_cell(each) for each in value))
    if isinstance(value, Mapping) and (len(value) > 4 or any(_fields(type(each)) for each in value.values())):
        return f"{len(value):,} items"
    return _printable(_SHORT.repr(value))


def _of_bytes(data: bytes, length: int) -> str:
    """Return the text in bytes, or their `repr` if they have none."""
    whole = length <= MOST_CHARACTERS
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if whole or error.start < len(data) - 3:  # otherwise, only a character was cut
            return _printable(repr(data))
        text = data[: error.start].decode()
    return _printable(text)


def _printable(text: str) -> str:
    """Return at most `MOST_CHARACTERS` characters, and escapes in place of those that are not printable."""
    cut = text[: MOST_CHARACTERS + 1]
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
    return cut if len(cut) <= MOST_CHARACTERS else f"{cut[:MOST_CHARACTERS]}…"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], caption: str, total: int) -> str:
    """Return the HTML of a table. Without `names`, the first cell of a row is its heading."""
    size = f"{len(rows)} of {total:,} rows" if len(rows) < total else ""
    about = ": ".join(part for part in (_printable(caption), size) if part)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = []
    for row in rows:
        first = [] if names else [f"<th>{escape(row[0])}</th>"]
        body.append("".join(first + [f"<td>{escape(cell)}</td>" for cell in row[len(first) :]]))
    return (
        "<table>"
        + (f"<caption>{escape(about)}</caption>" if about else "")
        + (f"<thead><tr>{head}</tr></thead>" if head else "")
        + f"<tbody>{''.join(f'<tr>{cells}</tr>' for cells in body)}</tbody></table>"
    )
