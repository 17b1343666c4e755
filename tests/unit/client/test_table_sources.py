"""Which columns of other libraries' tables are data, and what errors say about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from oncelog import errors
from oncelog.client.producer.options import producer_options
from oncelog.client.producer.partitioner import Sticky
from oncelog.client.producer.table_batches import TableBatches, Target
from oncelog.client.producer.table_sources import TableSource
from oncelog.columns.values import Format
from oncelog.formats import Json


def orders() -> pd.DataFrame:
    return pd.DataFrame({"id": [1, 2, 3], "price": [2.5, 10.0, 7.0]})


def named(frame: pd.DataFrame, name: object) -> pd.DataFrame:
    frame = frame.copy()
    frame.index.name = name
    return frame


def levels(*names: object) -> pd.DataFrame:
    found = orders().set_index([pd.Index(["a", "b", "c"]), pd.Index([7, 8, 9])])
    found.index.names = list(names)
    return found


PLAIN = ["id", "price"]
SOURCES: dict[str, tuple[Callable[[], object], list[str], list[Any]]] = {
    "pandas": (orders, PLAIN, [1, 2, 3]),
    "pandas, filtered": (lambda: orders()[orders().price > 5], PLAIN, [2, 3]),
    "pandas, sorted": (lambda: orders().sort_values("price"), PLAIN, [1, 3, 2]),
    "pandas, sliced": (lambda: orders()[1:], PLAIN, [2, 3]),
    "pandas, each second row": (lambda: orders()[::2], PLAIN, [1, 3]),
    "pandas, index of text": (lambda: orders().set_index(pd.Index(["x", "y", "z"])), PLAIN, [1, 2, 3]),
    "pandas, two unnamed levels": (lambda: levels(None, None), PLAIN, [1, 2, 3]),
    "pandas, one named level": (lambda: levels(None, "k"), [*PLAIN, "k"], [1, 2, 3]),
    "pandas, named levels": (lambda: levels("j", "k"), [*PLAIN, "j", "k"], [1, 2, 3]),
    "pandas, named index": (lambda: named(orders()[orders().price > 5], "row"), [*PLAIN, "row"], [2, 3]),
    "pandas, named range": (lambda: named(orders(), "row"), [*PLAIN, "row"], [1, 2, 3]),
    "pandas, renamed columns": (lambda: orders()[1:].rename(columns={"id": "number"}), ["number", "price"], [2, 3]),
    "pandas, numbers as names": (lambda: pd.DataFrame([[1, 2], [3, 4]])[1:], ["0", "1"], [3]),
    "pandas, a column of that name": (
        lambda: pd.DataFrame({"__index_level_0__": [4, 5], "v": [6, 7]})[lambda frame: frame.v > 6],
        ["__index_level_0__", "v"],
        [5],
    ),
    "Arrow of pandas": (lambda: pa.table(orders()[orders().price > 5]), PLAIN, [2, 3]),
    "Arrow of pandas, named range": (lambda: pa.table(named(orders(), "row")).slice(1), PLAIN, [2, 3]),
    "Arrow batch of pandas": (lambda: pa.record_batch(orders()[orders().price > 5]), PLAIN, [2, 3]),
    "Arrow reader of pandas": (lambda: pa.table(orders()[orders().price > 5]).to_reader(1), PLAIN, [2, 3]),
    "Arrow, a column of that name": (lambda: pa.table({"__index_level_0__": [1]}), ["__index_level_0__"], [1]),
    "Arrow, other metadata": (lambda: pa.table({"id": [1]}).replace_schema_metadata({"pandas": "[1"}), ["id"], [1]),
    "Arrow, sliced": (lambda: pa.table(orders()).slice(1, 1), PLAIN, [2]),
    "polars, filtered": (lambda: pl.DataFrame(orders()).filter(pl.col("price") > 5), PLAIN, [2, 3]),
    "polars, sliced": (lambda: pl.DataFrame(orders())[1:], PLAIN, [2, 3]),
    "polars, renamed": (lambda: pl.DataFrame(orders()).rename({"id": "number"}), ["number", "price"], [1, 2, 3]),
    "DuckDB": (lambda: duckdb.sql("select 1 as id, 2.5 as price"), PLAIN, [1]),
}


@pytest.mark.parametrize("case", SOURCES)
def test_columns_of_each_library_are_its_data(case: str) -> None:
    made, names, first = SOURCES[case]
    table = pa.Table.from_batches(list(TableSource(made()).batches))
    assert table.column_names == names
    assert table.column(0).to_pylist() == first


def test_named_range_continues_in_each_batch() -> None:
    class InBatches(pd.DataFrame):  # type: ignore[misc]
        """A frame that passes two batches."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            table = pa.Table.from_pandas(pd.DataFrame(self))
            return table.to_reader(max_chunksize=2).__arrow_c_stream__()

    InBatches.__module__ = "pandas.frames"
    frame = InBatches(orders())
    frame.index = pd.RangeIndex(10, 4, -2, name="row")
    table = pa.Table.from_batches(list(TableSource(frame).batches))
    assert table["row"].to_pylist() == [10, 8, 6]


def refusal(data: object, value: Format | None = None) -> str:
    options = producer_options(None, {"bootstrap_servers": "nowhere:1"})
    to = Target("t", 1, Sticky(options["batch_size"], lambda count: 0), options, None, value, lambda: 0)
    with pytest.raises(errors.UsageError) as refused:
        list(TableBatches(data, to))
    return str(refused.value)


WORDS = {"key": ["a"], "value": ["1"], "rank": [5]}
ADVICE: dict[str, tuple[Callable[[], object], str]] = {
    "pandas": (lambda: pd.DataFrame(WORDS), "remove it with frame[['key', 'value']]"),
    "pandas, key as index": (
        lambda: pd.DataFrame(WORDS).set_index("key"),
        "remove it with frame.reset_index()[['value', 'key']]",
    ),
    "polars": (lambda: pl.DataFrame(WORDS), "remove it with frame.select(['key', 'value'])"),
    "Arrow": (lambda: pa.table(WORDS), "remove it with table.select(['key', 'value'])"),
    "Arrow reader": (lambda: pa.table(WORDS).to_reader(), "remove it with reader.read_all().select(['key', 'value'])"),
    "DuckDB": (
        lambda: duckdb.sql("select 'a' as key, '1' as value, 5 as rank"),
        "remove it with relation.select('key', 'value')",
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice_is_for_the_library_of_the_table(case: str) -> None:
    made, advice = ADVICE[case]
    assert refusal(made()).endswith(advice)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            pd.DataFrame([[1, 2]], columns=["a", "a"]),
            "this DataFrame cannot be converted to an Arrow table: Duplicate column",
        ),
        (named(orders(), "id"), "two columns of the table have the same name: id, price, id"),
        (named(orders()[1:2], "id"), "two columns of the table have the same name: id, price, id"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns of the table have the same name: a, a"),
        (duckdb.sql("select 1 as a, 2 as a"), "two columns of the table have the same name: a, a"),
        (pd.DataFrame(index=[3, 4]), "a table needs a column named key or value; this one has none at all"),
        (
            pl.DataFrame({"value": [object()]}),
            "polars passes the column value of type Object as addresses in memory; cast or remove it first",
        ),
        (
            duckdb.sql("select '101'::bit as value"),
            "DuckDB passes the column value of type BIT as bytes of its own; cast it first, for example to VARCHAR",
        ),
        (
            duckdb.sql("select timetz '10:00:00+01' as value"),
            "DuckDB passes the column value of type TIME WITH TIME ZONE without its zone; cast it first",
        ),
        (duckdb.sql("select error('no such order') as value"), "this DuckDBPyRelation cannot be converted to an Arrow"),
        (pd.DataFrame({"a": [1, "x"]}), "this DataFrame cannot be converted to an Arrow table: Could not convert 'x'"),
        (pl.LazyFrame({"a": [1]}), "a LazyFrame has no rows yet; pass frame.collect()"),
    ],
)
def test_tables_that_are_no_records_are_refused(data: object, message: str) -> None:
    assert refusal(data, Json()).startswith(message)
