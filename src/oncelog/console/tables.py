"""Tables that can be sorted, filtered, paged, and read as JSON. No I/O.

A table with the name `members` reads `members-sort`, `members-desc`, `members-q` and `members-page` of the address. The
first table of a page has no prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode

PAGE_ROWS = 50

Row = dict[str, Any]


class Column(NamedTuple):
    """A column: the key in each row, its heading, how its values look, and what the heading means.

    `kind` is text, number, bytes, ms (a duration), time, state, id or list. With `late`, the column is filled only for
    the rows that are shown, so it cannot be sorted if there are more.
    """

    key: str
    title: str
    kind: str = "text"
    about: str = ""
    late: bool = False


@dataclass
class Table:
    """A table with the rows that are shown. `links` has, by column, the key in a row with its address."""

    name: str
    caption: str
    columns: Sequence[Column]
    query: Mapping[str, str]
    links: Mapping[str, str] = field(default_factory=dict)
    main: bool = True
    empty: str = "Nothing to show."
    known: bool = True
    """Whether the rows were read. If not, `empty` says why."""
    rows: list[Row] = field(default_factory=list)
    total: int = 0
    found: int = 0

    def _own(self, option: str) -> str:
        return option if self.main else f"{self.name}-{option}"

    @property
    def sort(self) -> str:
        """Return the column to sort by, or an empty text."""
        wanted = self.query.get(self._own("sort"), "")
        return wanted if any(wanted == column.key for column in self.columns if self.sortable(column)) else ""

    @property
    def descending(self) -> bool:
        """Return whether the largest value comes first."""
        return self.query.get(self._own("desc"), "") == "1"

    @property
    def filter(self) -> str:
        """Return the text that a row must contain."""
        return self.query.get(self._own("q"), "")[:200]

    @property
    def filter_name(self) -> str:
        """Return the name of the field for the filter."""
        return self._own("q")

    @property
    def pages(self) -> int:
        """Return how many pages of rows there are, at least one."""
        return max(1, -(-self.found // PAGE_ROWS))

    @property
    def page(self) -> int:
        """Return the number of the page that is shown, from 1 on."""
        wanted = self.query.get(self._own("page"), "1")
        number = int(wanted) if wanted.isdecimal() and len(wanted) < 8 else 1
        return min(max(number, 1), self.pages)

    def sortable(self, column: Column) -> bool:
        """Return whether the rows can be sorted by a column: its values are known for all of them."""
        return not column.late or self.total <= PAGE_ROWS

    def choose(self, rows: Iterable[Row]) -> list[Row]:
        """Take all rows, and keep those of the page. Return them: the caller fills the late columns.

        Then it calls `arrange`.
        """
        every = list(rows)
        self.total = len(every)
        if self.filter:
            wanted = self.filter.casefold()
            every = [row for row in every if wanted in _text(row, self.columns)]
        self.found = len(every)
        key = self.sort
        if key and not any(column.key == key and column.late for column in self.columns):
            every.sort(key=lambda row: _order(row.get(key)), reverse=self.descending)
        begin = (self.page - 1) * PAGE_ROWS
        self.rows = every[begin : begin + PAGE_ROWS]
        return self.rows

    def lacking(self, reason: str) -> Table:
        """Say why rows may be missing, unless the reason is empty. Return this table."""
        if reason:
            self.known, self.empty = False, f"Not everything could be read: {reason}."
        return self

    def arrange(self) -> Table:
        """Sort the chosen rows by a late column, if that is wanted. Return this table."""
        key = self.sort
        if key and any(column.key == key and column.late for column in self.columns):
            self.rows.sort(key=lambda row: _order(row.get(key)), reverse=self.descending)
        return self

    def fill(self, rows: Iterable[Row]) -> Table:
        """Choose and arrange rows that are complete. Return this table."""
        self.choose(rows)
        return self.arrange()

    def address(self, **changes: Any) -> str:
        """Return the query of the same page with other options of this table. None removes one."""
        found = {name: value for name, value in self.query.items() if name != "format"}
        for option, value in changes.items():
            found.pop(self._own(option), None)
            if value is not None:
                found[self._own(option)] = str(value)
        return "?" + urlencode(found)

    def sort_address(self, column: Column) -> str:
        """Return the query that sorts by a column, the other way round if it does already."""
        turned = self.sort == column.key and not self.descending
        return self.address(sort=column.key, desc=1 if turned else None, page=None)

    def hidden(self) -> dict[str, str]:
        """Return the options of the page that the form of the filter must keep."""
        drop = {self._own("q"), self._own("page"), "format"}
        return {name: value for name, value in self.query.items() if name not in drop}

    def as_json(self) -> dict[str, Any]:
        """Return the rows that are shown, and how many there are. A cell that was not read is None."""
        links, keys = set(self.links.values()), [column.key for column in self.columns]
        return {
            "total": self.total if self.known else None,
            "found": self.found,
            "page": self.page,
            "pages": self.pages,
            "rows": [
                dict.fromkeys(keys)
                | {key: value for key, value in row.items() if key not in links and not key.startswith("_")}
                for row in self.rows
            ],
        }


def _text(row: Row, columns: Sequence[Column]) -> str:
    return "\n".join(str(row.get(column.key, "")) for column in columns).casefold()


def _order(value: Any) -> tuple[int, Any]:
    """Return the place of a value: nothing first, then numbers, then texts."""
    if value is None:
        return 0, 0
    if isinstance(value, (int, float)):
        return 1, value
    return 2, str(value).casefold()
