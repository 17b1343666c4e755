"""Formats write every layout that Arrow has for the same values: runs, views, and dictionaries in lists."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from oncelog.formats import Avro, Json

WORDS = pa.array(["x", "y", "z"])
NUMBERS = pa.list_(pa.int64())
LAYOUTS: dict[str, tuple[pa.Array, pa.DataType, list[Any]]] = {
    "runs": (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), ["x", "y"]), pa.string(), ["x", "x", "y"]),
    "runs with nulls": (
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array([None, 5])),
        pa.int64(),
        [None, 5, 5],
    ),
    "list view": (pa.array([[1], [2, 3], None], pa.list_view(pa.int64())), NUMBERS, [[1], [2, 3], None]),
    "large list view": (pa.array([[1], None, []], pa.large_list_view(pa.int64())), NUMBERS, [[1], None, []]),
    "list view out of order": (
        pa.ListViewArray.from_arrays(pa.array([2, 0, 1], pa.int32()), pa.array([1, 2, 0], pa.int32()), WORDS),
        pa.list_(pa.string()),
        [["z"], ["x", "y"], []],
    ),
    "dictionary in a list": (
        pa.ListArray.from_arrays([0, 1, 3, 3], WORDS.dictionary_encode(), mask=pa.array([False, False, True])),
        pa.list_(pa.string()),
        [["x"], ["y", "z"], None],
    ),
    "dictionary of views in a list": (
        pa.LargeListArray.from_arrays(
            pa.array([0, 1, 2, 3]), pa.DictionaryArray.from_arrays([0, 1, 2], WORDS.cast(pa.string_view()))
        ),
        pa.list_(pa.string()),
        [["x"], ["y"], ["z"]],
    ),
    "dictionary in a struct in a list": (
        pa.ListArray.from_arrays([0, 1, 2, 3], pa.StructArray.from_arrays([WORDS.dictionary_encode()], ["q"])),
        pa.list_(pa.struct([("q", pa.string())])),
        [[{"q": "x"}], [{"q": "y"}], [{"q": "z"}]],
    ),
    "dictionary in a list of one size": (
        pa.FixedSizeListArray.from_arrays(WORDS.dictionary_encode(), 1),
        pa.list_(pa.string()),
        [["x"], ["y"], ["z"]],
    ),
}


@pytest.mark.parametrize("with_schema", [True, False])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_arrow_becomes_json(layout: str, start: int, with_schema: bool) -> None:
    values, kind, wants = LAYOUTS[layout]
    column = pa.StructArray.from_arrays([values.slice(start)], ["v"])
    encoded = Json(pa.schema([("v", kind)]) if with_schema else None).encode(column)
    assert [json.loads(text)["v"] for text in encoded.to_pylist()] == wants[start:]


def test_runs_and_dictionaries_in_lists_become_avro() -> None:
    fields = [{"name": "r", "type": "string"}, {"name": "l", "type": {"type": "array", "items": "string"}}]
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), ["x"])
    lists = pa.ListArray.from_arrays([0, 1, 3], WORDS.dictionary_encode())
    form = Avro({"type": "record", "name": "R", "fields": fields})
    found, bad = form.decode(form.encode(pa.StructArray.from_arrays([runs, lists], ["r", "l"])))
    assert (found.to_pylist(), bad) == ([{"r": "x", "l": ["x"]}, {"r": "x", "l": ["y", "z"]}], [])


@pytest.mark.parametrize("form", [Json(), Json(pa.schema([("a", pa.struct([("q", pa.int64())]))]))])
def test_struct_with_two_fields_of_one_name_is_refused(form: Json) -> None:
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["q", "q"])
    with pytest.raises((TypeError, ValueError), match=r"two fields have the same name: a\.q"):
        form.encode(pa.StructArray.from_arrays([twice], ["a"]))
