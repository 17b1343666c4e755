"""The loop that reads Avro into Arrow buffers: an interpreter of the programs that `programs` writes.

It appends to columns. If one of them is full, it takes back what it has appended of the row, and stops; the caller
makes room, and continues at this row.
"""

# numba's type annotations accept less than its functions do:
# mypy: disable-error-code="untyped-decorator, no-untyped-call, call-overload, no-any-return, attr-defined"

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types

from oncelog.columns.avro import operations as op
from oncelog.columns.kernels import compiled, copy, inlined, pointer, pointing_to, read_varlong

int32s, int64s = pointing_to(types.int32), pointing_to(types.int64)
_floats, _doubles = pointing_to(types.float32), pointing_to(types.float64)


@compiled
def _is_full(columns: Any, lengths: Any, column: int) -> bool:
    return lengths[2 * column] >= columns[column * op.WIDTH + op.ROOM]


@compiled
def _advance(columns: Any, lengths: Any, column: int, valid: int) -> None:
    """Count a value of a column, and set its validity and, if it has ends, its end."""
    at = column * op.WIDTH
    row = lengths[2 * column]
    numba.carray(pointer(columns[at + op.VALIDITY]), (row + 1,))[row] = valid
    if columns[at + op.ENDS] != 0:
        numba.carray(int32s(columns[at + op.ENDS]), (row + 2,))[row + 1] = lengths[2 * column + 1]
    lengths[2 * column] = row + 1


@compiled
def _append_bytes(columns: Any, lengths: Any, column: int, data: Any, pos: int, size: int) -> int:
    """Append a value with these bytes. Return OK, FULL or FULL_DATA."""
    if _is_full(columns, lengths, column):
        return op.FULL
    at = column * op.WIDTH
    used, room = lengths[2 * column + 1], columns[at + op.DATA_ROOM]
    if size > room - used:
        return op.FULL_DATA
    if size > 0:
        copy(numba.carray(pointer(columns[at + op.ADDRESS]), (room,)), used, data, pos, size)
    lengths[2 * column + 1] = used + size
    _advance(columns, lengths, column, 1)
    return op.OK


@compiled
def _append_null(columns: Any, lengths: Any, column: int) -> int:
    """Append a null. Return OK or FULL."""
    if _is_full(columns, lengths, column):
        return op.FULL
    at = column * op.WIDTH
    size = columns[at + op.SIZE]
    if size > 0:
        used = lengths[2 * column + 1]
        data = numba.carray(pointer(columns[at + op.ADDRESS]), (used + size,))
        for index in range(used, used + size):
            data[index] = 0
        lengths[2 * column + 1] = used + size
    _advance(columns, lengths, column, 0)
    return op.OK


@compiled
def _is_utf8(data: Any, pos: int, end: int) -> bool:
    """Return whether bytes are UTF-8, without surrogates and overlong forms (RFC 3629)."""
    seen = np.uint8(0)
    for index in range(pos, end):
        seen |= data[index]
    if seen < 0x80:  # most text is ASCII, and this loop takes many bytes at a time
        return True
    while pos < end:
        byte = data[pos]
        pos += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        more = 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
        if more > end - pos:
            return False
        second = data[pos]
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for index in range(pos + 1, pos + more):
            if data[index] & 0xC0 != 0x80:
                return False
        pos += more
    return True


@compiled
def _is_less(some: Any, first: int, other: Any, second: int, width: int) -> Any:
    """Compare two little-endian integers of `width` bytes in two's complement."""
    for index in range(width - 1, -1, -1):
        one, two = np.int64(some[first + index]), np.int64(other[second + index])
        if index == width - 1:
            one, two = one ^ 0x80, two ^ 0x80  # as if they were unsigned
        if one != two:
            return one < two
    return False


@compiled
def _append_decimal(
    columns: Any, lengths: Any, column: int, data: Any, pos: int, size: int, pool: Any, limits: int
) -> int:  # fmt: skip
    """Append a big-endian integer as a little-endian one. `pool` has the limits: it must lie between them."""
    if _is_full(columns, lengths, column):
        return op.FULL
    width = columns[column * op.WIDTH + op.SIZE]
    sign = 0xFF if size > 0 and data[pos] >= 0x80 else 0
    while size > width:  # more bytes than the column has: they may only repeat the sign
        if data[pos] != sign or (data[pos + 1] >= 0x80) != (sign != 0):
            return op.MANY_DIGITS
        pos += 1
        size -= 1
    used = lengths[2 * column + 1]
    out = numba.carray(pointer(columns[column * op.WIDTH + op.ADDRESS]), (used + width,))
    for index in range(width):
        out[used + index] = data[pos + size - 1 - index] if index < size else sign
    if not _is_less(pool, limits, out, used, width) or not _is_less(out, used, pool, limits + width, width):
        return op.MANY_DIGITS
    lengths[2 * column + 1] = used + width
    _advance(columns, lengths, column, 1)
    return op.OK


@compiled
def _append_number(columns: Any, lengths: Any, column: int, what: int, value: Any) -> int:
    """Append an integer in the form that the operation `what` demands."""
    if what == op.INT and value != np.int64(np.int32(value)):
        return op.TOO_LARGE
    if column < 0:
        return op.OK
    if _is_full(columns, lengths, column):
        return op.FULL
    address, row = columns[column * op.WIDTH + op.ADDRESS], lengths[2 * column]
    if what == op.LONG:
        numba.carray(int64s(address), (row + 1,))[row] = value
        lengths[2 * column + 1] += 8
    elif what == op.INT:
        numba.carray(int32s(address), (row + 1,))[row] = value
        lengths[2 * column + 1] += 4
    elif what == op.LONG_TO_DOUBLE:
        numba.carray(_doubles(address), (row + 1,))[row] = value
        lengths[2 * column + 1] += 8
    else:
        numba.carray(_floats(address), (row + 1,))[row] = value
        lengths[2 * column + 1] += 4
    _advance(columns, lengths, column, 1)
    return op.OK


@compiled
def _little_endian(data: Any, pos: int) -> Any:
    """Return an unsigned number of 32 bits."""
    number = np.int64(data[pos]) | np.int64(data[pos + 1]) << 8
    return number | np.int64(data[pos + 2]) << 16 | np.int64(data[pos + 3]) << 24


@compiled
def _append_duration(columns: Any, lengths: Any, column: int, data: Any, pos: int, result: Any) -> int:
    """Append months, days and milliseconds as an interval."""
    if _is_full(columns, lengths, column):
        return op.FULL
    months, days = _little_endian(data, pos), _little_endian(data, pos + 4)
    if months > op.MOST_INT or days > op.MOST_INT:
        result[1] = max(months, days)
        return op.LARGE_DURATION
    address = columns[column * op.WIDTH + op.ADDRESS] + 16 * lengths[2 * column]
    parts = numba.carray(int32s(address), (2,))
    parts[0] = months
    parts[1] = days
    numba.carray(int64s(address + 8), (1,))[0] = _little_endian(data, pos + 8) * op.NANOSECONDS
    lengths[2 * column + 1] += 16
    _advance(columns, lengths, column, 1)
    return op.OK


@compiled
def _append_widened(columns: Any, lengths: Any, column: int, data: Any, pos: int) -> int:
    """Append a float as a double."""
    if _is_full(columns, lengths, column):
        return op.FULL
    bits = np.uint32(data[pos]) | np.uint32(data[pos + 1]) << np.uint32(8)
    bits |= np.uint32(data[pos + 2]) << np.uint32(16) | np.uint32(data[pos + 3]) << np.uint32(24)
    row = lengths[2 * column]
    address = columns[column * op.WIDTH + op.ADDRESS]
    one = numba.carray(_floats(address + 8 * row), (2,))  # the double's own place holds the float for a moment
    numba.carray(int32s(address + 8 * row), (2,))[0] = np.int32(bits)
    numba.carray(_doubles(address), (row + 1,))[row] = np.float64(one[0])
    lengths[2 * column + 1] += 8
    _advance(columns, lengths, column, 1)
    return op.OK


@compiled
def avro_read(
    code: Any, tables: Any, pool: Any, columns: Any, lengths: Any, saved: Any, data: Any, ends: Any, valid: Any,
    first: int, last: int, skip: int, null_step: int, stack: Any, result: Any,
) -> int:  # fmt: skip
    """Read the values of the rows from `first` to `last`, each without its first `skip` bytes, and append them.

    Return OK, or why row `result[0]` was not read. `result[1]` is a number for the reason; for FULL and FULL_DATA, it
    is the column. `lengths` has the values and bytes of each column. `saved` and `stack` are memory for the kernel.
    """
    for row in range(first, last):
        for index in range(lengths.shape[0]):
            saved[index] = lengths[index]
        result[0] = row
        if valid[row] != 0:
            status = _read_value(
                code, tables, pool, columns, lengths, data, ends[row] + skip, ends[row + 1], 0, stack, result
            )
        else:
            status = _read_value(code, tables, pool, columns, lengths, data, 0, 0, null_step, stack, result)
        if status != op.OK:
            for index in range(lengths.shape[0]):
                lengths[index] = saved[index]
            return status
    return op.OK


@inlined
def _read_number(
    what: int, column: int, columns: Any, lengths: Any, source: Any, pos: int, end: int, result: Any
) -> tuple[Any, int]:
    """Read a boolean or an integer. Return the position after it, and OK or why not."""
    if what == op.BOOLEAN:
        if pos >= end:
            return pos, op.CUT_OFF
        if source[pos] > 1:
            result[1] = source[pos]
            return pos, op.BAD_BOOLEAN
        if column < 0:
            return pos + 1, op.OK
        return pos + 1, _append_bytes(columns, lengths, column, source, pos, 1)
    value, pos = read_varlong(source, pos)
    if pos < 0 or pos > end:
        return pos, op.CUT_OFF
    return pos, _append_number(columns, lengths, column, what, value)


@inlined
def _read_bytes(
    what: int, column: int, x: int, y: int, columns: Any, lengths: Any, source: Any, pos: int, end: int, pool: Any,
    result: Any,
) -> tuple[Any, int]:  # fmt: skip
    """Read a value that is copied. Return the position after it, and OK or why not."""
    size = x
    if what != op.FIXED and x < 0:
        size, pos = read_varlong(source, pos)
        if pos < 0 or pos > end:
            return pos, op.CUT_OFF
        if size < 0:
            result[1] = size
            return pos, op.BAD_LENGTH
    if size > end - pos:
        return pos, op.CUT_OFF
    status = op.OK
    if what == op.TEXT and not _is_utf8(source, pos, pos + size):
        status = op.BAD_TEXT
    elif column >= 0:
        if what == op.DECIMAL:
            status = _append_decimal(columns, lengths, column, source, pos, size, pool, y)
        elif what == op.DURATION:
            status = _append_duration(columns, lengths, column, source, pos, result)
        elif what == op.FLOAT_TO_DOUBLE:
            status = _append_widened(columns, lengths, column, source, pos)
        else:
            status = _append_bytes(columns, lengths, column, source, pos, size)
    return pos + size, status


@inlined
def _read_choice(
    what: int, column: int, x: int, y: int, tables: Any, columns: Any, lengths: Any, source: Any, pos: int, end: int,
    pool: Any, result: Any,
) -> tuple[Any, Any, int]:  # fmt: skip
    """Read the number of a branch or symbol. Return the position after it, the branch's step, and OK or why not."""
    value, pos = read_varlong(source, pos)
    if pos < 0 or pos > end:
        return pos, 0, op.CUT_OFF
    if value < 0 or value >= y:
        result[1] = value
        return pos, 0, op.NO_BRANCH if what == op.UNION else op.NO_SYMBOL
    if what == op.UNION:
        step = tables[x + value]
        if step < 0:
            result[1] = value
        return pos, step, op.OK if step >= 0 else op.NOT_READ
    if column < 0:
        return pos, 0, op.OK
    start, stop = tables[x + 2 * value], tables[x + 2 * value + 1]
    if start < 0:
        result[1] = value
        return pos, 0, op.NO_SYMBOL
    return pos, 0, _append_bytes(columns, lengths, column, pool, start, stop - start)


@inlined
def _append_plain(what: int, column: int, x: int, y: int, tables: Any, columns: Any, lengths: Any, result: Any) -> int:
    """Append nulls, or a struct. Return OK or FULL."""
    if what == op.VALID:
        if _is_full(columns, lengths, column):
            return op.FULL
        _advance(columns, lengths, column, 1)
        return op.OK
    for index in range(x, y):
        if _append_null(columns, lengths, tables[index]) != op.OK:
            result[1] = tables[index]
            return op.FULL
    return op.OK


@inlined
def _read_block(may_be_empty: int, empty: int, source: Any, pos: int, end: int, result: Any) -> tuple[Any, Any, int]:
    """Read the number of items in a block of a list. Return it, the position of the items, and OK or why not."""
    count, pos = read_varlong(source, pos)
    if 0 <= pos <= end and count < 0:
        count = -count
        _, pos = read_varlong(source, pos)  # the bytes of the block
    if pos < 0 or pos > end:
        return 0, pos, op.CUT_OFF
    if may_be_empty != 0:
        return count, pos, op.EMPTY_ITEMS if count < 0 or count > op.MOST_EMPTY - empty else op.OK
    result[1] = count
    return count, pos, op.BAD_LENGTH if count < 0 or count > end - pos else op.OK


@inlined
def _may_begin(column: int, depth: int, columns: Any, lengths: Any, result: Any) -> int:
    """Return OK if another list or call may begin, or why not."""
    if depth == op.MOST_DEPTH:
        return op.DEEP
    if column >= 0 and _is_full(columns, lengths, column):
        result[1] = column
        return op.FULL
    return op.OK


@inlined
def _end_list(column: int, columns: Any, lengths: Any) -> None:
    """Append a list of the items since the last one: they are in the next column."""
    if column >= 0:
        lengths[2 * column + 1] = lengths[2 * column + 2]
        _advance(columns, lengths, column, 1)


@compiled
def _read_value(  # noqa: C901 - one branch for each kind of step
    code: Any, tables: Any, pool: Any, columns: Any, lengths: Any, data: Any, pos: int, end: int, pc: int,
    stack: Any, result: Any,
) -> int:  # fmt: skip
    """Run the program from step `pc` on for the value between `pos` and `end`. Return OK, or why it is not read."""
    source = data
    kept_pos = kept_end = depth = empty = 0
    status = op.OK
    while status == op.OK:
        what, column, x, y = code[pc], code[pc + 1], code[pc + 2], code[pc + 3]
        pc += op.STEP
        result[1] = column
        if what <= op.LONG_TO_DOUBLE:
            pos, status = _read_number(what, column, columns, lengths, source, pos, end, result)
        elif what <= op.DURATION:
            pos, status = _read_bytes(what, column, x, y, columns, lengths, source, pos, end, pool, result)
        elif what <= op.UNION:
            pos, step, status = _read_choice(
                what, column, x, y, tables, columns, lengths, source, pos, end, pool, result
            )
            pc = step if what == op.UNION else pc
        elif what == op.JUMP:
            pc = x
        elif what <= op.VALID:
            status = _append_plain(what, column, x, y, tables, columns, lengths, result)
        elif what <= op.ITEM:
            body, after = x, pc
            if what == op.LIST:
                status = _may_begin(column, depth, columns, lengths, result)
                if status != op.OK:
                    break
                body, after = pc, x
                stack[depth] = 1
                depth += 1
            stack[depth - 1] -= 1
            pc = body
            if stack[depth - 1] == 0:
                count, pos, status = _read_block(y, empty, source, pos, end, result)
                stack[depth - 1] = count
                empty += count * y
                if count == 0:
                    depth -= 1
                    pc = after
                    _end_list(column, columns, lengths)
        elif what <= op.DATA:
            if what == op.POOL:
                kept_pos, kept_end, pos, end, source = pos, end, x, y, pool
            else:
                pos, end, source = kept_pos, kept_end, data
        elif what == op.CALL:
            status = _may_begin(-1, depth, columns, lengths, result)
            if status == op.OK:
                stack[depth] = pc
                depth += 1
                pc = x
        elif depth == 0:
            result[1] = end - pos
            return op.OK if pos == end else op.LEFT_OVER
        else:
            depth -= 1
            pc = stack[depth]
    return status
