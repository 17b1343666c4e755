"""Avro columns: unions, resolution, limits of the interpreter, and what cannot be written.

`tests/properties/test_avro.py` compares random schemas with fastavro.
"""

from __future__ import annotations

import io
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from oncelog.columns.avro.operations import MOST_DEPTH, MOST_EMPTY
from oncelog.columns.avro.schemas import varint
from oncelog.formats import Avro

EITHER = ["null", "int", "string", {"type": "array", "items": "long"}]


def record(*fields: tuple[Any, ...], name: str = "R") -> dict[str, Any]:
    """Return a schema with fields (name, type) or (name, type, default)."""
    made = [dict(zip(("name", "type", "default"), field, strict=False)) for field in fields]
    return {"type": "record", "name": name, "fields": made}


def data(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data(schema, value)


def members(**given: Any) -> dict[str, Any]:
    return {"member0": None, "member1": None, "member2": None, **given}


# -- unions -----------------------------------------------------------------------------------------------------------


def test_union_of_several_types_is_a_struct() -> None:
    form = Avro(EITHER)
    assert form.schema is not None
    assert form.schema.type == pa.struct(
        [("member0", pa.int32()), ("member1", pa.string()), ("member2", pa.list_(pa.int64()))]
    )
    rows = [members(member1="x"), None, members(member2=[1, 2]), members(member0=-1), members(member2=[])]
    values = form.encode(pa.array(rows, form.schema.type))
    wanted = ["x", None, [1, 2], -1, []]
    assert values.to_pylist() == [data(EITHER, value) for value in wanted]
    assert form.decode(values)[0].to_pylist() == rows


def test_type_that_a_union_names_twice_is_read_once() -> None:
    """Avro forbids it, but fastavro writes it."""
    union = [{"type": "enum", "name": "E", "symbols": ["A", "B"]}, "int", "E"]
    found, bad = Avro(record(("u", union), ("x", "int"))).decode(pa.array([b"\0\2\6", b"\4\2\6"]))
    assert bad == []
    assert found.to_pylist() == [{"u": members(member0="B"), "x": 3}] * 2


@pytest.mark.parametrize("kind", [{"type": "enum", "symbols": ["S"]}, record(("f", "int"))])
def test_branches_of_two_namespaces_are_told_apart(kind: dict[str, Any]) -> None:
    union = [{**kind, "name": "N", "namespace": space} for space in ("one", "two")]
    form, other = Avro(union), Avro(union, schemas={1: union[::-1]})
    for index in (0, 1):
        (own,) = form.decode(pa.array([varint(index) + b"\0"]))[0].to_pylist()
        (swapped,) = other.decode(pa.array([b"\0\0\0\0\1" + varint(1 - index) + b"\0"]))[0].to_pylist()
        assert [name for name, value in own.items() if value is not None] == [f"member{index}"]
        assert swapped == own


def test_columns_may_lack_members_of_a_union() -> None:
    values = Avro(EITHER).encode(pa.array([{"member1": "x"}]))
    assert values.to_pylist() == [data(EITHER, "x")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (members(), "row 1 does not fit the Avro schema: the value has no member"),
        (members(member0=1, member1="x"), "row 1 does not fit the Avro schema: the value has several members"),
    ],
)
def test_struct_with_no_or_several_members_is_not_written(row: Any, message: str) -> None:
    form = Avro(EITHER)
    assert form.schema is not None
    with pytest.raises(ValueError, match=message):
        form.encode(pa.array([members(member0=1), row], form.schema.type))


def test_records_in_a_union_are_found_by_name() -> None:
    either = [record(("x", "int"), name="A"), record(("y", "int"), name="B")]
    form = Avro([either[1], either[0]], schemas={1: either}, keep_bad=True)
    found, bad = form.decode(pa.array([framed(1, either, ("B", {"y": 5})), framed(1, either, ("A", {"x": 6}))]))
    assert bad == []
    assert found.to_pylist() == [{"member0": {"y": 5}, "member1": None}, {"member0": None, "member1": {"x": 6}}]


# -- resolution -------------------------------------------------------------------------------------------------------


def test_writer_may_have_recursive_and_other_fields_that_are_skipped() -> None:
    tree = record(("left", ["null", "Tree"]), ("label", "string"), name="Tree")
    writer = record(
        ("tree", tree), ("lists", {"type": "array", "items": {"type": "map", "values": ["float", "bytes"]}}),
        ("kept", "int"), ("fixed", {"type": "fixed", "name": "F", "size": 3}),
        ("suit", {"type": "enum", "name": "S", "symbols": ["X"]}),
    )  # fmt: skip
    value = {
        "tree": {"left": {"left": {"left": None, "label": "c"}, "label": "b"}, "label": "a"},
        "lists": [{"x": 0.5, "y": b"z"}, {}], "kept": 7, "fixed": b"abc", "suit": "X",
    }  # fmt: skip
    form = Avro(record(("kept", "long")), schemas={1: writer})
    found, bad = form.decode(pa.array([framed(1, writer, value)] * 3))
    assert (found.to_pylist(), bad) == ([{"kept": 7}] * 3, [])


def test_fields_are_found_by_alias_and_get_defaults() -> None:
    reader = record(
        ("at", "long"), ("raw", "bytes", "\xff\0"), ("two", {"type": "fixed", "name": "F", "size": 2}, "ab")
    )
    reader["fields"][0]["aliases"] = ["ts"]
    reader["fields"].append({"name": "in", "type": record(("x", "int", 3), name="I"), "default": {}})
    form = Avro(reader, schemas={1: record(("ts", "int"))})
    found, bad = form.decode(pa.array([framed(1, record(("ts", "int")), {"ts": 5})]))
    assert (found.to_pylist(), bad) == ([{"at": 5, "raw": b"\xff\0", "two": b"ab", "in": {"x": 3}}], [])


def test_symbols_that_the_reader_lacks_become_its_default() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
    values = pa.array([framed(1, enum, symbol) for symbol in "ABC"])
    known = {**enum, "symbols": ["C", "A"]}
    found, bad = Avro({**known, "default": "A"}, schemas={1: enum}).decode(values)
    assert (found.to_pylist(), bad) == (["A", "A", "C"], [])
    _, (bad_one,) = Avro(known, schemas={1: enum}).decode(values)
    assert bad_one == (1, "its enum has no symbol 1, or the schema to read with lacks the symbol")


@pytest.mark.parametrize("symbol", ["A", "B" * 70])
def test_symbols_make_room_for_themselves(symbol: str) -> None:
    """Their column needs more values than there are rows, or more bytes than the values have."""
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B" * 70]}
    schema = record(("before", "int"), ("symbols", {"type": "array", "items": enum}))
    rows = [{"before": 1, "symbols": [symbol] * 200}]
    found, bad = Avro(schema).decode(pa.array([data(schema, row) for row in rows]))
    assert bad == []
    assert found.to_pylist() == rows


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (record(("a", "int"), ("b", "int")), "b: the writer's schema lacks this field, and it has no default"),
        (record(("a", "string")), "a: int cannot be read as string"),
        (record(("a", {"type": "int", "logicalType": "date"})), ""),
        ("int", "record R cannot be read as int"),
    ],
)
def test_schemas_that_do_not_fit_are_named(reader: Any, message: str) -> None:
    writer = record(("a", "int"))
    if not message:
        writer["fields"][0]["type"] = {"type": "int", "logicalType": "time-millis"}
        message = "a: int (time-millis) cannot be read as int (date)"
    _, (bad,) = Avro(reader, schemas={1: writer}).decode(pa.array([framed(1, writer, {"a": 1})]))
    assert message in bad.reason


def test_branch_that_does_not_fit_is_bad_for_its_values_only() -> None:
    form = Avro("int", schemas={1: ["int", "string"]}, keep_bad=True)
    found, bad = form.decode(pa.array([framed(1, ["int", "string"], value) for value in (1, "x", 2)]))
    assert found.to_pylist() == [1, None, 2]
    assert bad == [(1, "branch 1 of a union does not fit the schema to read with")]


def test_ids_may_alternate_between_nulls() -> None:
    form = Avro("long", schemas={1: "int", 2: "long"})
    rows = [None, framed(1, "int", 1), None, framed(2, "long", 2), framed(1, "int", 3), None]
    for kind in (pa.binary(), pa.large_binary()):
        values = pa.array([b"?", *rows, b"?"], kind).slice(1, len(rows))
        found, bad = form.decode(values)
        assert (found.to_pylist(), bad) == ([None, 1, None, 2, 3, None], [])
    found, bad = form.decode(pa.array([None, None], pa.binary()))
    assert (found.to_pylist(), bad) == ([None, None], [])


# -- limits -----------------------------------------------------------------------------------------------------------


def test_long_lists_and_texts_fit() -> None:
    schema = {"type": "array", "items": {"type": "map", "values": "string"}}
    value = [{f"key {index}": "x" * index} for index in range(1000)]
    form = Avro(schema)
    found, bad = form.decode(pa.array([data(schema, value)] * 3))
    assert bad == []
    assert found.to_pylist() == [[list(item.items()) for item in value]] * 3
    assert form.encode(found).to_pylist() == [data(schema, value)] * 3


def test_default_that_is_longer_than_the_values_fits() -> None:
    form = Avro(record(("b", "string", "y" * 1000)), schemas={1: record()})
    found, _ = form.decode(pa.array([framed(1, record(), {})] * 100))
    assert found.to_pylist() == [{"b": "y" * 1000}] * 100


FIXED = {"type": "fixed", "name": "F", "size": 4}


@pytest.mark.parametrize(
    ("of", "default", "reason"),
    [
        (FIXED, "ab", "it has 2 bytes, not 4"),
        (FIXED, "abcdef", "it has 6 bytes, not 4"),
        ("int", 1 << 31, "it is too large"),
        ("long", 1 << 63, "it is too large"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "E has no such symbol"),
    ],
)
def test_default_that_does_not_fit_is_named(of: Any, default: Any, reason: str) -> None:
    """Also when values are written: other bytes would move the fields after it."""
    schema = record(("x", "int"), ("b", of, default))
    message = f"b: its default {default!r} does not fit its type: {reason}"
    _, (bad,) = Avro(schema, schemas={1: record(("x", "int"))}).decode(pa.array([b"\0\0\0\0\1\2"]))
    assert bad.reason == message
    with pytest.raises(ValueError, match=message):
        Avro(schema).encode(pa.array([{"x": 1}]))


@pytest.mark.parametrize(
    ("of", "default"), [(["int", "long"], 1 << 31), ([FIXED, "string"], "ab"), (["float", "double"], 1e300)]
)
def test_default_of_a_union_is_of_the_first_branch_that_holds_it(of: Any, default: Any) -> None:
    values = Avro(record(("x", "int"), ("b", of, default))).encode(pa.array([{"x": 1}]))
    assert values.to_pylist() == [data("int", 1) + varint(1) + data(of[1], default)]


@pytest.mark.parametrize("names", [("old", "new"), ("new", "old")])
def test_name_of_a_field_is_stronger_than_an_alias(names: tuple[str, str]) -> None:
    writer = record(*((name, "int") for name in names))
    reader = record(("new", "int"))
    reader["fields"][0]["aliases"] = ["old"]
    found, bad = Avro(reader, schemas={1: writer}).decode(pa.array([framed(1, writer, {"old": 1, "new": 2})]))
    assert (found.to_pylist(), bad) == ([{"new": 2}], [])


def test_blocks_with_sizes_are_read() -> None:
    schema = {"type": "array", "items": "int"}
    found, bad = Avro(schema).decode(pa.array([b"\x03\x04\x02\x04\x02\x06\x00"]))  # -2, 4 bytes; 1, 2; 1; 3
    assert (found.to_pylist(), bad) == ([[1, 2, 3]], [])


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "array", "items": "null"}, varint(1 << 40) + b"\0", f"a list has more than {MOST_EMPTY} items"),
        ({"type": "array", "items": "int"}, varint(1 << 40) + b"\0", "a length or count of"),
        ({"type": "array", "items": "int"}, varint(-(1 << 63)) + b"\0\0", "a length or count of"),
        ({"type": "map", "values": "null"}, varint(5) + b"\0\0", "a length or count of 5"),
        ("bytes", varint(-1), "a length or count of -1"),
        ("bytes", varint(5) + b"abcd", "it ends too early"),
        ("string", b"\x04\xc3\xa4\x80", "it is followed by 1 extra bytes"),
        ("string", b"\x06\xed\xa0\x80", "a string is not UTF-8"),
        ("int", varint(1 << 31), "a number is larger than its type"),
        ("long", b"\xff" * 11, "it ends too early"),
        ("boolean", b"\x02", "a boolean is 2"),
        (["null", "int"], b"\x04", "its union has no branch 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "its enum has no symbol 1"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", "it ends too early"),
    ],
)
def test_damage_is_named(schema: Any, value: bytes, reason: str) -> None:
    found, (bad,) = Avro(schema, keep_bad=True).decode(pa.array([value]))
    assert found.to_pylist() == [None]
    assert reason in bad.reason


def nested(depth: int) -> Any:
    schema: Any = "int"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubled(levels: int) -> Any:
    """Return records which each have two fields of the next: of 2**levels columns."""
    found: Any = record(("x", "int"), name=f"R{levels}")
    for level in reversed(range(levels)):
        found = record(("a", found), ("b", found["name"]), name=f"R{level}")
    return found


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(("x", "int", "text")), "it is not an Avro schema: Default value <text> must match"),
        (record(("x", "int"), ("x", "int")), "two fields of R have the name x"),
        (record(("x", {"type": "fixed", "name": "F", "size": -1})), "the size of F is -1"),
        (record(("x", {"type": "fixed", "name": "F", "size": 1 << 40})), "the size of F is 1099511627776"),
        (nested(3000), "maximum recursion depth exceeded"),
        (doubled(40), "its schema has more than 100000 columns"),
    ],
)
def test_values_of_a_schema_that_cannot_be_used_are_bad(schema: Any, reason: str) -> None:
    """A size below zero would read the bytes before a value, and 40 records would ask for 2**40 columns."""
    values = pa.array([framed(1, record(("x", "int")), {"x": 7}), b"\0\0\0\0\2\2"])
    form = Avro(schemas={1: record(("x", "int")), 2: schema}, keep_bad=True)
    found, (bad,) = form.decode(values)
    assert found.to_pylist() == [{"x": 7}, None]
    assert bad.row == 1
    assert reason in bad.reason


def test_lists_that_are_too_deep_are_bad() -> None:
    schema: Any = "int"
    for _ in range(MOST_DEPTH + 1):
        schema = {"type": "array", "items": schema}
    _, (bad,) = Avro(schema).decode(pa.array([varint(1) * (MOST_DEPTH + 1) + b"\0" * (MOST_DEPTH + 2)]))
    assert bad.reason == f"lists and maps are in each other more than {MOST_DEPTH} times"


# -- decimals, and what cannot be written -----------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [4, 38, 39, 76])
@pytest.mark.parametrize("kind", ["bytes", {"type": "fixed", "name": "F", "size": 40}])
def test_decimals(kind: Any, precision: int) -> None:
    plain = kind if isinstance(kind, dict) else {"type": kind}
    schema = {**plain, "logicalType": "decimal", "precision": precision, "scale": 2}
    largest = Decimal(f"{'9' * (precision - 2)}.99")
    rows = [
        largest,
        largest.copy_negate(),
        Decimal("0.00"),
        Decimal("-0.01"),
        Decimal("1.27"),
        Decimal("1.28"),
        Decimal("-1.29"),
    ]
    form = Avro(schema, keep_bad=True)
    assert form.schema is not None
    values = form.encode(pa.array(rows, form.schema.type))
    assert form.decode(values)[0].to_pylist() == rows
    if isinstance(kind, str):
        numbers = [int.from_bytes(value[1:], "big", signed=True) for value in values.to_pylist()]
        assert numbers == [int(str(row).replace(".", "")) for row in rows]
        one_more = (10**precision).to_bytes(40, "big")
        _, (bad,) = form.decode(pa.array([varint(40) + one_more]))
        assert bad.reason == "a decimal has more digits than its precision"


@pytest.mark.parametrize(
    ("schema", "rows", "message"),
    [
        (record(("a", "int")), [{"a": 1}, {"a": None}], "row 1 does not fit the Avro schema: a must not be null"),
        (record(("a", {"type": "array", "items": "int"})), [{"a": [1, None]}], "a must not be null"),
        (record(("a", "int"), ("b", "int")), [{"a": 1}], "the columns have no b, and the schema has no default"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, ["A", "C"], "'C' is not a symbol of E: A, B"),
    ],
)
def test_values_that_do_not_fit_are_not_written(schema: Any, rows: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Avro(schema).encode(pa.array(rows))


def test_slices_are_written() -> None:
    schema = record(
        ("i", ["null", "int"]), ("s", ["null", "string"]), ("b", "boolean"),
        ("l", {"type": "array", "items": "string"}), ("m", {"type": "map", "values": ["null", "double"]}),
        ("n", ["null", record(("x", "long"), name="N")]),
    )  # fmt: skip
    form = Avro(schema)
    assert form.schema is not None
    rows = [
        {"i": index if index % 3 else None, "s": "x" * index if index % 2 else None, "b": index % 2 == 0,
         "l": ["y"] * (index % 4), "m": [("k", None), ("q", index / 2)], "n": {"x": index} if index % 5 else None}
        for index in range(40)
    ]  # fmt: skip
    column = pa.array(rows, form.schema.type)
    for first, length in ((0, 40), (3, 17), (39, 1), (40, 0)):
        values = form.encode(column.slice(first, length))
        assert form.decode(values)[0].to_pylist() == rows[first : first + length]


# -- durations --------------------------------------------------------------------------------------------------------

DURATION = {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}
INTERVAL = pa.month_day_nano_interval()


def duration(months: int, days: int, milliseconds: int) -> bytes:
    return struct.pack("<III", months, days, milliseconds)


def test_duration_is_an_interval() -> None:
    schema = record(("each", {"type": "array", "items": DURATION}), ("maybe", ["null", "D"], None))
    form = Avro(schema)
    assert form.schema is not None
    assert form.schema.type == pa.struct([("each", pa.list_(INTERVAL)), ("maybe", INTERVAL)])
    largest = 2**31 - 1, 2**31 - 1, (2**32 - 1) * 10**6
    rows = [{"each": [(1, 2, 3_000_000), (0, 0, 0), largest], "maybe": None}, None, {"each": [], "maybe": (7, 8, 0)}]
    values = form.encode(pa.array(rows, form.schema.type))
    raw = [duration(1, 2, 3), duration(0, 0, 0), duration(2**31 - 1, 2**31 - 1, 2**32 - 1)]
    assert values.to_pylist() == [
        data(schema, {"each": raw, "maybe": None}), None, data(schema, {"each": [], "maybe": duration(7, 8, 0)}),
    ]  # fmt: skip
    found, bad = form.decode(values)
    assert (found, bad) == (pa.array(rows, form.schema.type), [])


@pytest.mark.parametrize("parts", [(-1, 0, 0), (0, -1, 0), (0, 0, -1_000_000), (0, 0, 1), (0, 0, 2**32 * 10**6)])
def test_interval_that_is_no_duration_is_not_written(parts: tuple[int, int, int]) -> None:
    intervals = pa.array([{"d": (0, 0, 0)}, {"d": parts}], pa.struct([("d", INTERVAL)]))
    with pytest.raises(ValueError, match="row 1 does not fit the Avro schema: d must have whole milliseconds, at most"):
        Avro(record(("d", DURATION))).encode(intervals)


def test_duration_that_is_no_interval_is_bad() -> None:
    values = pa.array([duration(2**31, 0, 0), duration(1, 0, 0), duration(0, 2**32 - 1, 0), b"\0" * 11])
    found, bad = Avro(DURATION, keep_bad=True).decode(values)
    assert found.to_pylist() == [None, pa.MonthDayNano([1, 0, 0]), None, None]
    assert [item.reason.partition(";")[0] for item in bad] == [
        "a duration has 2147483648 months or days, more than 2^31 - 1",
        "a duration has 4294967295 months or days, more than 2^31 - 1",
        "it ends too early",
    ]


def test_durations_may_stay_bytes() -> None:
    form = Avro(DURATION, schemas={1: DURATION}, intervals=False)
    found, bad = form.decode(pa.array([b"\0\0\0\0\1" + duration(2**31, 1, 2)]))
    assert (found.type, found.to_pylist(), bad) == (pa.binary(12), [duration(2**31, 1, 2)], [])
    assert form.encode(found).to_pylist() == [duration(2**31, 1, 2)]
    assert Avro({**DURATION, "size": 8}).decode(pa.array([b"12345678"]))[0].to_pylist() == [b"12345678"]


def test_duration_may_have_a_default() -> None:
    reader = record(("d", DURATION, "\1" + 11 * "\0"))
    found, bad = Avro(reader, schemas={1: record()}).decode(pa.array([framed(1, record(), {})]))
    assert (found.to_pylist(), bad) == ([{"d": pa.MonthDayNano([1, 0, 0])}], [])
