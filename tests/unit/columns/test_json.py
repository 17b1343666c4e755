"""JSON in columns of maps, bytes, decimals, times and large numbers: what is read and written, and what is an error."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from oncelog.formats import Json

MAP = pa.map_(pa.string(), pa.int64())
PRICE = pa.decimal128(9, 2)
UTC = datetime.UTC


def read(kind: pa.DataType, *values: bytes) -> tuple[list[Any], list[str]]:
    """Return the values, and why the others are bad."""
    found, bad = Json(kind, keep_bad=True).decode(pa.array(values, pa.binary()))
    found.validate(full=True)
    return found.to_pylist(), [item.reason for item in bad]


def test_object_with_any_names_becomes_a_map() -> None:
    kind = pa.struct([("labels", MAP), ("deep", pa.list_(pa.map_(pa.string(), pa.struct([("m", MAP)]))))])
    values = [
        b'{"labels": {"a": 1, "key": null, "value": 3, "": 4}, "other": {"labels": [{}]}}',
        b'{"labels": null, "deep": [{"x": {"m": {"y": 5}}, "z": null}, {}, null]}',
        b' {\n"labels" :\t{ } }',
        b'{"\\u006cabels": {"\\ud83d\\ude00\\"": -1}}',
    ]
    found, bad = read(kind, *values)
    assert bad == []
    assert [row["labels"] for row in found] == [
        [("a", 1), ("key", None), ("value", 3), ("", 4)], None, [], [('\U0001f600"', -1)],
    ]  # fmt: skip
    assert found[1]["deep"] == [[("x", {"m": [("y", 5)]}), ("z", None)], [], None]


def test_reason_of_a_bad_value_names_the_kind_and_a_schema_id() -> None:
    kind = pa.struct([("id", pa.int64())])
    framed = b"\x00\x00\x00\x00\x64\x02\x0e"
    assert read(kind, b"7", framed, b"\x00\x00") == (
        [None, None, None],
        [
            "the value: it must be an object, not a number",
            "it is not valid JSON. It begins with the id of a schema, 100, so it may be Avro",
            "it is not valid JSON",
        ],
    )


def test_map_is_written_as_an_object_and_read_again() -> None:
    maps = pa.array([[("a", 1), ("ü\n", None)], [], None], MAP)
    values = Json(MAP).encode(maps)
    assert [value and json.loads(value) for value in values.to_pylist()] == [{"a": 1, "ü\n": None}, {}, None]
    found, bad = Json(MAP).decode(values)
    assert (found.combine_chunks(), bad) == (maps, [])


def test_name_that_is_twice_in_an_object_is_twice_in_the_map() -> None:
    assert read(MAP, b'{"a": 1, "a": 2}') == ([[("a", 1), ("a", 2)]], [])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'[{"key": "a", "value": 1}]', "m: it must be an object, because its type is map<string, int64>"),
        (b"5", "m: it must be an object"),
        (b'"x"', "m: it must be an object"),
        (b'{"a": "x"}', "m.value: it must be a number, not a text"),
        (b'{"a": 1,}', "it is not valid JSON"),
        (b'{"a" 1}', "it is not valid JSON"),
        (b'{"a": }', "it is not valid JSON"),
        (b"{a: 1}", "it is not valid JSON"),
        (b'{"a": 1 "b": 2}', "it is not valid JSON"),
        (b'{"a": 1]', "it is not valid JSON"),
        (b"nul", "JSON parse error: Invalid value."),
    ],
)
def test_value_that_is_no_map_is_bad(value: bytes, reason: str) -> None:
    kind = pa.struct([("m", MAP)])
    found, reasons = read(kind, b'{"m": {"x": 1}}', b'{"m": ' + value + b"}", b'{"m": {"y": 2}}')
    assert found == [{"m": [("x", 1)]}, None, {"m": [("y", 2)]}]
    assert len(reasons) == 1
    assert reasons[0].startswith(reason)


def test_map_needs_text_keys() -> None:
    with pytest.raises(TypeError, match=r"^m: the keys of a map must be strings in JSON, not int32"):
        Json(pa.schema([("m", pa.map_(pa.int32(), pa.int64()))]))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(4)])
def test_bytes_are_base64(kind: pa.DataType) -> None:
    rows = [b"\0\xff\xfe1", None, b"abcd"]
    values = Json(kind).encode(pa.array(rows, kind))
    assert values.to_pylist() == [b'"AP/+MQ=="', None, b'"YWJjZA=="']
    assert Json().encode(pa.array(rows, kind)) == values
    assert Json(kind).decode(values)[0].to_pylist() == rows
    assert read(kind, b'"AP/+MQ"', b'"AP_-MQ=="', b'"A==="', b'"AP/ +MQ=="', b"5", b'"=AAA"')[1] == [
        "the value: 'AP/+MQ' is not base64",
        "the value: 'AP_-MQ==' is not base64",
        "the value: 'A===' is not base64",
        "the value: 'AP/ +MQ==' is not base64",
        "the value: it must be a text, not a number",
        "the value: '=AAA' is not base64",
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)])
def test_slices_of_bytes_are_written(kind: pa.DataType) -> None:
    column = pa.array([b"ab", None, b"cd", None, None] * 4, pa.binary()).cast(kind)
    whole = Json().encode(column).to_pylist()
    for first in range(12):
        assert Json().encode(column.slice(first, 7)).to_pylist() == whole[first : first + 7]


def test_bytes_of_a_wrong_size_are_bad() -> None:
    kind = pa.struct([("digest", pa.binary(2))])
    found, reasons = read(kind, b'{"digest": "YWI="}', b'{"digest": "YQ=="}')
    assert found == [{"digest": b"ab"}, None]
    assert reasons == ["digest: 1 bytes, but its type has 2"]


DIGITS = "12345678901234567890123456789012345678901234567890123456789012345678901.23456"


def test_decimals_never_become_floats() -> None:
    assert read(PRICE, b"0.1", b'"-1.50"', b"1e3", b"12E-1", b"-0", b"1.000", b'"+7"', b"0e99999999999")[0] == [
        Decimal(text) for text in ("0.10", "-1.50", "1000.00", "1.20", "0.00", "1.00", "7.00", "0.00")
    ]
    found, bad = read(pa.decimal256(76, 5), DIGITS.encode(), f'"{DIGITS}"'.encode())
    assert ([str(one) for one in found], bad) == ([DIGITS, DIGITS], [])
    assert Json().encode(pa.array([Decimal(DIGITS)])).to_pylist() == [DIGITS.encode()]


@pytest.mark.parametrize(
    "value", [b"1.255", b"12345678.9", b"1e7", b"1e-3", b"1e-77", b"1e99999", b"1e-1000000000", b'"1e-1000000000"']
)
def test_number_that_a_decimal_cannot_hold_is_bad(value: bytes) -> None:
    """pyarrow 26 reads 1e-77 as zero, and crashes for 1e-1000000000."""
    assert read(pa.struct([("price", PRICE)]), b'{"price": %s}' % value) == (
        [None], ["price: its number does not fit decimal128(9, 2) without loss"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "value", [b'"x"', b'""', b'"1 "', b'"1e"', b'"0x1"', b'"NaN"', b'"\\u0031"', b"01", b"1.", b"-"]
)
def test_text_that_is_no_number_is_bad(value: bytes) -> None:
    assert read(PRICE, value) == ([None], ["the value: it is not a number, but its type is decimal128(9, 2)"])


@pytest.mark.parametrize("value", [b"true", b"NaN", b"{}", b"[1]", b"+1", b".5"])
def test_value_of_another_kind_is_no_decimal(value: bytes) -> None:
    found, bad = read(PRICE, value)
    assert (found, len(bad)) == ([None], 1)


def test_large_integers_are_exact_or_bad() -> None:
    large = 2**63
    text = str(large).encode()
    assert read(pa.decimal128(38, 0), text, b"-" + text) == ([Decimal(large), Decimal(-large)], [])
    assert read(pa.uint64(), text) == ([large], [])
    assert read(pa.int64(), text) == ([None], [f"Failed to convert JSON to int64, couldn't parse:{large}"])
    assert read(pa.int64(), b"1.0", b"1e3")[0] == [None, None]
    assert Json().encode(pa.array([large], pa.uint64())).to_pylist() == [text]


def test_nan_and_infinity_are_read_as_python_writes_them_and_not_written() -> None:
    numbers = [float("inf"), float("-inf"), 0.1]
    values = [json.dumps(number).encode() for number in numbers]
    assert read(pa.float64(), *values) == (numbers, [])
    assert str(read(pa.float32(), b"NaN")[0]) == "[nan]"
    assert read(pa.float64(), b'"NaN"', b"nan")[0] == [None, None]
    with pytest.raises(ValueError, match="row 0: the value: JSON cannot represent inf"):
        Json(pa.float64()).encode(pa.array(numbers))


def test_times_with_and_without_a_zone() -> None:
    noon = datetime.datetime(2026, 1, 2, 12, tzinfo=UTC)
    texts = [
        b'"2026-01-02T12:00:00"',
        b'"2026-01-02 12:00:00Z"',
        b'"2026-01-02T14:00:00.000000+02:00"',
        b'"2026-01-02"',
    ]
    for unit in ("s", "ms", "us", "ns"):
        found, bad = read(pa.timestamp(unit, "UTC"), *texts)
        assert (found, bad) == ([noon, noon, noon, datetime.datetime(2026, 1, 2, tzinfo=UTC)], [])
        local, bad = read(pa.timestamp(unit), *texts)
        assert (local, bad) == ([each.replace(tzinfo=None) for each in found], [])


def test_times_that_a_type_cannot_hold_are_bad() -> None:
    assert len(read(pa.timestamp("ms"), b'"2026-01-02T12:00:00.000001"')[1]) == 1
    assert len(read(pa.timestamp("us"), b'"2026-01-02T12:00:00.000000001"')[1]) == 1
    assert read(pa.timestamp("us"), b"1767355200") == ([None], ["the value: it must be a text, not a number"])


def test_first_bad_value_ends_the_column() -> None:
    values = pa.array([b'{"m": {"a": 1}}', b'{"m": 5}', b'{"m": {"a": "x"}}', b"{"])
    found, bad = Json(pa.schema([("m", MAP)])).decode(values)
    assert found.to_pylist()[:1] == [{"m": [("a", 1)]}]
    assert [item.row for item in bad] == [1]
    _, bad = Json(pa.schema([("m", MAP)])).decode(values.slice(2))
    assert [item.row for item in bad] == [0]


def test_framed_values_are_read_and_written() -> None:
    form = Json(MAP, schema_id=7)
    values = form.encode(pa.array([[("a", 1)]], MAP))
    assert values.to_pylist() == [b'\0\0\0\0\7{"a":1}']
    assert form.decode(values)[0].to_pylist() == [[("a", 1)]]


def test_any_value_is_read_as_a_text_with_its_json() -> None:
    kind = pa.struct([("a", pa.json_()), ("l", pa.list_(pa.json_())), ("m", pa.map_(pa.string(), pa.json_()))])
    texts = ["1", "-0.50e3", '"x\\"\\\\\\u00e9 ü"', "true", '{"b": [1, {"c": "\\n"}]}', "[ ]", '"' + "\\\\" * 3 + '"']
    values = [f'{{"a": {text}, "l": [{text} , null,{text}], "m": {{"k": {text}}}}}'.encode() for text in texts]
    found, bad = read(kind, *values, b'{"a": null, "m": null}', b"{}")
    assert bad == []
    assert [row["a"] for row in found] == [*texts, None, None]
    assert [row["l"] for row in found] == [*([text, None, text] for text in texts), None, None]
    assert [row["m"] for row in found] == [*([("k", text)] for text in texts), None, None]
    assert read(pa.json_(), *(text.encode() for text in texts)) == (texts, [])
    assert Json(kind).type.field("a").type == pa.string()


@pytest.mark.parametrize("value", ["tru", "01", '{"b": tru}', '{"b": }', "[1 2]", '"\\x"', "1 2", "nul"])
def test_value_of_a_text_must_be_json(value: str) -> None:
    found, bad = read(pa.struct([("a", pa.json_())]), b'{"a": 5}', f'{{"a": {value}}}'.encode(), b'{"a": 6}')
    assert (found, len(bad)) == ([{"a": "5"}, None, {"a": "6"}], 1)


def test_objects_with_names_of_any_lengths() -> None:
    """The kernel got the addresses of arrays that were freed before it ran. Only some sizes were wrong."""
    for size, count in product((1, 2, 3, 5, 8), range(1, 9)):
        names = [str(number) * size for number in range(1, count + 1)]
        kind = pa.struct([(name, MAP) for name in names])
        found, bad = read(kind, json.dumps({name: {"a": 1} for name in names}).encode())
        assert (found, bad) == ([{name: [("a", 1)] for name in names}], [])
