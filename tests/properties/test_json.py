"""Random types and values: our columns hold what Python's json has written, and Python reads what we write."""

from __future__ import annotations

import base64
import datetime
import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oncelog.formats import Json

UTC = datetime.UTC
NAMES = st.sampled_from(["a", "b", "key", "value", "v", "ü", 'q"\\\n', "\U0001f600", ""])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
TIMES = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
TIMES_OF_DAY = st.times()


def integers(bits: int, *, signed: bool) -> Any:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


PLAIN: dict[pa.DataType, Any] = {
    pa.bool_(): st.booleans(),
    pa.int8(): integers(8, signed=True),
    pa.int64(): integers(64, signed=True),
    pa.uint64(): integers(64, signed=False),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): st.binary(max_size=5),
    pa.large_binary(): st.binary(max_size=5),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(),
    pa.time32("s"): TIMES_OF_DAY.map(lambda time: time.replace(microsecond=0)),
    pa.time64("us"): TIMES_OF_DAY,
    pa.timestamp("us"): TIMES,
    pa.timestamp("us", "UTC"): TIMES.map(lambda time: time.replace(tzinfo=UTC)),
    pa.timestamp("ms", "UTC"): TIMES.map(
        lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=UTC)
    ),
    pa.null(): st.none(),
}


def decimals(kind: pa.DataType) -> Any:
    digits = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
    return digits.map(lambda number: scaled(number, -kind.scale))


def scaled(number: int, exponent: int) -> Decimal:
    """Return an exact decimal: Python's own functions round to 28 digits."""
    return Decimal((number < 0, tuple(int(digit) for digit in str(abs(number))), exponent))


@st.composite
def types(draw: Any, depth: int = 3) -> pa.DataType:
    kind = draw(st.sampled_from([*PLAIN, "decimal"] + ["struct", "list", "map"] * 3 * bool(depth)))
    match kind:
        case "decimal":
            precision = draw(st.integers(1, 76))
            scale = draw(st.integers(0, precision))
            small = draw(st.booleans())
            if precision <= 9 and small:
                return pa.decimal32(precision, scale)
            return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, scale)
        case "struct":
            names = draw(st.lists(NAMES, unique=True, max_size=4))
            return pa.struct([(name, draw(types(depth - 1))) for name in names])
        case "list":
            return pa.list_(draw(types(depth - 1)))
        case "map":
            return pa.map_(draw(st.sampled_from([pa.string(), pa.large_string()])), draw(types(depth - 1)))
    found: pa.DataType = kind
    return found


def value(draw: Any, kind: pa.DataType) -> Any:
    """Draw a value as Arrow returns it from a column of this type."""
    t = pa.types
    if not draw(st.integers(0, 5)):
        return None
    if t.is_struct(kind):
        return {field.name: value(draw, field.type) for field in kind}
    if t.is_list(kind):
        return [value(draw, kind.value_type) for _ in range(draw(st.integers(0, 3)))]
    if t.is_map(kind):
        keys = draw(st.lists(NAMES | TEXT, unique=True, max_size=3))
        return [(key, value(draw, kind.item_type)) for key in keys]
    return draw(decimals(kind) if t.is_decimal(kind) else PLAIN[kind])


@st.composite
def cases(draw: Any) -> tuple[pa.DataType, list[Any]]:
    kind = draw(types())
    return kind, [value(draw, kind) for _ in range(draw(st.integers(0, 4)))]


def plain(draw: Any, kind: pa.DataType, found: Any) -> Any:
    """Return what Python's json takes for a value, in one of several forms."""
    t = pa.types
    if found is None:
        return None
    if t.is_struct(kind):
        there = {field.name: plain(draw, field.type, found[field.name]) for field in kind}
        if draw(st.booleans()):
            there["unknown"] = draw(st.sampled_from([1, "}{", [{"a": {}}], {"v": ["]"]}]))
        order = draw(st.permutations(list(there)))
        return {name: there[name] for name in order if there[name] is not None or draw(st.booleans())}
    if t.is_list(kind):
        return [plain(draw, kind.value_type, item) for item in found]
    if t.is_map(kind):
        return {key: plain(draw, kind.item_type, item) for key, item in found}
    if t.is_decimal(kind):
        return draw(st.sampled_from(spellings(found)))
    if isinstance(found, bytes):
        return base64.b64encode(found).decode()
    if isinstance(found, datetime.date | datetime.time):
        return found.isoformat()
    return found


def spellings(number: Decimal) -> list[Any]:
    """Return numbers and texts that mean the same decimal."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    mantissa = "-" * sign + "".join(map(str, digits))
    texts = [f"{number:f}", f"{number:f}".replace(".", "") + f"e{exponent}", f"{mantissa}000E{exponent - 3}"]
    texts = [text for text in texts if json_number(text)]
    return [*texts, *(Written(text) for text in texts)]


def json_number(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class Written(int):
    """A number that json writes as this text."""

    def __new__(cls, text: str) -> Written:
        found = super().__new__(cls, 0)
        found.text = text
        return found

    text: str


def dumped(draw: Any, found: Any, *, ascii_only: bool, space: str) -> str:
    """Return the JSON of a value. Python's json writes scalars and names."""
    if isinstance(found, Written):
        return found.text
    if isinstance(found, dict):
        pairs = (
            f"{json.dumps(key, ensure_ascii=ascii_only)}{space}:{space}"
            f"{dumped(draw, item, ascii_only=ascii_only, space=space)}"
            for key, item in found.items()
        )
        return "{" + space + f"{space},{space}".join(pairs) + space + "}"
    if isinstance(found, list):
        items = (dumped(draw, item, ascii_only=ascii_only, space=space) for item in found)
        return "[" + space + f"{space},{space}".join(items) + space + "]"
    return json.dumps(found, ensure_ascii=ascii_only)


def same(one: Any, other: Any) -> bool:
    """Compare values, NaN as equal to itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@st.composite
def texts(draw: Any) -> tuple[pa.DataType, list[Any], list[bytes]]:
    kind, rows = draw(cases())
    style = {"ascii_only": draw(st.booleans()), "space": draw(st.sampled_from(["", " ", "\n\t"]))}
    return kind, rows, [dumped(draw, plain(draw, kind, row), **style).encode() for row in rows]


@given(texts())
def test_columns_hold_what_python_has_written(case: tuple[pa.DataType, list[Any], list[bytes]]) -> None:
    kind, rows, values = case
    found, bad = Json(kind).decode(pa.array(values, pa.binary()))
    assert bad == [], values
    found.validate(full=True)
    assert found.type == kind
    assert same(found.to_pylist(), rows), (values, found)


def finite(found: Any) -> bool:
    if isinstance(found, dict):
        return all(map(finite, found.values()))
    if isinstance(found, list | tuple):
        return all(map(finite, found))
    return not isinstance(found, float) or math.isfinite(found)


def read(kind: pa.DataType, found: Any) -> Any:
    """Return a value that Python's json has read, as Arrow returns it."""
    t = pa.types
    if found is None:
        return None
    if t.is_struct(kind):
        return {field.name: read(field.type, found[field.name]) for field in kind}
    if t.is_list(kind):
        return [read(kind.value_type, item) for item in found]
    if t.is_map(kind):
        return [(key, read(kind.item_type, item)) for key, item in found.items()]
    if t.is_decimal(kind):
        sign, digits, exponent = Decimal(found).as_tuple()
        assert isinstance(exponent, int)
        number = int("".join(map(str, digits))) * 10 ** (exponent + kind.scale)
        return scaled(-number if sign else number, -kind.scale)
    if t.is_floating(kind):
        return float(np.float32(found)) if t.is_float32(kind) else float(found)
    if t.is_timestamp(kind):
        return datetime.datetime.fromisoformat(found)
    if t.is_date(kind):
        return datetime.date.fromisoformat(found)
    if t.is_time(kind):
        return datetime.time.fromisoformat(found)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return base64.b64decode(found, validate=True)
    return found


@given(cases())
def test_python_reads_what_columns_have_written(case: tuple[pa.DataType, list[Any]]) -> None:
    kind, rows = case
    rows = [row for row in rows if finite(row)]
    values = Json(kind).encode(pa.array(rows, kind))
    for row, data in zip(rows, values.to_pylist(), strict=True):
        if row is None:
            assert data is None
            continue
        found = json.loads(data, parse_float=str, parse_int=int)
        assert same(read(kind, found), row), (data, row)
    back, bad = Json(kind).decode(values)
    assert bad == []
    assert same(back.to_pylist(), rows)


@given(texts(), st.data())
def test_damaged_values_are_bad_and_their_neighbours_are_not(
    case: tuple[pa.DataType, list[Any], list[bytes]], data: Any
) -> None:
    kind, rows, values = case
    pieces = st.sampled_from(b'{}[]",:\\ 019-+eE.ntf\0\n\x7f\x80\xff').map(lambda byte: bytes([byte]))
    pairs: list[bytes] = []
    for whole in values:
        some = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(0, len(some)))
            some[place : place + data.draw(st.integers(0, 2))] = b"".join(data.draw(st.lists(pieces, max_size=3)))
        pairs += (whole, bytes(some))
    form = Json(kind, keep_bad=True)
    found, bad = form.decode(pa.array(pairs, pa.binary()))
    found.validate(full=True)
    assert all(item.row % 2 for item in bad)
    assert same(found.to_pylist()[::2], rows)
    alone = [form.decode(pa.array([each], pa.binary())) for each in pairs[1::2]]
    assert same(found.to_pylist()[1::2], [column.to_pylist()[0] for column, _ in alone])
    form.keep_bad = False
    first = min((item.row for item in bad), default=len(found))
    fewer, one = form.decode(pa.array(pairs, pa.binary()))
    assert same(fewer.to_pylist()[:first], found.to_pylist()[:first])
    assert one == bad[:1]


NUMBER = st.from_regex(r"\A-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,12})?\Z")
KINDS = [pa.decimal128(9, 2), pa.decimal128(38, 38), pa.decimal256(76, 3), pa.decimal64(18, 0), pa.decimal128(5, 5)]


@given(NUMBER, st.sampled_from(KINDS), st.booleans())
def test_decimal_is_exact_or_bad(text: str, kind: pa.DataType, as_text: bool) -> None:
    """Python's Decimal decides what the number is."""
    data = f'"{text}"' if as_text else text
    found, bad = Json(kind, keep_bad=True).decode(pa.array([data.encode()]))
    sign, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)))
    shift = exponent + kind.scale
    if number == 0:
        unscaled: int | None = 0
    elif abs(shift) > 200:
        unscaled = None
    elif shift >= 0:
        unscaled = number * 10**shift
    else:
        unscaled = number // 10**-shift if number % 10**-shift == 0 else None
    if unscaled is None or unscaled >= 10**kind.precision:
        assert [item.row for item in bad] == [0]
    else:
        assert bad == []
        assert found.to_pylist() == [scaled(-unscaled if sign else unscaled, -kind.scale)]
