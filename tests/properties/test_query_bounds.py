"""No record that a condition selects is outside the bounds that are read for it: with DuckDB, and with polars."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product

import duckdb
import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oncelog.tables.bounds import Bounds, Range
from oncelog.tables.lazy_frame import bounds_of
from oncelog.tables.parser import Parser
from oncelog.tables.plan import Reading, needs

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {"t0_c0": "_offset", "t0_c1": "_partition", "t0_c2": "_timestamp", "t0_c3": "a"}
RECORDS = [
    (offset, partition, BEGIN + timedelta(seconds=time), a)
    for offset, partition, time, a in product(range(5), range(3), range(4), (None, 1, 3))
]
TABLE = pa.table(
    [pa.array(column) for column in zip(*RECORDS, strict=True)],
    schema=pa.schema(
        [("t0_c0", pa.int64()), ("t0_c1", pa.int32()), ("t0_c2", pa.timestamp("us", "UTC")), ("t0_c3", pa.int64())]
    ),
)

numbers = st.integers(-1, 6)
columns = st.sampled_from(["_offset", "_partition", "a"])
operators = st.sampled_from(["<", "<=", ">", ">=", "=", "<>", "is not distinct from"])
times = st.integers(-1, 5).flatmap(
    lambda second: st.sampled_from(
        [
            f"timestamptz '2026-01-01 00:00:0{max(second, 0)}+00'",
            f"timestamp '2026-01-01' + to_seconds({second})",
            f"make_timestamptz({int(BEGIN.timestamp() + second) * 1_000_000}::bigint)",
            f"'2026-01-01 00:00:0{max(second, 0)}'",
        ]
    )
)
leaves = st.one_of(
    st.builds("{} {} {}".format, columns, operators, numbers),
    st.builds("{} {} {}".format, numbers, operators, columns),
    st.builds("{} between {} and {}".format, columns, numbers, numbers),
    st.builds("{} in ({}, {}, {})".format, columns, numbers, numbers, numbers),
    st.builds("_timestamp {} {}".format, operators, times),
    st.builds("{} {} _timestamp".format, times, operators),
    st.builds("_timestamp between {} and {}".format, times, times),
    st.builds("date_trunc('second', _timestamp) {} {}".format, operators, times),
    st.builds("_offset + {} {} {}".format, numbers, operators, numbers),
    st.builds("_offset {} {}.5".format, operators, numbers),
    st.builds("a {} _offset".format, operators),
    st.sampled_from(["true", "false", "null", "a is null", "_offset = _partition"]),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("case when {} then {} else {} end".format, inner, inner, inner),
    ),
    max_leaves=6,
)
queries = st.one_of(
    st.builds("select * from t where {}".format, conditions),
    st.builds("select * from (select * from t where {}) where {}".format, conditions, conditions),
    st.builds("with w as (from t where {}) select * from w where {}".format, conditions, conditions),
    st.builds("select t.* from t join (select 1 as one) on {} where {}".format, conditions, conditions),
    st.builds("select t.* from t left join (from t where {}) u on t._offset = u._offset".format, conditions),
    st.builds("(from t where {}) union all (from t where {})".format, conditions, conditions),
    st.builds("select * from t where _offset in (select _offset from t where {})".format, conditions),
)


class Stream:
    """The records within bounds, as a stream that DuckDB can read again."""

    def __init__(self) -> None:
        self.bounds = Bounds()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        found = TABLE.filter(pa.array([_within(record, self.bounds) for record in RECORDS]))
        return found.to_reader().__arrow_c_stream__(requested_schema)


def _within(record: tuple[int, int, datetime, int | None], bounds: Bounds) -> bool:
    offset, partition, time, _ = record
    at = int(time.timestamp()) * 1_000_000
    pairs = ((bounds.offsets, offset), (bounds.partitions, partition), (bounds.times, at))
    return all(not (each & Range(number, number + 1)).is_empty for each, number in pairs)


@given(queries)
def test_query_has_the_same_result_within_its_bounds(query: str) -> None:
    stream = Stream()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("stream", stream)
        named = ", ".join(f"{inner} as {outer}" for inner, outer in COLUMNS.items())
        connection.execute(f"create temp view t as select {named} from stream")
        wanted = sorted(connection.sql(query).fetchall(), key=str)
        plan = json.loads(connection.execute(f"explain (format json) {query}").fetchall()[0][1])
        parser = Parser(connection)
        names = {inner: outer for inner, outer in COLUMNS.items() if outer != "a"}
        found = needs(plan, Reading(parser.expression, parser.microseconds, names))
        if 0 in found:
            stream.bounds = found[0].bounds
        assert sorted(connection.sql(query).fetchall(), key=str) == wanted


def test_bounds_are_narrow_where_they_can_be() -> None:
    """Otherwise, the test before would pass with no bounds at all."""
    connection = duckdb.connect()
    connection.register("stream", Stream())
    connection.execute("create temp view t as select t0_c0 as _offset, t0_c1 as _partition from stream")
    query = "from t where _offset between 2 and 3 and _partition = 1"
    plan = json.loads(connection.execute(f"explain (format json) {query}").fetchall()[0][1])
    parser = Parser(connection)
    (need,) = needs(plan, Reading(parser.expression, parser.microseconds, COLUMNS)).values()
    assert need.bounds == Bounds(Range(1, 2), Range(2, 4))
    connection.close()


names = st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"])
moments = st.integers(-1, 5).map(lambda second: BEGIN + timedelta(seconds=second))
# Hypothesis compares values, which polars' expressions do not allow, so strategies make functions that make them.
made_leaves = st.one_of(
    st.builds(lambda how, column, number: lambda: getattr(pl.col(column), how)(number), names, columns, numbers),
    st.builds(
        lambda how, column, number: lambda: getattr(pl.lit(number), how)(pl.col(column)), names, columns, numbers
    ),
    st.builds(lambda how, time: lambda: getattr(pl.col("_timestamp"), how)(pl.lit(time)), names, moments),
    st.builds(
        lambda column, low, high, closed: lambda: pl.col(column).is_between(low, high, closed),
        *(columns, numbers, numbers, st.sampled_from(["both", "left", "right", "none"])),
    ),
    st.builds(lambda column, number: lambda: pl.col(column).is_in([number, 2]), columns, numbers),
    st.builds(lambda how, number: lambda: getattr(pl.col("_offset") + 1, how)(number), names, numbers),
)
made_conditions = st.recursive(
    made_leaves,
    lambda inner: st.one_of(
        st.builds(lambda left, right: lambda: left() & right(), inner, inner),
        st.builds(lambda left, right: lambda: left() | right(), inner, inner),
        st.builds(lambda each: lambda: ~each(), inner),
    ),
    max_leaves=6,
)


@given(made_conditions)
def test_condition_of_polars_selects_nothing_outside_its_bounds(made: Callable[[], pl.Expr]) -> None:
    condition = made()
    frame = pl.DataFrame(TABLE.rename_columns(list(COLUMNS.values())))
    bounds = bounds_of(condition)
    within = pl.Series([_within(record, bounds) for record in RECORDS])
    assert frame.filter(condition).equals(frame.filter(within).filter(condition))
