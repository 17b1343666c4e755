"""Read and write values as JSON, without a Python object for each value.

pyarrow.json reads them into a column of a given type. Arrow's string functions write them.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from oncelog.columns.fitting import cast, fitted
from oncelog.columns.json_texts import all_texts
from oncelog.columns.json_types import WHOLE, Shape, converted, parsed_type, read_type
from oncelog.columns.native import kernel
from oncelog.columns.signatures import at
from oncelog.columns.values import Bad, bits, buffers
from oncelog.protocol.schema_ids import FRAME, frame, split_frame

PREFIX = np.frombuffer(b'{"v":', np.uint8)
"""The start of each line that pyarrow.json reads."""
MOST_ADDED = len(PREFIX) + 2
"""Largest number of bytes in a line besides the bytes of its value."""
BLOCK = 1 << 22
"""Bytes that one of Arrow's threads parses at a time. Longer lines make the block larger."""


class Json:
    """Read and write values that are JSON texts.

    `schema` is the type to read values into: a pyarrow.Schema for objects, or a pyarrow.DataType for any values. Fields
    that a value lacks are null, and fields that the schema lacks are ignored. Writing does not need a schema. If there
    is one, values are written with its types, and the columns must be exactly its fields.

    Times and dates are ISO 8601 texts, decimals are numbers, bytes are base64, and maps are objects. A field of the
    type `pa.json_()` may have any value, which is read as a text with its JSON. A number that its
    type cannot hold is an error; it is never rounded, except to the nearest float if the type is a float. NaN and
    infinities are read as Python's json writes them. NaN, infinities, and times that cannot be read again raise
    ValueError when they are written. The schema registry's framing is skipped when reading. It is written if
    `schema_id` is given.

    With `keep_bad`, a value that cannot be read is null, and its bytes are in the column `value_bad` (or `key_bad`).
    """

    threads = True
    """Whether Arrow's threads share the values of a batch. It takes less time, and a fifth more CPU."""

    def __init__(
        self, schema: pa.Schema | pa.DataType | None = None, *, schema_id: int | None = None, keep_bad: bool = False
    ) -> None:
        if not isinstance(schema, pa.Schema | pa.DataType | None):
            raise TypeError(
                "the schema must be a pyarrow.Schema or pyarrow.DataType, as in Json(pa.schema([('id', pa.int64())])), "
                f"not {type(schema).__name__}"
            )
        kind = pa.struct(list(schema)) if isinstance(schema, pa.Schema) else schema
        self._parsed = None if kind is None else parsed_type(kind, WHOLE)
        self._shape = None if kind is None else Shape(kind)
        self.type = None if kind is None else read_type(kind)
        self._frame = frame(schema_id)
        self.keep_bad = keep_bad

    def decode(self, values: pa.Array) -> tuple[pa.Array | pa.ChunkedArray, list[Bad]]:
        """See `Format`."""
        if self.type is None:
            raise TypeError("reading JSON requires a schema: Json(pa.schema([...]))")
        valid = bits(values.buffers()[0], values)
        ends, data = buffers(values)
        lines, line_ends, bad = self._lines(data, ends, valid)
        if not self.keep_bad:
            del bad[1:]
        try:
            return self._parse(lines, line_ends), bad
        except pa.ArrowInvalid as error:
            self._find(lines, line_ends, 0, len(values), str(error), bad)
        bad.sort()
        valid[[item.row for item in bad]] = 0
        if not self.keep_bad:
            valid[bad[0].row :] = 0  # the rows after the first bad value are not returned
            del bad[1:]
        return self._parse(*self._lines(data, ends, valid)[:2]), bad

    def _lines(self, data: Any, ends: Any, valid: Any) -> tuple[Any, Any, list[Bad]]:
        """Return the lines for pyarrow.json, the end of each, and the values that are bad. Their `valid` becomes 0."""
        before = valid.copy()
        lines, line_ends = _lines(data, ends, valid)
        bad = [Bad(int(row), _not_json(data[ends[row] : ends[row + 1]])) for row in np.flatnonzero(valid != before)]
        assert self._shape is not None
        if self._shape.needed:
            lines, line_ends, faults = self._shape.rewritten(lines, line_ends)
            bad += [Bad(int(row), self._shape.reason(int(faults[row]))) for row in np.flatnonzero(faults)]
            bad.sort()
            valid[faults != 0] = 0
        return lines, line_ends, bad

    def _parse(self, lines: Any, ends: Any) -> pa.ChunkedArray:
        """Return the values of these lines. Raises ArrowInvalid if one of them is bad.

        Only the differences of `ends` are used: the lengths of the lines.
        """
        if len(ends) == 1:
            return pa.chunked_array([], self.type)
        table = pa.json.read_json(
            pa.BufferReader(pa.py_buffer(lines)),
            pa.json.ReadOptions(self.threads, block_size=max(BLOCK, int(np.diff(ends).max()) + 1)),
            pa.json.ParseOptions(explicit_schema=pa.schema([("v", self._parsed)]), unexpected_field_behavior="ignore"),
        )
        column = table.column("v")
        column.validate(full=True)
        if self._parsed == self.type:
            return column
        return pa.chunked_array([converted(chunk, self.type, WHOLE) for chunk in column.chunks], self.type)

    def _find(self, lines: Any, ends: Any, first: int, last: int, reason: str, bad: list[Bad]) -> bool:
        """Find invalid rows by bisection, and add them to `bad`. Return whether to continue the search."""
        if last - first == 1:
            bad.append(Bad(first, _explained(reason)))
            return self.keep_bad
        middle = (first + last) // 2
        for start, end in ((first, middle), (middle, last)):
            try:
                self._parse(lines[ends[start] : ends[end]], ends[start : end + 1])
            except pa.ArrowInvalid as error:
                if not self._find(lines, ends, start, end, str(error), bad):
                    return False
        return True

    def encode(self, values: pa.Array) -> pa.Array:
        """See `Format`."""
        if self.type is not None:
            values = cast(values, fitted(self.type, values.type, "JSON", complete=True))
        texts = all_texts(values).cast(pa.large_binary())
        if values.null_count:
            texts = pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.large_binary()))
        if not self._frame:
            return texts
        empty = pa.scalar(b"", pa.large_binary())
        return pc.binary_join_element_wise(pa.scalar(self._frame, pa.large_binary()), texts, empty)


def _not_json(value: Any) -> str:
    """Return the reason why these bytes are bad."""
    framed = split_frame(bytes(value[:FRAME]))
    if framed is None:
        return "it is not valid JSON"
    return f"it is not valid JSON. It begins with the id of a schema, {framed[0]}, so it may be Avro"


_WORDS = {"number_or_string": "a number", "string": "a text", "array": "a list", "object": "an object"}
_OTHER_KIND = re.compile(r"JSON parse error: Column\(/v(.*)\) changed from (\w+) to (\w+)")


def _explained(reason: str) -> str:
    """Return the reason of pyarrow.json in terms of the schema."""
    reason = reason.removesuffix(" in row 0")
    match = _OTHER_KIND.fullmatch(reason)
    if match is None:
        return reason
    path = ".".join(part for part in match[1].split("/") if part not in ("", "[]"))
    wanted, found = (_WORDS.get(word, f"a {word}") for word in match.groups()[1:])
    return f"{path or WHOLE}: it must be {wanted}, not {found}"


def _lines(data: Any, ends: Any, valid: Any) -> tuple[Any, Any]:
    """Return one line for each value, and the end of each line. Set `valid` to 0 for values that are not JSON texts."""
    size = int(ends[-1] - ends[0]) + MOST_ADDED * len(valid)
    out, line_ends = np.empty(size, np.uint8), np.empty(len(valid) + 1, np.int64)
    kernel("json_lines")(
        *at("B", data), *at("q", ends), *at("B", valid), *at("B", PREFIX), *at("B", out), *at("q", line_ends)
    )
    return out[: line_ends[-1]], line_ends
