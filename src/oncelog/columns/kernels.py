"""The inner loops that convert between record batches and Arrow buffers. Use `native` to compile and call them.

Decoding checks every length. A negative result is an error, which the caller raises. Arrays are one-dimensional and
contiguous.
"""

# numba's type annotations accept less than its functions do:
# mypy: disable-error-code="untyped-decorator, no-untyped-call, call-overload, no-any-return, attr-defined"

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from oncelog.columns.signatures import MALFORMED, TOO_SMALL

FRAME = 5
"""Bytes of the schema registry's framing."""

compiled = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""numba compiles a function together with the first kernel that calls it. No function here raises: see `compiler`."""
inlined = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, inline="always")
"""Part of an interpreter's loop. As a function, it would take three times as long, because of its many parameters."""


@intrinsic
def _copying(_typing: Any, out: Any, pos: Any, data: Any, start: Any, size: Any) -> Any:
    """Copy `size` bytes from data[start] to out[pos] with memcpy. A loop over bytes takes ten times as long."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, at, source, first, count = arguments
        kinds = signature.args
        target = context.make_array(kinds[0])(context, builder, to)
        origin = context.make_array(kinds[2])(context, builder, source)
        where, what = builder.gep(target.data, [at]), builder.gep(origin.data, [first])
        cgutils.raw_memcpy(builder, where, what, count, 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), build


copy: Any = _copying


def pointing_to(kind: Any) -> Any:
    """Return a function that converts an address to a pointer to numbers of this type."""

    @intrinsic
    def pointing(_typing: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), build

    return pointing


pointer: Any = pointing_to(types.uint8)


@compiled
def read_varlong(data: Any, pos: int) -> tuple[Any, int]:
    """Return a zigzag varint and the position after it. The position is -1 if the varint is cut off or too long."""
    size = data.shape[0]
    if pos < size and data[pos] < 0x80:  # true for nearly all varints
        byte = np.int64(data[pos])
        return (byte >> 1) ^ -(byte & 1), pos + 1
    value = np.uint64(0)
    shift = 0
    while pos < size and shift < 70:
        byte = data[pos]
        pos += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), pos
        shift += 7
    return 0, -1


@compiled
def _read_size(data: Any, pos: int, end: int) -> tuple[int, int]:
    """Return the length of a field (-1: null) and its start. The start is -1 if the field would end after `end`."""
    length, pos = read_varlong(data, pos)
    if pos < 0 or pos > end or length < -1 or length > end - pos:  # a sum of position and length could overflow
        return 0, -1
    return length, pos


@compiled
def count_headers(data: Any, count: int) -> int:
    """Return the number of headers in a batch's records, or MALFORMED."""
    total = 0
    pos = 0
    for _ in range(count):
        length, pos = _read_size(data, pos, data.shape[0])
        if pos < 0 or length < 0:
            return MALFORMED
        end = pos + length
        pos += 1
        for _field in range(2):  # timestamp and offset
            _, pos = read_varlong(data, pos)
            if pos < 0:
                return MALFORMED
        for _field in range(2):  # key and value
            length, pos = _read_size(data, pos, end)
            if pos < 0:
                return MALFORMED
            pos += max(length, 0)
        headers, pos = read_varlong(data, pos)
        if pos < 0 or headers < 0 or headers > end - pos:
            return MALFORMED
        total += headers
        pos = end
    return total


@compiled
def cut_records(data: Any, pos: int, count: int, max_bytes: int, max_rows: int, after: Any) -> int:
    """Return how many of the `count` records from `pos` on fit into these bytes and rows, at least one; or MALFORMED.

    Write the position after them to `after[0]`. Only the lengths of the records are read.
    """
    start = pos
    for taken in range(count):
        length, next_pos = _read_size(data, pos, data.shape[0])
        if next_pos < 0 or length < 0:
            return MALFORMED
        next_pos += length
        if taken and (taken >= max_rows or next_pos - start > max_bytes):
            return taken
        pos = next_pos
        after[0] = pos
    return count


@compiled
def _take(data: Any, pos: int, length: int, row: int, ends: Any, valid: Any, out: Any) -> None:
    """Copy a field to its row of a column. A length of -1 is null."""
    valid[row] = length >= 0
    start = ends[row]
    if length > 0:
        copy(out, start, data, pos, length)
    ends[row + 1] = start + max(length, 0)


@compiled
def _take_headers(
    data: Any, pos: int, end: int, headers: int, item: int,
    name_ends: Any, name_valid: Any, names: Any, item_ends: Any, item_valid: Any, items: Any,
) -> int:  # fmt: skip
    """Copy a record's headers to the rows from `item` on. Return the position after them, or MALFORMED."""
    for index in range(item, item + headers):
        length, pos = _read_size(data, pos, end)
        if pos < 0 or length < 0:
            return MALFORMED
        _take(data, pos, length, index, name_ends, name_valid, names)
        length, pos = _read_size(data, pos + length, end)
        if pos < 0:
            return MALFORMED
        _take(data, pos, length, index, item_ends, item_valid, items)
        pos += max(length, 0)
    return pos


@compiled
def decode_batches(
    batches: Any, start_offset: int, offsets: Any, timestamps: Any, kinds: Any,
    key_ends: Any, key_valid: Any, keys: Any, value_ends: Any, value_valid: Any, values: Any,
    with_headers: bool, header_rows: Any, name_ends: Any, name_valid: Any, names: Any, item_ends: Any,
    item_valid: Any, items: Any,
) -> int:  # fmt: skip
    """Decode the records of batches from `start_offset` on. Return the number of rows, or -1 - i if batch i is damaged.

    For each batch, `batches` has the address and length of its records, their number, base offset, base timestamp,
    timestamp type, and append time (-1 if each record has its own timestamp). `*_ends` are Arrow offsets. The caller
    sets entry 0, and row i sets entry i + 1. The columns must be large enough for all rows and all bytes. Those of
    headers must be large enough for the number of headers that `count_headers` returns.
    """
    row = 0
    for index in range(batches.shape[0] // 7):
        at = index * 7
        data = numba.carray(pointer(batches[at]), (batches[at + 1],))
        first = row
        row = _decode_batch(
            data, batches[at + 2], batches[at + 3], batches[at + 4], batches[at + 6], start_offset, row,
            offsets, timestamps, key_ends, key_valid, keys, value_ends, value_valid, values,
            with_headers, header_rows, name_ends, name_valid, names, item_ends, item_valid, items,
        )  # fmt: skip
        if row < 0:
            return -1 - index
        for filled in range(first, row):
            kinds[filled] = batches[at + 5]
    return row


@compiled
def _decode_batch(
    data: Any, count: int, base_offset: int, base_timestamp: int, append_time: int, start_offset: int, row: int,
    offsets: Any, timestamps: Any, key_ends: Any, key_valid: Any, keys: Any, value_ends: Any, value_valid: Any,
    values: Any, with_headers: bool, header_rows: Any, name_ends: Any, name_valid: Any, names: Any, item_ends: Any,
    item_valid: Any, items: Any,
) -> int:  # fmt: skip
    """Decode one batch for `decode_batches`. Return the next free row, or MALFORMED."""
    pos = 0
    size = data.shape[0]
    for _ in range(count):
        length, pos = _read_size(data, pos, size)
        if pos < 0 or length < 0:
            return MALFORMED
        end = pos + length
        timestamp, pos = read_varlong(data, pos + 1)  # skip the attributes, which have no meaning
        if pos < 0:
            return MALFORMED
        delta, pos = read_varlong(data, pos)
        if pos < 0 or pos > end:
            return MALFORMED
        if base_offset + delta < start_offset:
            pos = end
            continue
        offsets[row] = base_offset + delta
        timestamps[row] = base_timestamp + timestamp if append_time < 0 else append_time
        length, pos = _read_size(data, pos, end)
        if pos < 0:
            return MALFORMED
        _take(data, pos, length, row, key_ends, key_valid, keys)
        length, pos = _read_size(data, pos + max(length, 0), end)
        if pos < 0:
            return MALFORMED
        _take(data, pos, length, row, value_ends, value_valid, values)
        headers, pos = read_varlong(data, pos + max(length, 0))
        if pos < 0 or headers < 0 or headers > end - pos:
            return MALFORMED
        if with_headers:
            item = header_rows[row]
            header_rows[row + 1] = item + headers
            pos = _take_headers(
                data, pos, end, headers, item, name_ends, name_valid, names, item_ends, item_valid, items
            )
        if pos != end and (with_headers or headers == 0):
            return MALFORMED
        pos = end
        row += 1
    return row if pos == size else MALFORMED


@compiled
def _varlong_size(value: int) -> int:
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while zigzag >= np.uint64(0x80):
        zigzag >>= np.uint64(7)
        size += 1
    return size


@compiled
def _sized(length: int) -> Any:
    return _varlong_size(length) + length


@compiled
def write_varlong(out: Any, pos: int, value: int) -> int:
    """Write a number as a zigzag varint. Return the position after it."""
    zigzag = np.uint64((value << 1) ^ (value >> 63))
    while zigzag >= np.uint64(0x80):
        out[pos] = np.uint8(zigzag & np.uint64(0x7F)) | 0x80
        zigzag >>= np.uint64(7)
        pos += 1
    out[pos] = np.uint8(zigzag)
    return pos + 1


@compiled
def _write_sized(out: Any, pos: int, data: Any, start: int, end: int) -> int:
    pos = write_varlong(out, pos, end - start)
    copy(out, pos, data, start, end - start)
    return pos + end - start


@compiled
def encode_records(
    rows: Any, first: int, limit: int, base_timestamp: int, timestamps: Any,
    has_key: bool, key_ends: Any, key_valid: Any, keys: Any, has_value: bool, value_ends: Any, value_valid: Any,
    values: Any, has_headers: bool, header_rows: Any, name_ends: Any, names: Any, item_ends: Any, item_valid: Any,
    items: Any, out: Any, result: Any,
) -> int:  # fmt: skip
    """Write the records of `rows[first:]` to `out`, up to `limit` bytes, but at least one. Return how many.

    Set `result` to (bytes written, largest timestamp). If even the first record does not fit into `out`, set it to
    (bytes needed, 0), and return TOO_SMALL.
    """
    pos = 0
    latest = base_timestamp
    for index in range(first, rows.shape[0]):
        row = rows[index]
        before, latest = latest, max(latest, timestamps[row])
        timestamp = timestamps[row] - base_timestamp
        delta = index - first
        has_this_key = has_key and key_valid[row] != 0
        has_this_value = has_value and value_valid[row] != 0
        size = 1 + _varlong_size(timestamp) + _varlong_size(delta)
        size += _sized(key_ends[row + 1] - key_ends[row]) if has_this_key else 1
        size += _sized(value_ends[row + 1] - value_ends[row]) if has_this_value else 1
        first_item, last_item = 0, 0
        if has_headers:
            first_item, last_item = header_rows[row], header_rows[row + 1]
        size += _varlong_size(last_item - first_item)
        for item in range(first_item, last_item):
            size += _sized(name_ends[item + 1] - name_ends[item])
            size += _sized(item_ends[item + 1] - item_ends[item]) if item_valid[item] != 0 else 1
        needed = _sized(size)
        if index > first and pos + needed > limit:
            result[0], result[1] = pos, before
            return index - first
        if pos + needed > out.shape[0]:
            result[0], result[1] = needed, 0
            return TOO_SMALL
        pos = write_varlong(out, pos, size)
        out[pos] = 0
        pos = write_varlong(out, pos + 1, timestamp)
        pos = write_varlong(out, pos, delta)
        if has_this_key:
            pos = _write_sized(out, pos, keys, key_ends[row], key_ends[row + 1])
        else:
            pos = write_varlong(out, pos, -1)
        if has_this_value:
            pos = _write_sized(out, pos, values, value_ends[row], value_ends[row + 1])
        else:
            pos = write_varlong(out, pos, -1)
        pos = write_varlong(out, pos, last_item - first_item)
        for item in range(first_item, last_item):
            pos = _write_sized(out, pos, names, name_ends[item], name_ends[item + 1])
            if item_valid[item] != 0:
                pos = _write_sized(out, pos, items, item_ends[item], item_ends[item + 1])
            else:
                pos = write_varlong(out, pos, -1)
    result[0], result[1] = pos, latest
    return rows.shape[0] - first


@compiled
def longest_row(
    rows: int, has_key: bool, key_ends: Any, has_value: bool, value_ends: Any, has_headers: bool, header_rows: Any,
    name_ends: Any, item_ends: Any,
) -> int:  # fmt: skip
    """Return the size of the largest row: the bytes of its key, value and headers."""
    longest = 0
    for row in range(rows):
        size = 0
        if has_key:
            size += key_ends[row + 1] - key_ends[row]
        if has_value:
            size += value_ends[row + 1] - value_ends[row]
        if has_headers:
            first, last = header_rows[row], header_rows[row + 1]
            size += name_ends[last] - name_ends[first] + item_ends[last] - item_ends[first]
        longest = max(longest, size)
    return longest


@compiled
def murmur2_partitions(ends: Any, valid: Any, data: Any, partitions: int, out: Any) -> int:
    """Set `out` to Kafka's default partition of each key, or -1 for a null key. Return the number of rows.

    The partition is `Utils.murmur2` without its sign bit, modulo the number of partitions.
    """
    for row in range(out.shape[0]):
        if valid[row] == 0:
            out[row] = -1
            continue
        start = ends[row]
        length = ends[row + 1] - start
        m = np.uint32(0x5BD1E995)
        h = np.uint32(0x9747B28C) ^ np.uint32(length)
        blocks = length // 4
        for block in range(blocks):
            at = start + block * 4
            k = (
                np.uint32(data[at])
                | np.uint32(data[at + 1]) << np.uint32(8)
                | np.uint32(data[at + 2]) << np.uint32(16)
                | np.uint32(data[at + 3]) << np.uint32(24)
            )
            k = np.uint32(k * m)
            k ^= k >> np.uint32(24)
            k = np.uint32(k * m)
            h = np.uint32(h * m)
            h ^= k
        tail = start + blocks * 4
        rest = length - blocks * 4
        if rest >= 3:
            h ^= np.uint32(data[tail + 2]) << np.uint32(16)
        if rest >= 2:
            h ^= np.uint32(data[tail + 1]) << np.uint32(8)
        if rest >= 1:
            h ^= np.uint32(data[tail])
            h = np.uint32(h * m)
        h ^= h >> np.uint32(13)
        h = np.uint32(h * m)
        h ^= h >> np.uint32(15)
        out[row] = np.int64(h & np.uint32(0x7FFFFFFF)) % partitions
    return out.shape[0]


@compiled
def _closed(data: Any, start: int, end: int) -> bool:
    """Return whether a text can be parsed as a value on a line of its own, without an effect on other lines.

    Brackets must balance, and strings must end. Commas and colons must be inside of brackets or strings. Control
    characters are illegal, except whitespace between tokens. Any other error affects only the line of the text.
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


@compiled
def json_lines(data: Any, ends: Any, valid: Any, prefix: Any, out: Any, line_ends: Any) -> int:
    """Write `{"v":VALUE}` and a newline for each value, or `{}` if it is not valid. Return the number of bytes.

    The schema registry's framing (a zero byte and an id of four bytes) is removed. If a value could affect other lines,
    its entry in `valid` is set to 0. Newlines and tabs between tokens become spaces. `out` must be large enough for
    all values, plus the prefix and two bytes for each.
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
    return pos
