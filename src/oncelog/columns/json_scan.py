"""One JSON text a value to one JSON object a line, as pyarrow.json reads them: compiled by numba."""

# numba has no types of its own to check against:
# mypy: disable-error-code="untyped-decorator, no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from oncelog.columns.kernels import kernel

_U8R = types.Array(types.uint8, 1, "C", readonly=True)
_I64R = types.Array(types.int64, 1, "C", readonly=True)

PREFIX = np.frombuffer(b'{"v":', np.uint8)
MOST_ADDED = len(PREFIX) + 2
"""Bytes of a line besides its value's, at most."""
FRAME = 5
"""Bytes of the schema registry's framing."""


@kernel(types.boolean(_U8R, types.int64, types.int64))
def _closed(data: Any, start: int, end: int) -> bool:
    """Whether brackets and strings begin and end within a text, and no comma, colon or control character lies where
    none may: what else is wrong with it stays in its line.
    """
    depth = 0
    in_string = escaped = False
    for index in range(start, end):
        byte = data[index]
        if byte < 0x20 and (in_string or (byte != 0x0A and byte != 0x0D and byte != 0x09)):
            return False
        if in_string:
            if escaped:
                escaped = False
            else:
                escaped = byte == 0x5C
                in_string = byte != 0x22
            continue
        if byte == 0x22:
            in_string = True
        depth += (byte == 0x7B or byte == 0x5B) - (byte == 0x7D or byte == 0x5D)
        if depth < 0 or (depth == 0 and (byte == 0x2C or byte == 0x3A)):
            return False
    return end > start and depth == 0 and not in_string


@kernel(types.void(_U8R, _I64R, types.uint8[::1], _U8R, types.uint8[::1], types.int64[::1]))
def json_lines(data: Any, ends: Any, valid: Any, prefix: Any, out: Any, line_ends: Any) -> None:
    """Writes `{"v":VALUE}` and a newline for each value, `{}` for those that are not valid.

    A value with the schema registry's framing (a zero byte and four of id) loses it. One that could change the lines
    around it gets 0 in `valid`. Newlines between tokens become spaces. `out` has room for the values and MOST_ADDED
    bytes each.
    """
    pos = 0
    line_ends[0] = 0
    for row in range(valid.shape[0]):
        start, end = ends[row], ends[row + 1]
        if end - start >= FRAME and data[start] == 0:
            start += FRAME
        if valid[row] != 0 and _closed(data, start, end):
            for index in range(prefix.shape[0]):
                out[pos] = prefix[index]
                pos += 1
            for index in range(start, end):
                out[pos] = max(data[index], np.uint8(0x20))
                pos += 1
        else:
            valid[row] = 0
            out[pos] = 0x7B
            pos += 1
        out[pos] = 0x7D
        out[pos + 1] = 0x0A
        pos += 2
        line_ends[row + 1] = pos
