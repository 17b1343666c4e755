"""Tables through our client, against both servers: other libraries' frames, formats of values, unreadable values."""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
from collections.abc import Iterator
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from oncelog import Admin, Consumer, Producer, aio, errors
from oncelog.client.consumer import tables
from oncelog.client.producer import table_batches
from oncelog.client.producer.table_sources import TableSource
from oncelog.columns import native
from oncelog.formats import Avro, Json
from support.servers import Server

ORDERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
EARLIEST = {"auto_offset_reset": "earliest"}


@pytest.fixture
def topic(server: Server, name: str) -> str:
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name)
    return name


def send(server: Server, topic: str, data: object, **formats: Any) -> dict[tuple[str, int], int]:
    with Producer(server.bootstrap) as producer:
        return producer.send_table(topic, data, **formats).result(30)


def read(server: Server, topic: str, rows: int, partitions: int = 1, **options: Any) -> pa.Table:
    """Read all rows as one table."""
    with Consumer(server.bootstrap, **EARLIEST) as consumer:
        consumer.assign([(topic, index) for index in range(partitions)])
        return pa.concat_tables(some(consumer, rows, **options))


def some(consumer: Consumer, rows: int, **options: Any) -> list[pa.Table]:
    found: list[pa.Table] = []
    for table in consumer.tables(timeout=30, **options):
        found.append(table)
        if sum(map(len, found)) >= rows:
            break
    return found


# -- other libraries' frames ------------------------------------------------------------------------------------------

FRAMES = {
    "polars": lambda: pl.DataFrame({"key": ["a", None], "value": [b"1", b"2"]}),
    "duckdb": lambda: duckdb.sql("select * from (values ('a', '1'::blob), (null, '2'::blob)) t(key, value)"),
    "pandas": lambda: pd.DataFrame({"key": ["a", None], "value": [b"1", b"2"]}),
    "a pyarrow reader": lambda: pa.table({"key": ["a", None], "value": [b"1", b"2"]}).to_reader(max_chunksize=1),
    "a pyarrow batch": lambda: pa.record_batch({"key": ["a", None], "value": [b"1", b"2"]}),
    "one Arrow array": lambda: OneArray(pa.record_batch({"key": ["a", None], "value": [b"1", b"2"]})),
}


class OneArray:
    """An object that offers an Arrow array and no stream."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._batch.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize("frame", FRAMES)
def test_every_kind_of_frame_can_be_sent(server: Server, topic: str, frame: str) -> None:
    assert send(server, topic, FRAMES[frame]()) == {(topic, 0): 0}
    got = read(server, topic, 2)
    assert (got["key"].to_pylist(), got["value"].to_pylist()) == ([b"a", None], [b"1", b"2"])


def test_polars_and_duckdb_read_the_tables(server: Server, topic: str) -> None:
    send(server, topic, pl.DataFrame({"id": [1, 2], "name": ["a", "b"]}), value=Json())
    got = read(server, topic, 2, value=Json(ORDERS), headers=True)
    assert duckdb.sql('select sum(value.id), max(value.name), min("offset") from got').fetchall() == [(3, "b", 0)]
    frame = pl.DataFrame(got)
    assert frame.unnest("value").select("id", "name", "offset").rows() == [(1, "a", 0), (2, "b", 1)]
    # The same memory: polars' column shares Arrow's buffer.
    address = frame["offset"].to_numpy(allow_copy=False).__array_interface__["data"][0]
    assert address == got["offset"].chunk(0).buffers()[1].address


def test_tables_are_passed_to_other_libraries_without_a_copy() -> None:
    frame = pl.DataFrame({"value": ["x" * 1000] * 1000})
    before = pa.total_allocated_bytes()
    (piece,) = table_batches._in_pieces(TableSource(frame).batches)
    assert piece.num_rows == 1000
    assert pa.total_allocated_bytes() - before < 10_000


def test_invalid_tables_are_rejected(server: Server, topic: str) -> None:
    with Producer(server.bootstrap, max_block_ms=2_000) as producer:
        for data, message in (
            ([b"x"], "PyCapsule"),
            (pl.Series([1, 2]), "not a table"),
            (pa.table({"value": [b"x"], "amount": [1]}), r"column amount is .*; remove it with table.select"),
            (pa.table({"partition": [0]}), "a table needs a column named key or value"),
            (pa.table({"value": [b"x"], "timestamp": ["now"]}), "timestamp must have a timestamp type"),
            (pa.table({"value": [b"x"], "partition": [0.5]}), "partition must have an integer type"),
            (pa.table([[b"x"], [b"y"]], names=["value", "value"]), "the same name"),
        ):
            with pytest.raises(errors.UsageError, match=message):
                producer.send_table(topic, data)
        with pytest.raises(errors.UnknownTopicError, match="only partition 0"):
            producer.send_table(topic, pa.table({"value": [b"x"], "partition": [1]}))
        with pytest.raises(errors.UsageError, match="needs a column named key"):
            producer.send_table(topic, pa.table({"value": [b"x"]}), key=Json())
        assert producer.send_table(topic, pa.table({"value": pa.array([], pa.binary())})).result(30) == {}
        assert producer.send(topic, b"first").result(30).offset == 0


# -- pieces, partitions, times ----------------------------------------------------------------------------------------


def test_stream_is_sent_in_pieces_in_order(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_batches, "PIECE_ROWS", 700)
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name, 3)
    table = pa.table({"key": [f"k{i % 50}" for i in range(5_000)], "value": [f"{i}" for i in range(5_000)]})
    small_memory = {"buffer_memory": 40_000, "compression_type": "lz4"}
    with Producer(server.bootstrap, **small_memory) as producer:
        producer.send_table(name, table.to_reader(max_chunksize=900)).result(30)
    got = read(server, name, 5_000, 3)
    assert sorted(map(int, got["value"].to_pylist())) == list(range(5_000))
    for index in range(3):
        mine = [
            int(v) for p, v in zip(got["partition"].to_pylist(), got["value"].to_pylist(), strict=True) if p == index
        ]
        assert mine
        assert mine == sorted(mine)


def test_partitions_of_rows(server: Server, name: str) -> None:
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name, 4)
    places = [(name, index) for index in range(4)]
    with Producer(server.bootstrap) as producer:
        by_key = producer.send(name, b"x", b"key").result(30).partition
        named = pa.table({"key": ["key", "key"], "value": ["a", "b"], "partition": pa.array([(by_key + 1) % 4, None])})
        assert set(producer.send_table(name, named).result(30)) == {places[by_key], places[(by_key + 1) % 4]}
        assert len(producer.send_table(name, pa.table({"value": ["small"] * 8})).result(30)) == 1
        large = pa.table({"value": ["large" * 2_000] * 20})
        assert len(producer.send_table(name, large).result(30)) == 4
    with Producer(server.bootstrap, partitioner="round_robin") as producer:
        assert len(producer.send_table(name, pa.table({"key": ["same"] * 8, "value": ["x"] * 8})).result(30)) == 4
        assert producer.send(name, b"x").result(30).partition == 0
    with Producer(server.bootstrap, partitioner=lambda topic, key, value, count: int(value or b"0")) as producer:
        assert set(producer.send_table(name, pa.table({"value": ["1", "3"]})).result(30)) == {places[1], places[3]}
        with pytest.raises(errors.UsageError, match="the partitioner"):
            producer.send_table(name, pa.table({"value": ["4"]}))


def test_header_fields_are_found_by_name(server: Server, topic: str) -> None:
    headers = pa.array([[{"value": b"1", "key": b"a"}], None])
    send(server, topic, pa.table({"value": [b"x", b"y"], "headers": headers}))
    found = read(server, topic, 2, headers=True)
    assert found["headers"].to_pylist() == [[{"key": "a", "value": b"1"}], []]
    with pytest.raises(errors.UsageError, match=r"list of structs \(key, value\), not .*name"):
        send(server, topic, pa.table({"value": [b"z"], "headers": pa.array([[{"name": b"a", "value": b"1"}]])}))


def test_given_and_missing_timestamps(server: Server, topic: str) -> None:
    times = pa.array([1_000_000, None], pa.timestamp("us", "UTC"))
    send(server, topic, pa.table({"value": ["a", "b"], "timestamp": times}))
    first, second = read(server, topic, 2)["timestamp"].to_pylist()
    assert (first.year, second.year > 2000) == (1970, True)


def test_oversized_row_prevents_sending_the_others(server: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_batches, "PIECE_ROWS", 1)
    with Producer(server.bootstrap, compression_type="gzip") as producer:
        with pytest.raises(errors.RecordTooLargeError, match="max_request_size = 1048576"):
            producer.send_table(topic, pa.table({"value": [b"small", b"x" * 1_100_000]}))
        assert producer.send(topic, b"first").result(30).offset == 0


def test_large_decompressed_batches_are_returned_as_several_tables(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(server.bootstrap, compression_type="zstd") as producer:
        producer.send_table(topic, pa.table({"value": [b"\0" * 10_000] * 300})).result(30)
    monkeypatch.setattr(tables, "TABLE_BYTES", 500_000)
    with Consumer(server.bootstrap, **EARLIEST) as consumer:
        consumer.assign([(topic, 0)])
        seen = []
        for table in consumer.tables(timeout=30):
            seen.append(len(table))
            assert consumer.position(topic, 0) == sum(seen)
            if len(seen) == 2:
                break
        assert max(seen) < 100
        # `poll` returns the remaining records, too.
        rest = []
        while sum(seen) + len(rest) < 300:
            rest += consumer.poll(30)
        assert [record.offset for record in rest] == list(range(sum(seen), 300))


# -- formats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "avro", "avro, framed", "json, framed"])
def test_values_and_keys_in_a_format(server: Server, topic: str, form: str) -> None:
    schema_id = 7 if "framed" in form else None
    value: Any = Avro(ORDER, schema_id=schema_id) if "avro" in form else Json(ORDERS, schema_id=schema_id)
    key: Any = Avro("long") if "avro" in form else Json(pa.int64())
    columns = {"key": [5, None], "id": [1, 2], "name": ["a", None]}
    send(server, topic, pa.table(columns), key=key, value=value)
    raw = read(server, topic, 2)["value"].to_pylist()
    assert all(value.startswith(b"\0\0\0\0\7") for value in raw) is (schema_id is not None)
    got = read(server, topic, 2, key=key, value=value)
    assert got.select(["key", "value"]).to_pylist() == [
        {"key": 5, "value": {"id": 1, "name": "a"}},
        {"key": None, "value": {"id": 2, "name": None}},
    ]
    again = got.select(["key", "value"])  # a table that was read can be written unchanged
    send(server, topic, again, key=key, value=value)
    assert read(server, topic, 4)["value"].to_pylist() == raw * 2


def test_null_value_remains_a_tombstone(server: Server, topic: str) -> None:
    send(server, topic, pa.table({"key": ["a", "b"], "value": pa.array([{"id": 1}, None])}), value=Json())
    assert read(server, topic, 2)["value"].to_pylist() == [b'{"id":1}', None]
    assert read(server, topic, 2, value=Json(ORDERS))["value"].to_pylist() == [{"id": 1, "name": None}, None]


def test_rows_before_a_bad_value_are_returned_first(server: Server, topic: str) -> None:
    send(server, topic, pa.table({"value": ['{"id": 1}', '{"id": 2}', "no JSON", '{"id": 4}', '{"id": "x"}']}))
    with Consumer(server.bootstrap, **EARLIEST) as consumer:
        consumer.assign([(topic, 0)])
        found = consumer.tables(timeout=30, value=Json(ORDERS))
        assert [row["id"] for row in next(found)["value"].to_pylist()] == [1, 2]
        assert consumer.position(topic, 0) == 2
        for _ in range(2):  # the error repeats until the consumer seeks past it
            with pytest.raises(
                errors.BadRecordError, match=f"the value of the record at offset 2 of {topic}-0: "
            ) as refused:
                next(consumer.tables(timeout=30, value=Json(ORDERS)))
        bad = refused.value
        assert (bad.column, bad.topic, bad.partition, bad.offset) == ("value", topic, 0, 2)
        consumer.seek(bad.topic, bad.partition, bad.offset + 1)
        assert next(consumer.tables(timeout=30, value=Json(ORDERS)))["offset"].to_pylist() == [3]
    got = read(server, topic, 5, value=Json(ORDERS, keep_bad=True))
    assert got["value_bad"].to_pylist() == [None, None, b"no JSON", None, b'{"id": "x"}']
    assert [row and row["id"] for row in got["value"].to_pylist()] == [1, 2, None, 4, None]


def test_schemas_are_looked_up_by_id(server: Server, topic: str) -> None:
    older = {**ORDER, "fields": ORDER["fields"][:1]}
    asked = []

    def look_up(schema_id: int) -> str:
        asked.append(schema_id)
        return json.dumps({1: older, 2: ORDER}[schema_id])

    send(server, topic, pa.table({"id": [1, 2]}), value=Avro(older, schema_id=1))
    send(server, topic, pa.table({"id": [3], "name": ["c"]}), value=Avro(ORDER, schema_id=2))
    form = Avro(ORDER, schemas=look_up)
    got = read(server, topic, 3, value=form)
    assert got["value"].to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": None}, {"id": 3, "name": "c"}]
    assert asked == [1, 2]
    with pytest.raises(errors.BadRecordError, match=r"at offset 0 of .*: schemas has no schema with id 1"):
        read(server, topic, 3, value=Avro(schemas={2: ORDER}))


def test_rows_that_do_not_match_the_schema_are_rejected(server: Server, topic: str) -> None:
    with Producer(server.bootstrap) as producer:
        for columns, form, message in (
            ({"id": [1, None]}, Avro(ORDER), "Avro: row 1 does not fit"),
            ({"id": [1], "colour": ["red"]}, Avro(ORDER), "no field colour"),
            ({"data": [datetime.timedelta(1)]}, Json(), r"Json: data: cannot write duration\[us\] as JSON"),
            ({"id": ["x"], "name": ["a"]}, Json(ORDERS), "Json: "),
        ):
            with pytest.raises(errors.UsageError, match=message):
                producer.send_table(topic, pa.table(columns), value=form)
        assert producer.send(topic, b"first").result(30).offset == 0


# -- asyncio ----------------------------------------------------------------------------------------------------------


def test_tables_with_asyncio(server: Server, topic: str) -> None:
    async def round_trip() -> tuple[dict[tuple[str, int], int], list[dict[str, Any]]]:
        async with aio.Producer(server.bootstrap, transactional_id=topic, buffer_memory=30_000) as producer:
            async with producer.transaction():
                frame = pl.DataFrame({"id": range(2_000), "name": ["x" * 50] * 2_000})
                future = await producer.send_table(topic, frame, value=Avro(ORDER))
            placed = await future
        async with aio.Consumer(server.bootstrap, isolation_level="read_committed", **EARLIEST) as consumer:
            consumer.assign([(topic, 0)])
            rows: list[dict[str, Any]] = []
            async for table in consumer.tables(timeout=30, value=Avro(ORDER)):
                rows += table["value"].to_pylist()
                if len(rows) >= 2_000:
                    break
        return placed, rows

    placed, rows = asyncio.run(round_trip())
    assert placed == {(topic, 0): 0}
    assert [row["id"] for row in rows] == list(range(2_000))


def test_event_loop_runs_while_kernels_are_compiled(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[threading.Thread] = []
    monkeypatch.setattr(native, "loaded", lambda: False)
    monkeypatch.setattr(native, "load", lambda: asked.append(threading.current_thread()))

    async def round_trip() -> int:
        async with aio.Producer(server.bootstrap) as producer:
            await producer.send_table(topic, pa.table({"value": [b"x"]}))
        assert len(asked) == 1
        async with aio.Consumer(server.bootstrap, **EARLIEST) as consumer:
            consumer.assign([(topic, 0)])
            return (await anext(consumer.tables(timeout=30))).num_rows

    assert asyncio.run(round_trip()) == 1
    assert len(asked) == 2
    assert threading.main_thread() not in asked


def test_failed_batch_of_a_table_is_raised(server: Server, name: str) -> None:
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name, configs={"max.message.bytes": "2000"})

    def results() -> Iterator[object]:
        with Producer(server.bootstrap) as producer:
            yield producer.send_table(name, pa.table({"value": [b"x" * 3_000]})).result(30)

    with pytest.raises(errors.RecordTooLargeError):
        list(results())
