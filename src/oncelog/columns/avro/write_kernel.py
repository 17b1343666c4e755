"""The loop that writes Arrow columns as Avro: an interpreter of the programs that `writing` makes.

If there is no room for the bytes of a row, it stops; the caller makes room, and continues at this row.
"""

# numba's type annotations accept less than its functions do:
# mypy: disable-error-code="untyped-decorator, no-untyped-call, call-overload, no-any-return, attr-defined"

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from oncelog.columns.avro import operations as op
from oncelog.columns.avro.read_kernel import int32s, int64s
from oncelog.columns.kernels import compiled, copy, inlined, pointer, write_varlong


@compiled
def _is_valid(columns: Any, column: int, row: int) -> Any:
    address = columns[column * op.WIDTH + op.VALIDITY]
    return address == 0 or numba.carray(pointer(address), (row + 1,))[row] != 0


@compiled
def _put_decimal(columns: Any, column: int, row: int, size: int, out: Any, pos: int) -> int:
    """Write an integer, big-endian. Return the position after it. A fixed is large enough for its digits."""
    width = columns[column * op.WIDTH + op.SIZE]
    start = row * width
    data = numba.carray(pointer(columns[column * op.WIDTH + op.ADDRESS]), (start + width,))
    sign = 0xFF if data[start + width - 1] >= 0x80 else 0
    used = width
    while used > 1 and data[start + used - 1] == sign and (data[start + used - 2] >= 0x80) == (sign != 0):
        used -= 1
    if size < 0:
        pos = write_varlong(out, pos, used)
        size = used
    for index in range(size):
        place = size - 1 - index
        out[pos + index] = data[start + place] if place < width else sign
    return pos + size


@compiled
def _put_duration(address: Any, out: Any, pos: int) -> int:
    """Write an interval as months, days and milliseconds. Return the position after it, or the negative reason."""
    parts = numba.carray(int32s(address), (2,))
    nanoseconds = numba.carray(int64s(address + 8), (1,))[0]
    milliseconds = nanoseconds // op.NANOSECONDS
    if parts[0] < 0 or parts[1] < 0 or nanoseconds < 0 or nanoseconds % op.NANOSECONDS != 0 or milliseconds >= 1 << 32:
        return -op.BAD_DURATION
    for number in (np.int64(parts[0]), np.int64(parts[1]), milliseconds):
        for index in range(4):
            out[pos + index] = number >> (8 * index) & 0xFF
        pos += 4
    return pos


@inlined
def _bytes_of(what: int, column: int, row: int, x: int, y: int, columns: Any) -> tuple[Any, Any]:
    """Return start and end of the bytes that a step copies, or 0 and their number if it computes them."""
    at = column * op.WIDTH
    if what == op.PUT:
        return x, y
    if what == op.PUT_BYTES:
        bounds = numba.carray(int64s(columns[at + op.ENDS]), (row + 2,))
        return bounds[row], bounds[row + 1]
    if what == op.PUT_RAW:
        return row * columns[at + op.SIZE], (row + 1) * columns[at + op.SIZE]
    return 0, x if what == op.PUT_DECIMAL and x > 0 else 0


@inlined
def _put(what: int, column: int, row: int, x: int, start: int, end: int, columns: Any, out: Any, pos: int) -> int:
    """Write a value of a column that is not null. Return the position after it, or the negative reason."""
    size, address = columns[column * op.WIDTH + op.SIZE], columns[column * op.WIDTH + op.ADDRESS]
    if what == op.PUT_NUMBER:
        if size == 4:
            return write_varlong(out, pos, np.int64(numba.carray(int32s(address), (row + 1,))[row]))
        return write_varlong(out, pos, numba.carray(int64s(address), (row + 1,))[row])
    if what == op.PUT_BOOLEAN:
        out[pos] = numba.carray(pointer(address), (row + 1,))[row]
        return pos + 1
    if what == op.PUT_DECIMAL:
        return _put_decimal(columns, column, row, x, out, pos)
    if what == op.PUT_DURATION:
        return _put_duration(address + 16 * row, out, pos)
    if what == op.PUT_BYTES:
        pos = write_varlong(out, pos, end - start)
    if end > start:
        copy(out, pos, numba.carray(pointer(address), (end,)), start, end - start)
    return pos + end - start


@inlined
def _member(columns: Any, tables: Any, row: int, x: int, y: int) -> Any:
    """Return the place in `tables` of the one member that is not null, or the negative reason."""
    chosen = -op.NO_MEMBER
    for index in range(x, x + 3 * y, 3):
        if _is_valid(columns, tables[index], row):
            if chosen >= 0:
                return -op.MANY_MEMBERS
            chosen = index
    return chosen


@compiled
def avro_write(
    code: Any, tables: Any, pool: Any, columns: Any, valid: Any, first: int, rows: Any, stack: Any, out: Any,
    ends: Any, result: Any,
) -> int:  # fmt: skip
    """Write the values of the rows from `first` on after `ends[first]`, and set the end of each. Null rows are empty.

    Return OK, or why row `result[0]` was not written. `result[1]` is the column. `rows` and `stack` are memory for the
    kernel: the current row of each level, and the ends of the lists.
    """
    for row in range(first, valid.shape[0]):
        ends[row + 1] = ends[row]
        if valid[row] != 0:
            result[0] = rows[0] = row
            pos = _write_value(code, tables, pool, columns, rows, stack, out, ends[row], result)
            if pos < 0:
                return -pos
            ends[row + 1] = pos
    return op.OK


@compiled
def _write_value(  # noqa: C901 - one branch for each kind of step
    code: Any, tables: Any, pool: Any, columns: Any, rows: Any, stack: Any, out: Any, pos: int, result: Any
) -> int:  # fmt: skip
    """Write a value. Return the position after it, or the negative reason."""
    pc = depth = 0
    while True:
        what, column, x, y = code[pc], code[pc + 1], code[pc + 2], code[pc + 3]
        pc += op.STEP
        row = rows[columns[column * op.WIDTH + op.LEVEL]] if column >= 0 else 0
        start, end = _bytes_of(what, column, row, x, y, columns)
        if end - start > out.shape[0] - pos - 64:  # the longest number is shorter
            return -op.NO_ROOM
        result[1] = column
        if what == op.PUT:
            copy(out, pos, pool, start, end - start)
            pos += end - start
        elif what <= op.PUT_DURATION:
            pos = _put(what, column, row, x, start, end, columns, out, pos)
            if pos < 0:
                return pos
        elif what == op.MAYBE:
            branch = tables[y + 1]
            if not _is_valid(columns, column, row):
                branch = tables[y]
                pc = x
                if branch < 0:
                    return -op.IS_NULL
            if branch >= 0:
                pos = write_varlong(out, pos, branch)
        elif what == op.MEMBER:
            chosen = _member(columns, tables, row, x, y)
            if chosen < 0:
                return chosen
            pos = write_varlong(out, pos, tables[chosen + 1])
            pc = tables[chosen + 2]
        elif what == op.PUT_LIST:
            bounds = numba.carray(int64s(columns[column * op.WIDTH + op.ENDS]), (row + 2,))
            pos = write_varlong(out, pos, bounds[row + 1] - bounds[row])
            if bounds[row] == bounds[row + 1]:
                pc = x
            else:
                rows[y] = bounds[row]
                stack[depth] = bounds[row + 1]
                depth += 1
        elif what == op.PUT_ITEM:
            rows[y] += 1
            if rows[y] < stack[depth - 1]:
                pc = x
            else:
                depth -= 1
                out[pos] = 0
                pos += 1
        elif what == op.GO:
            pc = x
        else:
            return pos
