"""The loops that prepare JSON for pyarrow.json, and that convert base64. Use `native` to compile and call them."""

# numba's type annotations accept less than its functions do:
# mypy: disable-error-code="untyped-decorator, no-any-return"

from __future__ import annotations

from typing import Any

import numpy as np

from oncelog.columns.json_nodes import (
    CODES,
    DECIMAL,
    LIST,
    MANY_DIGITS,
    MAP,
    NO_NUMBER,
    NO_OBJECT,
    NOT_JSON,
    STRUCT,
    TEXT,
)
from oncelog.columns.kernels import compiled, copy, inlined

_VALUE, _FIRST, _NAME, _AFTER = 0, 1, 2, 3
_MOST_EXPONENT = 1 << 40
_NO_EXPONENT = 1 << 41

_KEY = np.frombuffer(b'{"key":', np.uint8)
_ITEM = np.frombuffer(b',"value":', np.uint8)
_TEXT = np.frombuffer(b'{"text":"', np.uint8)
_JSON = np.frombuffer(b'","json":', np.uint8)


@compiled
def _put(out: Any, pos: int, data: Any, start: int, end: int) -> int:
    copy(out, pos, data, start, end - start)
    return pos + end - start


@compiled
def _put_text(data: Any, start: int, end: int, out: Any, pos: int) -> int:
    """Write any value as an object with its JSON as a text, and with itself, so that pyarrow.json checks it."""
    pos = _put(out, pos, _TEXT, 0, _TEXT.shape[0])
    for index in range(start, end):
        if data[index] == 0x22 or data[index] == 0x5C:
            out[pos] = 0x5C
            pos += 1
        out[pos] = data[index]
        pos += 1
    pos = _put(out, pos, _JSON, 0, _JSON.shape[0])
    pos = _put(out, pos, data, start, end)
    out[pos] = 0x7D
    return pos + 1


@compiled
def _string_end(data: Any, start: int, end: int) -> int:
    """Return the place after a string that starts with a quote at `start`, or -1."""
    index = start + 1
    while index < end:
        if data[index] == 0x22:
            return index + 1
        index += 2 if data[index] == 0x5C else 1
    return -1


@compiled
def _value_end(data: Any, start: int, end: int) -> int:
    """Return the place after any value, or -1. Only its brackets and strings are checked."""
    depth = 0
    index = start
    while index < end:
        byte = data[index]
        if byte == 0x22:
            index = _string_end(data, index, end)
            if index < 0 or depth == 0:
                return index
            continue
        if byte == 0x7B or byte == 0x5B:
            depth += 1
        elif byte == 0x7D or byte == 0x5D:
            if depth == 0:
                break
            depth -= 1
            if depth == 0:
                return index + 1
        elif depth == 0 and (byte == 0x2C or byte == 0x20):
            break
        index += 1
    return index if index > start and depth == 0 else -1


@compiled
def _hex(data: Any, start: int, end: int) -> int:
    """Return the number of four hexadecimal digits, or -1."""
    number = 0
    if start + 4 > end:
        return -1
    for index in range(start, start + 4):
        byte: Any = np.int64(data[index])  # an unsigned number would make the result a float
        if 0x30 <= byte <= 0x39:
            number = number * 16 + byte - 0x30
        elif 0x41 <= (byte & 0xDF) <= 0x46:
            number = number * 16 + (byte & 0xDF) - 0x37
        else:
            return -1
    return number


@compiled
def _put_character(out: Any, pos: int, code: int) -> int:
    """Write a character as UTF-8."""
    if code < 0x80:
        out[pos] = code
        return pos + 1
    if code < 0x800:
        out[pos] = 0xC0 | code >> 6
    elif code < 0x10000:
        out[pos] = 0xE0 | code >> 12
        pos += 1
        out[pos] = 0x80 | (code >> 6 & 0x3F)
    else:
        out[pos] = 0xF0 | code >> 18
        out[pos + 1] = 0x80 | (code >> 12 & 0x3F)
        out[pos + 2] = 0x80 | (code >> 6 & 0x3F)
        pos += 2
    out[pos + 1] = 0x80 | (code & 0x3F)
    return pos + 2


@compiled
def _unescaped(data: Any, start: int, end: int, out: Any, pos: int) -> int:
    """Write a string without its escapes, which never makes it longer. Return its end, or -1 if it is not valid."""
    index = start
    while index < end:
        byte = data[index]
        if byte != 0x5C:
            out[pos] = byte
            pos += 1
            index += 1
            continue
        kind = data[index + 1]  # a backslash is never the last byte of a string
        index += 2
        if kind == 0x75:
            code = _hex(data, index, end)
            index += 4
            if 0xD800 <= code < 0xDC00 and index + 1 < end and data[index] == 0x5C and data[index + 1] == 0x75:
                low = _hex(data, index + 2, end)
                index += 6
                code = 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00 if 0xDC00 <= low < 0xE000 else -1
            if code < 0 or 0xD800 <= code < 0xE000:
                return -1
            pos = _put_character(out, pos, code)
            continue
        if kind == 0x6E:
            kind = 0x0A
        elif kind == 0x74:
            kind = 0x09
        elif kind == 0x72:
            kind = 0x0D
        elif kind == 0x62:
            kind = 0x08
        elif kind == 0x66:
            kind = 0x0C
        out[pos] = kind
        pos += 1
    return pos


@compiled
def _field(data: Any, start: int, end: int, shape: Any, node: int, names: Any, out: Any, pos: int) -> int:
    """Return the node of the field with a name, which may have escapes, or 0 (ANY). `out` is changed from `pos` on."""
    escaped = False
    for index in range(start, end):
        if data[index] == 0x5C:
            escaped = True
    last = end
    if escaped:
        last = _unescaped(data, start, end, out, pos)
        if last < 0:
            return 0
    size = last - pos if escaped else end - start
    for number in range(shape[node + 1]):
        first = shape[node + 2 + 3 * number]
        if shape[node + 3 + 3 * number] - first != size:
            continue
        same = True
        for index in range(size):
            byte = out[pos + index] if escaped else data[start + index]
            if names[first + index] != byte:
                same = False
                break
        if same:
            return shape[node + 4 + 3 * number]
    return 0


@compiled
def _put_decimal(  # noqa: C901 - the checks of a number
    data: Any, start: int, end: int, shape: Any, node: int, out: Any, pos: int
) -> tuple[int, int]:
    """Write a number without leading and trailing zeros, and with an exponent in place of a point.

    Return (end of what is written, code): pyarrow.json reads some numbers with large exponents as zero, and crashes
    for others.
    """
    strict = data[start] != 0x22
    if not strict:
        start += 1
        end -= 1
    negative = start < end and data[start] == 0x2D
    if negative or (not strict and start < end and data[start] == 0x2B):
        start += 1
    whole = digits = 0  # digits before the point, and all
    first = last = -1  # the first and the last digit that is not zero
    point = False
    index = start
    while index < end:
        byte = data[index]
        if 0x30 <= byte <= 0x39:
            if byte != 0x30:
                last = digits
                if first < 0:
                    first = digits
            digits += 1
            whole += not point
        elif byte == 0x2E and not point:
            point = True
        else:
            break
        index += 1
    if digits == 0 or (strict and (whole == 0 or (point and whole == digits) or (whole > 1 and data[start] == 0x30))):
        return pos, NO_NUMBER
    mantissa_end = index
    exponent = _exponent(data, index, end)
    if exponent == _NO_EXPONENT:
        return pos, NO_NUMBER
    if first < 0:
        out[pos] = 0x30
        return pos + 1, 0
    power = whole - 1 - last + exponent  # that of the last digit
    precision, scale = shape[node + 1], shape[node + 2]
    if power < -scale or last - first + 1 + power > precision - scale:
        return pos, MANY_DIGITS
    if negative:
        out[pos] = 0x2D
        pos += 1
    number = 0
    for place in range(start, mantissa_end):
        if data[place] != 0x2E:
            if first <= number <= last:
                out[pos] = data[place]
                pos += 1
            number += 1
    return _put_exponent(power, out, pos), 0


@compiled
def _exponent(data: Any, index: int, end: int) -> int:
    """Return the exponent of a number, 0 if it has none, or _NO_EXPONENT for another text."""
    if index == end:
        return 0
    if data[index] != 0x65 and data[index] != 0x45:
        return _NO_EXPONENT
    index += 1
    negative = index < end and data[index] == 0x2D
    if negative or (index < end and data[index] == 0x2B):
        index += 1
    if index == end:
        return _NO_EXPONENT
    exponent = 0
    while index < end:
        byte: Any = np.int64(data[index])  # an unsigned number would make the result a float
        if not 0x30 <= byte <= 0x39:
            return _NO_EXPONENT
        exponent = min(exponent * 10 + byte - 0x30, _MOST_EXPONENT)
        index += 1
    return -exponent if negative else exponent


@compiled
def _put_exponent(power: int, out: Any, pos: int) -> int:
    """Write the exponent of a number, of at most three digits, unless it is 0."""
    if power == 0:
        return pos
    out[pos] = 0x65
    pos += 1
    if power < 0:
        out[pos] = 0x2D
        pos += 1
        power = -power
    started = False
    for unit in (100, 10, 1):
        digit = power // unit % 10
        if digit != 0 or started:
            out[pos] = 0x30 + digit
            pos += 1
            started = True
    return pos


@compiled
def _put_name(
    data: Any, index: int, end: int, shape: Any, parent: int, names: Any, out: Any, pos: int
) -> tuple[int, int, int]:
    """Write the name of a field of an object, or the key of a map.

    Return (place after the colon, end of what is written, node of the value). The place is -1 if there is no name.
    """
    name_end = _string_end(data, index, end) if data[index] == 0x22 else -1
    if name_end < 0:
        return -1, pos, 0
    is_map = shape[parent] == MAP
    if is_map:
        node = shape[parent + 1]
        pos = _put(out, pos, _KEY, 0, _KEY.shape[0])
    else:
        node = _field(data, index + 1, name_end - 1, shape, parent, names, out, pos)
    pos = _put(out, pos, data, index, name_end)
    while name_end < end and data[name_end] == 0x20:
        name_end += 1
    if name_end == end or data[name_end] != 0x3A:
        return -1, pos, 0
    if is_map:
        return name_end + 1, _put(out, pos, _ITEM, 0, _ITEM.shape[0]), node
    out[pos] = 0x3A
    return name_end + 1, pos + 1, node


@inlined
def _put_byte(out: Any, pos: int, byte: int) -> int:
    out[pos] = byte
    return pos + 1


@inlined
def _put_whole(data: Any, index: int, end: int, shape: Any, node: int, out: Any, pos: int) -> tuple[int, int, int]:
    """Write a value whose parts have no shapes. Return (place after it, end of what is written, fault)."""
    byte, kind = data[index], shape[node]
    if kind == MAP and byte != 0x6E:
        return index, pos, node * CODES + NO_OBJECT
    value_end = _value_end(data, index, end)
    if value_end < 0:
        return index, pos, NOT_JSON
    if kind == DECIMAL and (byte == 0x22 or byte == 0x2D or 0x30 <= byte <= 0x39):
        pos, code = _put_decimal(data, index, value_end, shape, node, out, pos)
        return value_end, pos, node * CODES + code if code != 0 else 0
    if kind == TEXT and byte != 0x6E:
        return value_end, _put_text(data, index, value_end, out, pos), 0
    return value_end, _put(out, pos, data, index, value_end), 0


@compiled
def _put_line(
    data: Any, start: int, end: int, shape: Any, names: Any, stack: Any, node: int, out: Any, pos: int
) -> tuple[int, int]:
    """Write one value in its shape, without the spaces around its tokens. Return (end of what is written, fault)."""
    depth = 0
    state = _VALUE
    index = start
    while True:
        while index < end and data[index] == 0x20:
            index += 1
        if index == end:
            return pos, 0 if depth == 0 and state == _AFTER else NOT_JSON
        byte = data[index]
        if state == _VALUE:
            kind = shape[node]
            if (byte == 0x7B and kind in (MAP, STRUCT)) or (byte == 0x5B and kind == LIST):
                stack[depth] = node
                depth += 1
                pos = _put_byte(out, pos, 0x5B if kind == MAP else byte)
                index += 1
                state = _FIRST
                continue
            index, pos, fault = _put_whole(data, index, end, shape, node, out, pos)
            if fault != 0:
                return pos, fault
            state = _AFTER
            continue
        if depth == 0:
            return pos, NOT_JSON
        parent = stack[depth - 1]
        kind = shape[parent]
        if state == _AFTER and kind == MAP and (byte == 0x7D or byte == 0x2C):
            pos = _put_byte(out, pos, 0x7D)  # the end of an entry
        if state != _NAME and byte == (0x5D if kind == LIST else 0x7D):
            pos = _put_byte(out, pos, 0x7D if kind == STRUCT else 0x5D)
            index += 1
            depth -= 1
            state = _AFTER
        elif state == _AFTER:
            if byte != 0x2C:
                return pos, NOT_JSON
            pos = _put_byte(out, pos, byte)
            index += 1
            state = _NAME
        elif kind == LIST:
            state = _VALUE
            node = shape[parent + 1]
        else:
            index, pos, node = _put_name(data, index, end, shape, parent, names, out, pos)
            if index < 0:
                return pos, NOT_JSON
            state = _VALUE


@compiled
def json_shaped(
    lines: Any, line_ends: Any, shape: Any, names: Any, stack: Any, root: int, out: Any, out_ends: Any, faults: Any
) -> int:
    """Write each line in its shape, and a newline. Return the number of bytes.

    If a line does not have this shape, set its entry in `faults`, and write `{}`. `out` must have room for all lines,
    MAP_GROWTH for each colon, DECIMAL_GROWTH for each colon, comma and opening bracket, and three bytes for each line.
    If the shape has a TEXT, also for all lines a second time, for each quote and backslash, and TEXT_GROWTH as often.
    `stack` has a number for each level of the shape.
    """
    pos = 0
    out_ends[0] = 0
    for row in range(faults.shape[0]):
        before = pos
        pos, fault = _put_line(
            lines, line_ends[row], line_ends[row + 1] - 1, shape, names, stack, root, out, pos
        )  # the newline is not part of the value
        if fault != 0:
            faults[row] = fault
            out[before] = 0x7B
            out[before + 1] = 0x7D
            pos = before + 2
        out[pos] = 0x0A
        pos += 1
        out_ends[row + 1] = pos
    return pos


# -- base64 -----------------------------------------------------------------------------------------------------------

_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_SIXTH = np.full(256, 255, np.uint8)
_SIXTH[_ALPHABET] = np.arange(64, dtype=np.uint8)
_PAD = 0x3D


@compiled
def base64_encode(data: Any, ends: Any, out: Any, out_ends: Any) -> int:
    """Write each value in base64, with padding. Return the number of bytes."""
    pos = 0
    out_ends[0] = 0
    for row in range(ends.shape[0] - 1):
        for start in range(ends[row], ends[row + 1], 3):
            size = min(ends[row + 1] - start, 3)
            word = np.int64(0)
            for index in range(3):
                word = word << 8 | (np.int64(data[start + index]) if index < size else 0)
            for index in range(4):
                out[pos + index] = _ALPHABET[word >> (18 - 6 * index) & 63] if index <= size else _PAD
            pos += 4
        out_ends[row + 1] = pos
    return pos


@compiled
def base64_decode(data: Any, ends: Any, out: Any, out_ends: Any) -> int:
    """Write the bytes of each value, which must have its padding. Return -1, or the first row that is not base64."""
    pos = 0
    out_ends[0] = 0
    for row in range(ends.shape[0] - 1):
        start, end = ends[row], ends[row + 1]
        if (end - start) % 4 != 0:
            return row
        padding = 0
        while padding < 2 and end - padding > start and data[end - padding - 1] == _PAD:
            padding += 1
        word, count = np.int64(0), 0
        for index in range(start, end - padding):
            sixth = _SIXTH[data[index]]
            if sixth == 255:
                return row
            word = (word << 6 | np.int64(sixth)) & 0xFFFFFF
            count += 6
            if count >= 8:
                count -= 8
                out[pos] = word >> count & 0xFF
                pos += 1
        out_ends[row + 1] = pos
    return -1
