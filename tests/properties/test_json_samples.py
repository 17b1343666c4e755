"""The type that a sample of JSON gets reads each value of the sample without loss."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oncelog.columns.json_types import JSON_TEXT
from oncelog.formats import Json
from oncelog.tables.json_types import type_of

LIMITS = [2**53, 2**63, 10**38, 10**39]
INTEGERS = st.one_of(
    st.integers(-3, 3), st.builds(lambda sign, limit, by: sign * limit + by, st.sampled_from([-1, 1]),
                                  st.sampled_from(LIMITS), st.integers(-2, 2)),
)  # fmt: skip
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
NAMES = st.sampled_from(["a", "b", "text", "json", 'q"\\', ""])
SCALARS = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
KINDS = [st.dictionaries(NAMES, each, max_size=3) for each in (INTEGERS, INTEGERS | FLOATS, DOCUMENTS)]
SAMPLES = st.one_of(*(st.lists(each, min_size=1, max_size=4) for each in (*KINDS, DOCUMENTS)))


def is_same(kind: pa.DataType, found: Any, value: Any) -> bool:
    if value is None or found is None:
        return value is found
    if kind == JSON_TEXT:
        return json.dumps(json.loads(found)) == json.dumps(value)
    if pa.types.is_struct(kind):
        fields = [is_same(field.type, found[field.name], value.get(field.name)) for field in kind]
        return all(fields) and value.keys() <= found.keys()
    if pa.types.is_list(kind):
        return len(found) == len(value) and all(
            is_same(kind.value_type, *each) for each in zip(found, value, strict=True)
        )
    return bool(found == value) and isinstance(value, bool) == isinstance(found, bool)


@given(SAMPLES, st.booleans())
def test_sample_is_read_without_loss(values: list[Any], ascii_only: bool) -> None:
    kind = type_of(values)
    texts = pa.array([json.dumps(each, ensure_ascii=ascii_only).encode() for each in values], pa.binary())
    found, bad = Json(kind).decode(texts)
    found.validate(full=True)
    assert bad == []
    assert all(is_same(kind, *each) for each in zip(found.to_pylist(), values, strict=True)), (kind, found)
