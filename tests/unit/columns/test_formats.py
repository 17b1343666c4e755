"""Values as JSON and Avro: each row is independent of its neighbours."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncelog.formats import Avro, Json

UTC = datetime.UTC
THINGS = pa.schema(
    [
        ("whole", pa.int64()),
        ("real", pa.float64()),
        ("yes", pa.bool_()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("on", pa.date32()),
        ("price", pa.decimal128(9, 2)),
        ("list", pa.list_(pa.int32())),
        ("inner", pa.struct([("x", pa.large_string())])),
    ]
)
PRINTABLE = st.text(st.characters(exclude_categories=["Cs"]))
TIMES = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(UTC))
ROW = st.fixed_dictionaries(
    {
        "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
        "real": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "yes": st.none() | st.booleans(),
        "text": st.none() | PRINTABLE,
        "at": st.none() | TIMES,
        "on": st.none() | st.dates(),
        "price": st.none() | st.decimals(-9999999, 9999999, places=2),
        "list": st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "inner": st.none() | st.fixed_dictionaries({"x": st.none() | PRINTABLE}),
    }
)


# -- JSON -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.none() | ROW, max_size=8), st.sampled_from([None, 7]))
def test_json_round_trip(rows: list[Any], schema_id: int | None) -> None:
    form = Json(THINGS, schema_id=schema_id)
    values = form.encode(pa.array(rows, form.type))
    back, bad = form.decode(values)
    assert (back.to_pylist(), bad) == (rows, [])
    for row, value in zip(rows, values.to_pylist(), strict=True):
        assert (row is None) == (value is None)
        if value is not None:
            prefix = b"" if schema_id is None else b"\0\0\0\0\7"
            assert value.startswith(prefix)
            plain = json.loads(value[len(prefix) :])  # an independent reader
            assert (plain["whole"], plain["real"], plain["text"]) == (row["whole"], row["real"], row["text"])


PIECES = st.sampled_from(
    [b'{"a":1}', b'{"a":', b"1", b"}", b"{", b'"', b",", b'"v":2', b"\n", b" ", b"[", b"]", b"\\", b"null",
     b'{"a":"x"}', b"\0\0\0\0\1", b"\xff", b":", b'{"a":2,"b":[{}]}', b"{}\n", b"\x01"]
)  # fmt: skip
TEXTS = st.lists(st.none() | st.lists(PIECES, max_size=4).map(b"".join), min_size=1, max_size=6)


@settings(max_examples=150)
@given(TEXTS)
@example([b'{"a":1},"w":2'])
@example([b'{"a":1}}\n{"v":{"a":5}', b'{"a":3}'])
@example([b'{"a":1', b"}"])
def test_each_value_is_decoded_independently_of_its_neighbours(texts: list[bytes | None]) -> None:
    """A column is decoded like its single values."""
    form = Json(pa.schema([("a", pa.int64())]), keep_bad=True)
    alone = [form.decode(pa.array([text], pa.binary())) for text in texts]
    together, bad = form.decode(pa.array(texts, pa.binary()))
    assert together.to_pylist() == [column.to_pylist()[0] for column, _ in alone]
    assert [item.row for item in bad] == [row for row, (_, found) in enumerate(alone) if found]
    for text, (column, found) in zip(texts, alone, strict=True):
        if text is not None and not found:
            known = json.loads(text[5:] if text[:1] == b"\0" else text)
            assert column.to_pylist() == [None if known is None else {"a": known.get("a")}]
    only_first, first = Json(pa.schema([("a", pa.int64())])).decode(pa.array(texts, pa.binary()))
    assert [item.row for item in first] == [item.row for item in bad[:1]]
    assert (
        only_first.to_pylist()[: first[0].row if first else None]
        == together.to_pylist()[: first[0].row if first else None]
    )


def test_json_of_any_type() -> None:
    assert Json(pa.int64()).decode(pa.array([b"1", b" 2 ", None]))[0].to_pylist() == [1, 2, None]
    lists = Json(pa.list_(pa.string()))
    assert lists.decode(pa.array([b'["a",\n"b"]', b"[]"]))[0].to_pylist() == [["a", "b"], []]
    assert lists.decode(pa.array([], pa.binary()))[0].type == pa.list_(pa.string())


def test_large_and_sliced_values() -> None:
    texts = [b'{"text":"%s"}' % (b"x" * size) for size in (1, 5_000_000, 2)]
    for type_ in (pa.binary(), pa.large_binary()):
        values = pa.array([b"not read", *texts], type_).slice(1)
        found, bad = Json(THINGS).decode(values)
        assert [len(row["text"]) for row in found.to_pylist()] == [1, 5_000_000, 2]
        assert not bad


def test_types_of_columns_that_become_json() -> None:
    table = pa.table(
        {
            "dictionary": pa.array(["a", None]).dictionary_encode(),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "large": pa.array([[1.5], []], pa.large_list(pa.float32())),
            "view": pa.array(['"\\\b', None], pa.string_view()),
            "time": pa.array([datetime.time(1, 2, 3), None]),
            "local": pa.array([datetime.datetime(2020, 1, 2, 3, 4, 5), None], pa.timestamp("s")),
            "paris": pa.array([0, None], pa.timestamp("ms", "Europe/Paris")),
            "none": pa.nulls(2),
            "no fields": pa.array([{}, None], pa.struct([])),
        }
    )
    found = [json.loads(value) for value in Json().encode(table.to_struct_array().combine_chunks()).to_pylist()]
    assert found[0] == {
        "dictionary": "a", "map": {"k": 1}, "large": [1.5], "view": '"\\\b', "time": "01:02:03.000000",
        "local": "2020-01-02T03:04:05", "paris": "1970-01-01T00:00:00.000Z", "none": None, "no fields": {},
    }  # fmt: skip
    assert found[1] == dict.fromkeys(found[0]) | {"large": []}


TIMES = pa.schema(
    [
        ("s", pa.time32("s")),
        ("ms", pa.list_(pa.time32("ms"))),
        ("us", pa.time64("us")),
        ("inner", pa.struct([("ns", pa.time64("ns")), ("day", pa.date32())])),
    ]
)


def test_times_of_day_are_read_again() -> None:
    rows = [
        {"s": 3723, "ms": [3723004, None], "us": 3723000005, "inner": {"ns": 86399999999999, "day": 1}},
        {"s": None, "ms": None, "us": None, "inner": None},
        None,
        {"s": 0, "ms": [], "us": 0, "inner": {"ns": None, "day": None}},
    ]
    written = pa.array(rows, pa.struct(list(TIMES)))
    found, bad = Json(TIMES).decode(Json(TIMES).encode(written))
    assert found.combine_chunks() == written
    assert not bad
    form = Json(pa.time64("us"), keep_bad=True)
    found, bad = form.decode(pa.array([b'"01:02:03"', b'"25:00:00"', b"5", b'"01:02:03Z"']))
    assert found.cast(pa.int64()).to_pylist() == [3723000000, None, None, None]
    assert [item.row for item in bad] == [1, 2, 3]


UNWRITABLE: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "NaN": (
        pa.float64(),
        [1.0, None, float("nan"), float("inf")],
        "row 2: x: JSON cannot represent nan; replace it first",
    ),
    "infinity": (pa.float32(), [1.0, float("-inf")], "row 1: x: JSON cannot represent -inf;"),
    "half": (pa.float16(), [float("inf")], "row 0: x: JSON cannot represent inf;"),
    "list": (pa.list_(pa.float64()), [[1.0, 2.0], [], [3.0, float("nan")]], "row 2: x: JSON cannot represent nan;"),
    "struct": (pa.struct([("y", pa.float64())]), [None, {"y": float("nan")}], "row 1: y: JSON cannot represent nan;"),
    "map": (pa.map_(pa.string(), pa.float64()), [[], [("k", float("nan"))]], "row 1: x: JSON cannot represent nan;"),
    "first ns": (pa.timestamp("ns"), [0, -(2**63) + 1], "row 1: x: -9223372036854775807 of type timestamp"),
    "far s": (pa.timestamp("s", "UTC"), [0, 2**62], "row 1: x: 4611686018427387904 of type timestamp"),
    "year 10000": (pa.timestamp("s"), [253402300800], "row 0: x: 253402300800 of type timestamp"),
    "day": (pa.date32(), [None, 10_000_000], "row 1: x: 10000000 of type date32"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_number_or_time_without_a_json_text_is_refused_with_column_and_row(case: str) -> None:
    kind, values, message = UNWRITABLE[case]
    column = pa.array(values, kind)
    with pytest.raises(ValueError, match=message):
        Json().encode(pa.StructArray.from_arrays([column], ["x"]))
    kept = column.slice(0, len(values) - 2 if case == "NaN" else len(values) - 1)
    assert len(Json().encode(pa.StructArray.from_arrays([kept], ["x"]))) == len(kept)


@pytest.mark.parametrize(
    ("unit", "numbers"),
    [
        ("ns", [2**63 - 1, -9223372036 * 10**9, -1, 0]),
        ("us", [253402300799_999_999, -62167219200_000_000, -1]),
        ("ms", [253402300799_999, -62167219200_000, -1]),
        ("s", [253402300799, -62167219200, -1]),
    ],
)
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_first_and_last_times_that_are_written_can_be_read(unit: str, numbers: list[int], zone: str | None) -> None:
    times = pa.array(numbers, pa.timestamp(unit, zone))
    found, bad = Json(times.type).decode(Json().encode(times))
    assert (found.combine_chunks(), bad) == (times, [])


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])])
def test_categories_of_polars_become_json_and_avro(kind: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "string"]}]}
    frame = pl.DataFrame({"x": pl.Series(["b", None, "a"], dtype=kind)})
    values = pa.table(frame).to_struct_array().combine_chunks()
    assert Json().encode(values).to_pylist() == [b'{"x":"b"}', b'{"x":null}', b'{"x":"a"}']
    assert Json(pa.schema([("x", pa.string())])).encode(values)[0].as_py() == b'{"x":"b"}'
    listed = pa.table(frame.select(pl.concat_list("x").alias("l"))).to_struct_array().combine_chunks()
    assert Json().encode(listed)[0].as_py() == b'{"l":["b"]}'
    assert Avro(schema).encode(values).to_pylist() == [b"\x02\x02b", b"\x00", b"\x02\x02a"]


def test_values_that_json_cannot_represent_are_rejected() -> None:
    for type_ in (pa.month_day_nano_interval(), pa.dictionary(pa.int8(), pa.string()), pa.decimal128(5, -2)):
        with pytest.raises(TypeError, match=r"^amount: cannot read JSON into"):
            Json(pa.schema([("amount", type_)]))
    with pytest.raises(TypeError, match=r"^a\.b: the keys of a map must be strings in JSON, not int64"):
        Json(pa.schema([("a", pa.struct([("b", pa.map_(pa.int64(), pa.string()))]))]))
    with pytest.raises(TypeError, match=r"Json\(pa\.schema"):
        Json().decode(pa.array([b"1"]))
    with pytest.raises(TypeError, match="the keys of a map must be strings"):
        Json().encode(pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64())))
    with pytest.raises(ValueError, match="an integer of 32 bits"):
        Json(schema_id=-1)


def test_two_fields_of_a_name_are_refused() -> None:
    twice = pa.struct([("a", pa.int64()), ("a", pa.string())])
    for schema, names in ((twice, "a"), (pa.schema([("x", pa.list_(twice))]), "x.a")):
        with pytest.raises(ValueError, match=f"two fields have the same name: {names}$"):
            Json(schema)


# -- Avro -------------------------------------------------------------------------------------------------------------

INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "string"}]}


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


FIELDS: dict[str, tuple[Any, pa.DataType, Any]] = {
    "long": ("long", pa.int64(), -(2**63)),
    "int": ("int", pa.int32(), 2**31 - 1),
    "double": ("double", pa.float64(), 0.1),
    "float": ("float", pa.float32(), 0.5),
    "boolean": ("boolean", pa.bool_(), True),
    "bytes": ("bytes", pa.binary(), b"\xff"),
    "string": ("string", pa.string(), "ü"),
    "maybe": (["null", "string"], pa.string(), None),
    "maybe_last": (["long", "null"], pa.int64(), 5),
    "fixed": ({"type": "fixed", "name": "Two", "size": 2}, pa.binary(2), b"ab"),
    "enum": ({"type": "enum", "name": "Suit", "symbols": ["A", "B"]}, pa.string(), "B"),
    "array": ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32()), [1, None]),
    "map": (
        {"type": "map", "values": logical("long", "timestamp-millis")},
        pa.map_(pa.string(), pa.timestamp("ms", "UTC")),
        [("k", datetime.datetime(2020, 1, 1, tzinfo=UTC))],
    ),
    "inner": (INNER, pa.struct([("x", pa.string())]), {"x": "y"}),
    "inner_again": (["null", "n.Inner"], pa.struct([("x", pa.string())]), {"x": "z"}),
    "uuid": (logical("string", "uuid"), pa.string(), "8f5b5b54-6a3b-4b70-a5b5-0b6ba3b2f9a1"),
    "decimal": (logical("bytes", "decimal", precision=9, scale=2), pa.decimal128(9, 2), Decimal("-1.20")),
    "date": (logical("int", "date"), pa.date32(), datetime.date(2020, 1, 2)),
    "time": (logical("long", "time-micros"), pa.time64("us"), datetime.time(1, 2, 3, 4)),
    "micros": (
        logical("long", "timestamp-micros"),
        pa.timestamp("us", "UTC"),
        datetime.datetime(2020, 1, 1, 0, 0, 0, 7, tzinfo=UTC),
    ),
    "local": (logical("long", "local-timestamp-millis"), pa.timestamp("ms"), datetime.datetime(2020, 1, 1)),
}
SCHEMA = {
    "type": "record",
    "name": "All",
    "namespace": "n",
    "fields": [{"name": name, "type": kind} for name, (kind, _, _) in FIELDS.items()],
}


def test_avro_round_trip_of_every_type() -> None:
    form = Avro(json.dumps(SCHEMA))
    assert form.schema is not None
    assert form.schema.type == pa.struct([(name, type_) for name, (_, type_, _) in FIELDS.items()])
    row = {name: value for name, (_, _, value) in FIELDS.items()}
    values = form.encode(pa.array([row, None], form.schema.type))
    back, bad = form.decode(values)
    assert (back.to_pylist(), bad) == ([row, None], [])
    # fastavro decodes the same with the whole schema.
    read = fastavro.schemaless_reader(io.BytesIO(values[0].as_py()), fastavro.parse_schema(SCHEMA), None)
    assert (read["micros"], read["decimal"], read["enum"]) == (row["micros"], row["decimal"], row["enum"])


def test_unreadable_avro() -> None:
    form = Avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}, keep_bad=True)
    values = pa.array([b"\x02x", b"", b"\x02xy", b"\x80", None, b"\x02\xff"])
    found, bad = form.decode(values)
    assert [row and row["a"] for row in found.to_pylist()] == ["x", None, None, None, None, None]
    assert [item.row for item in bad] == [1, 2, 3, 5]
    assert "followed by 1 extra bytes" in bad[1].reason
    form.keep_bad = False
    assert [item.row for item in form.decode(values)[1]] == [1]


def test_avro_by_schema_id() -> None:
    first, second = "long", ["null", "long"]
    asked: list[int] = []

    def schema(schema_id: int) -> object:
        asked.append(schema_id)
        return {1: first, 2: second, 3: "string"}.get(schema_id)

    values = pa.array([b"\0\0\0\0\1\x02", b"\0\0\0\0\1\x04", b"\0\0\0\0\2\x02\x06"])
    assert Avro(schemas=schema).decode(values)[0].to_pylist() == [1, 2, 3]
    assert asked == [1, 2]
    _, bad = Avro(schemas=schema, keep_bad=True).decode(
        pa.array([b"\0\0\0\0\1\x02", b"\0\0\0\0\3\x02x", b"\0\0\0\0\4\x02", b"\1\0\0\0\1\x02", b"\0\0"])
    )
    assert [item.reason for item in bad] == [
        "its schema differs from that of earlier values; pass a schema for all of them",
        "schemas has no schema with id 4",
        "it has no schema id prefix",
        "it has no schema id prefix",
    ]


def test_avro_of_another_schema_is_bad() -> None:
    form = Avro("long", schemas={1: "long", 2: "string"}, keep_bad=True)
    values = pa.array([b"\0\0\0\0\1\x02", b"\0\0\0\0\2\x02x", b"\0\0\0\0\1\x04"])
    found, bad = form.decode(values)
    assert found.to_pylist() == [1, None, 2]
    assert [item.row for item in bad] == [1]
    assert bad[0].reason == "the value: string cannot be read as long"
    form.keep_bad = False
    assert [item.row for item in form.decode(values)[1]] == [1]


def test_avro_that_its_column_cannot_hold_is_bad() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    form = Avro(kind, keep_bad=True)
    wide = b"\x08\x7f\xff\xff\xff"
    values = pa.array([b"\x02\x05", wide, None, b"\x02", b"\x02\x07", wide])
    found, bad = form.decode(values)
    assert found.to_pylist() == [Decimal("0.05"), None, None, None, Decimal("0.07"), None]
    assert [item.row for item in bad] == [1, 3, 5]
    assert "precision" in bad[0].reason
    form.keep_bad = False
    found, bad = form.decode(values)
    assert found.to_pylist()[:1] == [Decimal("0.05")]
    assert [item.row for item in bad] == [1]


def test_avro_type_without_a_column_type_is_rejected() -> None:
    itself = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}
    with pytest.raises(TypeError, match="next: no column type can hold a type that contains itself"):
        Avro(itself)
    inside = {"type": "record", "name": "O", "fields": [{"name": "items", "type": {"type": "array", "items": itself}}]}
    with pytest.raises(TypeError, match=r"items\.next: no column type can hold a type that contains itself"):
        Avro(inside)
    with pytest.raises(ValueError, match="requires a schema"):
        Avro()
    with pytest.raises(TypeError, match="writing Avro"):
        Avro(schemas={}).encode(pa.array([1]))
    itself_named = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "strange"}]}
    with pytest.raises(ValueError, match="strange"):
        Avro(itself_named)


# -- columns that differ from the schema ------------------------------------------------------------------------------

PRICED = pa.schema(
    [("id", pa.int64()), ("price", pa.float64()), ("at", pa.struct([("x", pa.int64()), ("y", pa.int64())]))]
)
MANY = pa.schema([("list", pa.list_(PRICED.field("at").type))])
PRICED_AVRO = {
    "type": "record",
    "name": "Priced",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", "double"], "default": None},
        {
            "name": "at",
            "type": {
                "type": "record",
                "name": "At",
                "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": "long", "default": 7}],
            },
        },
    ],
}
AT = {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("schema", "row", "message"),
    [
        (PRICED, {"id": 1, "prise": 9.99, "at": AT}, "the JSON schema has no field prise; it has id, price, at"),
        (PRICED, {"id": 1, "at": AT}, "the JSON schema has price, but the columns do not"),
        (PRICED, {"id": 1, "price": 1.0, "at": {"x": 1, "z": 2}}, "has no field at.z; it has at.x, at.y"),
        (PRICED, {"id": 1, "price": 1.0, "at": {"x": 1}}, "has at.y, but the columns do not"),
        (MANY, {"list": [{"x": 1, "y": 2, "z": 3}]}, "has no field list.z"),
        (PRICED, {"id": "x", "price": 1.0, "at": AT}, "id: Failed to parse string: 'x'"),
        (PRICED, {"id": 1, "price": 1.0, "at": {"x": 1, "y": "z"}}, "at.y: Failed to parse string: 'z'"),
        (PRICED, {"id": [1], "price": 1.0, "at": AT}, "id: list<item: int64> cannot become int64"),
        (pa.schema([pa.field("id", pa.int64(), nullable=False)]), {"id": None}, "id: null in row 0"),
        (PRICED_AVRO, {"id": 1, "prise": 9.99, "at": AT}, "the Avro schema has no field prise"),
        (PRICED_AVRO, {"id": 1, "at": {"x": 1, "z": 2}}, "the Avro schema has no field at.z"),
        (PRICED_AVRO, {"id": "x", "at": AT}, "id: Failed to parse string: 'x'"),
    ],
)
def test_columns_that_do_not_match_the_schema_are_named(schema: Any, row: dict[str, Any], message: str) -> None:
    form: Any = Json(schema) if isinstance(schema, pa.Schema) else Avro(schema)
    with pytest.raises(ValueError, match=message):
        form.encode(pa.array([row]))


@pytest.mark.parametrize("form", [Json(PRICED), Avro(PRICED_AVRO)])
def test_bytes_do_not_become_a_record(form: Any) -> None:
    with pytest.raises(ValueError, match="the value: binary cannot become struct<id: int64"):
        form.encode(pa.array([b"1"]))


def test_columns_in_another_order_and_nulls_keep_their_values() -> None:
    row = {"at": {"y": 2, "x": 1}, "price": None, "id": 1}
    values = pa.array([row, row, None, {**row, "at": None}]).slice(1)
    texts = Json(PRICED).encode(values).to_pylist()
    assert texts == [b'{"id":1,"price":null,"at":{"x":1,"y":2}}', None, b'{"id":1,"price":null,"at":null}']
    texts = Json(MANY).encode(pa.array([{"list": [{"y": 2, "x": 1}]}])).to_pylist()
    assert texts == [b'{"list":[{"x":1,"y":2}]}']


def test_avro_defaults_replace_missing_nested_columns() -> None:
    form = Avro(PRICED_AVRO)
    back, _ = form.decode(form.encode(pa.array([{"at": {"x": 1}, "id": 5}])))
    assert back.to_pylist() == [{"id": 5, "price": None, "at": {"x": 1, "y": 7}}]


# -- construction of a format, and its errors -------------------------------------------------------------------------


def test_error_for_an_invalid_schema_says_what_a_schema_is() -> None:
    with pytest.raises(
        ValueError, match=r"'order\.avsc' is not an Avro schema; .* a dict, its JSON text .*read_text\(\)"
    ):
        Avro("order.avsc")
    with pytest.raises(ValueError, match=r"the Avro schema is not valid JSON: Expecting"):
        Avro('{"type": "record", ')
    for unknown, reason in (
        ({"a": 1}, "a type lacks 'type'"),
        ({"type": "array"}, "a type lacks 'items'"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "text"}]}, "unknown type text"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "Record field is missing 'name'"),
        ({"type": "record", "name": "R", "fields": None}, "not iterable"),
    ):
        with pytest.raises(ValueError, match=f"it is not an Avro schema: .*{reason}"):
            Avro(unknown)
    for wrong in (pa.schema([]), 5, Path("order.avsc")):
        with pytest.raises(TypeError, match=rf"an Avro schema is a dict or its JSON text, not {type(wrong).__name__}"):
            Avro(wrong)  # type: ignore[arg-type]
    for wrong in ({"id": "int"}, "int", pa.field("id", pa.int64())):
        with pytest.raises(TypeError, match=rf"a pyarrow.Schema or pyarrow.DataType, .* not {type(wrong).__name__}"):
            Json(wrong)  # type: ignore[arg-type]


def test_framed_values_with_unknown_schema_ids() -> None:
    framed = Avro("string", schema_id=7).encode(pa.array(["order"]))
    _, (bad,) = Avro("string").decode(framed)
    assert bad.reason.startswith("it is followed by 10 extra bytes; ")
    assert bad.reason.endswith("if the schema registry framed it (id 7), read with schemas={7: ...} or schema_id=7")
    form = Avro("string")
    form.framed_advice = "ask"
    assert form.decode(framed)[1][0].reason.endswith("if the schema registry framed it (id 7), ask")
    _, (bad,) = Avro("string").decode(pa.array([b"\x04abc"]))
    assert bad.reason == "it is followed by 1 extra bytes"


def test_truncated_avro_is_reported() -> None:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    _, (bad,) = Avro(record).decode(pa.array([b""]))
    assert bad.reason == "it ends too early"
