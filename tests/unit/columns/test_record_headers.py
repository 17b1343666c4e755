"""Schema ids in headers: how they are found, added, and used for Avro columns."""

from __future__ import annotations

import io
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.columns.record_headers import header_values, with_header
from oncelog.formats import Avro
from oncelog.protocol.schema_ids import guid_header, schema_in_header

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
TURNED = pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])
KINDS = [pa.list_(PAIR), pa.large_list(TURNED), pa.map_(pa.string(), pa.binary())]
NAMES = st.sampled_from(["a", "id", "ü"])
ROWS = st.lists(st.none() | st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=3)), max_size=4), max_size=6)


def column(rows: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        return pa.array(rows, kind)
    listed = [row if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    return pa.array(listed, kind)


@given(ROWS, st.sampled_from(KINDS), st.integers(0, 2))
def test_first_header_of_each_row_is_found(rows: list[Any], kind: pa.DataType, skipped: int) -> None:
    found = header_values(column(rows, kind).slice(skipped), "id")
    wanted = [next((value for key, value in row or () if key == "id"), None) for row in rows]
    assert (found.type, found.to_pylist()) == (pa.binary(), wanted[skipped:])


@given(ROWS, st.sampled_from(KINDS), st.integers(0, 2), st.data())
def test_header_is_added_after_the_others(rows: list[Any], kind: pa.DataType, skipped: int, data: Any) -> None:
    rest = rows[skipped:]
    chosen = [data.draw(st.booleans()) for _ in rest]
    made = with_header(column(rows, kind).slice(skipped), "id", b"x", np.array(chosen, np.uint8))
    wanted = [[*(row or ()), *[("id", b"x")] * there] for row, there in zip(rest, chosen, strict=True)]
    assert [[(pair["key"].decode(), pair["value"]) for pair in row] for row in made.to_pylist()] == wanted


def test_header_is_added_where_there_is_none() -> None:
    made = with_header(None, "id", b"x", np.array([1, 0], np.uint8))
    assert made.to_pylist() == [[{"key": b"id", "value": b"x"}], []]
    with pytest.raises(TypeError, match=r"the column headers must be a list of structs \(key, value\), not string"):
        with_header(pa.array(["x"]), "id", b"x", np.array([1], np.uint8))


GUID = UUID("89791762-2336-186f-9674-299b90a8e231")


def test_headers_have_a_guid_or_an_id() -> None:
    assert schema_in_header(guid_header(GUID)) == GUID
    assert schema_in_header(b"\0\0\0\0\7") == 7
    for wrong in (b"", b"\0\0\0\0", b"\1" + bytes(15), b"\2" + bytes(16), b"\0" + bytes(16)):
        with pytest.raises(ValueError, match="which are no id"):
            schema_in_header(wrong)


def data(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_values_are_read_with_the_schema_of_their_header() -> None:
    asked: list[Any] = []

    def schemas(schema_id: int | UUID) -> Any:
        asked.append(schema_id)
        return {GUID: "int", 1: "long", 2: "int"}.get(schema_id)  # type: ignore[call-overload]

    form = Avro("long", schemas=schemas, ids_in_headers=True, keep_bad=True)
    by_guid, by_id = guid_header(GUID), b"\0\0\0\0\2"
    rows = [
        (data("int", 0), by_guid, 0),
        (data("int", 1), by_guid, 1),
        (None, None, None),
        (b"\0\0\0\0\1" + data("long", 2**40), None, 2**40),
        (data("int", 3), by_id, 3),
        (None, by_guid, None),
        (data("int", 4), None, None),
        (data("int", 5), b"?", None),
        (data("int", 6), guid_header(UUID(int=5)), None),
        (data("int", 7), by_guid, 7),
    ]
    found, bad = form.decode_with_ids(pa.array([row[0] for row in rows]), pa.array([row[1] for row in rows]))
    assert found.to_pylist() == [row[2] for row in rows]
    assert [(item.row, item.reason) for item in bad] == [
        (6, "it has no schema id prefix, and no header with a schema id"),
        (7, "the header with its schema id has 1 bytes, 3f, which are no id"),
        (8, f"schemas has no schema with id {UUID(int=5)}"),
    ]
    assert asked == [GUID, 1, 2, UUID(int=5)]


def test_arguments_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="ids_in_headers requires schemas by GUID"):
        Avro("long", ids_in_headers=True)
    with pytest.raises(ValueError, match="set one of them"):
        Avro("long", schema_id=1, schema_guid=GUID)
    with pytest.raises(ValueError, match="badly formed"):
        Avro("long", schema_guid="7")
    assert Avro("long", schema_guid=str(GUID)).header == guid_header(GUID)
