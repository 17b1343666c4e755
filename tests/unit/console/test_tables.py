"""Tables: sorted, filtered, paged, and as JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oncelog.console.tables import PAGE_ROWS, Column, Table

COLUMNS = (Column("name", "Name"), Column("size", "Size", "bytes"), Column("late", "Late", "number", late=True))


def table(rows: list[dict[str, Any]], **query: str) -> Table:
    return Table("rows", "Rows", COLUMNS, query, links={"name": "_name"}).fill(rows)


def names(found: Table) -> list[str]:
    return [row["name"] for row in found.rows]


ROWS = [{"name": "b", "size": 2}, {"name": "A", "size": 10}, {"name": "c", "size": None}]


def test_numbers_are_sorted_as_numbers_and_nothing_comes_first() -> None:
    assert names(table(ROWS, sort="size")) == ["c", "b", "A"]
    assert names(table(ROWS, sort="size", desc="1")) == ["A", "b", "c"]
    assert names(table(ROWS, sort="name")) == ["A", "b", "c"]


def test_filter_ignores_case_and_keys_that_no_column_shows() -> None:
    rows = [*ROWS, {"name": "d", "size": 1, "_name": "/A"}]
    assert names(table(rows, q="a")) == ["A"]


def test_late_columns_sort_only_what_fits_on_a_page() -> None:
    few = [{"name": str(number), "late": -number} for number in range(3)]
    assert names(table(few, sort="late")) == ["2", "1", "0"]
    many = [{"name": f"{number:03}", "late": -number} for number in range(PAGE_ROWS + 1)]
    assert names(table(many, sort="late"))[0] == "000"


def test_json_has_the_shown_rows_without_addresses() -> None:
    found = table([{"name": "a", "size": 1, "_name": "/a", "_other": 2}]).as_json()
    rows = [{"name": "a", "size": 1, "late": None}]
    assert found == {"total": 1, "found": 1, "page": 1, "pages": 1, "rows": rows}, "what is not known is None"


def test_options_of_the_other_table_stay_in_an_address() -> None:
    other = Table("others", "Others", COLUMNS, {"q": "x", "others-page": "2"}, main=False)
    assert other.address(q="y", page=None) == "?q=x&others-q=y"


@given(
    st.dictionaries(st.sampled_from(["sort", "desc", "q", "page", "format"]), st.text(max_size=20)), st.integers(0, 130)
)
def test_any_query_shows_rows_of_the_table(query: dict[str, str], count: int) -> None:
    rows = [{"name": f"n{number}", "size": number % 7, "late": None} for number in range(count)]
    found = table(rows, **query)
    assert len(found.rows) <= PAGE_ROWS
    assert all(row in rows for row in found.rows)
    assert 1 <= found.page <= found.pages
    assert found.address(page=1).startswith("?")
