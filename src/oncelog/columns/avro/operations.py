"""Define the numbers that Avro programs, their interpreters and the callers share. First those for reading."""

from __future__ import annotations

from typing import Final

STEP: Final = 4
"""Numbers of a step: the operation, a column, and two operands. The value is skipped if the column is -1."""

BOOLEAN: Final = 0
"""Read a byte that is 0 or 1."""
INT: Final = 1
"""Read a zigzag varint of 32 bits."""
LONG: Final = 2
"""Read a zigzag varint of 64 bits."""
LONG_TO_FLOAT: Final = 3
LONG_TO_DOUBLE: Final = 4
FLOAT_TO_DOUBLE: Final = 5
"""Read a number, and convert it by Avro's rules of resolution."""
FIXED: Final = 6
"""Copy `x` bytes: also floats and doubles."""
BYTES: Final = 7
"""Copy bytes that follow their length."""
TEXT: Final = 8
"""Copy bytes that follow their length, if they are UTF-8."""
DECIMAL: Final = 9
"""Read a big-endian integer of `x` bytes, or that follows its length if `x` is -1. It must lie between two numbers,
which are in the pool from `y` on, as little-endian as the column's."""
DURATION: Final = 10
"""Read months, days and milliseconds, each of 32 bits, as Arrow's interval of months, days and nanoseconds."""
ENUM: Final = 11
"""Read an index, and append its symbol: `tables[x:]` has the start and end of each of the `y` symbols in the pool."""
UNION: Final = 12
"""Read a branch's index, and continue at its step: `tables` has the steps of the `y` branches at `x`. -1: none."""
JUMP: Final = 13
"""Continue at step `x`."""
NULLS: Final = 14
"""Append a null to each of the columns `tables[x:y]`."""
VALID: Final = 15
"""Append a struct that is not null."""
LIST: Final = 16
"""Begin a list or a map, whose items are read by the steps after this one. Continue at step `x` after its last item.
`y`: items may have no bytes."""
ITEM: Final = 17
"""End an item. The next one is read by the steps from `x` on. `y`: as for LIST."""
POOL: Final = 18
"""Read the next values from the pool, from byte `x` to byte `y`: the default of a field."""
DATA: Final = 19
"""Read from the value again."""
CALL: Final = 20
"""Continue at step `x`, and after RETURN, with the next step."""
RETURN: Final = 21
"""Return from CALL, or end the value."""

WIDTH: Final = 6
"""Numbers of a column:"""
ADDRESS: Final = 0
"""the address of its data (for a struct: 0),"""
DATA_ROOM: Final = 1
"""the size of its data in bytes,"""
SIZE: Final = 2
"""the bytes of a value, or 0 if they differ: then it has ends; of a struct: -1,"""
ENDS: Final = 3
"""the address of the ends of its values as int32, or 0,"""
VALIDITY: Final = 4
"""the address of its validity, a byte for each value,"""
ROOM: Final = 5
"""and the number of values for which there is room."""

MOST_INT: Final = 2**31 - 1
NANOSECONDS: Final = 1_000_000
"""Of a millisecond."""
MOST_DEPTH: Final = 64
"""Lists, maps and calls that may be in each other."""
MOST_EMPTY: Final = 1 << 16
"""Items without bytes in one value: a few bytes could ask for any number of them."""

OK: Final = 0
FULL: Final = 1
"""A column has no room for another value."""
FULL_DATA: Final = 2
"""A column has no room for the bytes of another value."""
CUT_OFF: Final = 3
LEFT_OVER: Final = 4
TOO_LARGE: Final = 5
MANY_DIGITS: Final = 14
LARGE_DURATION: Final = 15
BAD_BOOLEAN: Final = 6
BAD_LENGTH: Final = 7
BAD_TEXT: Final = 8
NO_SYMBOL: Final = 9
NO_BRANCH: Final = 10
NOT_READ: Final = 11
DEEP: Final = 12
EMPTY_ITEMS: Final = 13

REASONS: Final = {
    CUT_OFF: "it ends too early",
    LEFT_OVER: "it is followed by {0} extra bytes",
    TOO_LARGE: "a number is larger than its type",
    LARGE_DURATION: "a duration has {0} months or days, more than 2^31 - 1",
    MANY_DIGITS: "a decimal has more digits than its precision",
    BAD_BOOLEAN: "a boolean is {0}",
    BAD_LENGTH: "a length or count of {0}",
    BAD_TEXT: "a string is not UTF-8",
    NO_SYMBOL: "its enum has no symbol {0}, or the schema to read with lacks the symbol",
    NO_BRANCH: "its union has no branch {0}",
    NOT_READ: "branch {0} of a union does not fit the schema to read with",
    DEEP: f"lists and maps are in each other more than {MOST_DEPTH} times",
    EMPTY_ITEMS: f"a list has more than {MOST_EMPTY} items without bytes",
}
"""Why a value is bad, with a number that the interpreter has found."""

# -- writing ----------------------------------------------------------------------------------------------------------

PUT: Final = 0
"""Write the bytes of the pool from `x` to `y`."""
PUT_BOOLEAN: Final = 1
PUT_NUMBER: Final = 2
"""Write a number of the column, of 4 or 8 bytes, as a zigzag varint."""
PUT_RAW: Final = 3
"""Write the bytes of a value of fixed size."""
PUT_BYTES: Final = 4
"""Write the bytes of a value, after their length."""
PUT_DECIMAL: Final = 5
"""Write a little-endian integer as a big-endian one of `x` bytes; if `x` is -1, of as few as possible, after their
number."""
PUT_DURATION: Final = 6
"""Write an interval as its months, days and milliseconds, each of 32 bits."""
MAYBE: Final = 7
"""Write the number of the branch in `tables[y + 1]`, unless it is -1, and go on. For a null, write the one in
`tables[y]` and continue at step `x`; if it is -1, the value must not be null."""
MEMBER: Final = 8
"""Write the one of `y` columns that is not null: `tables[x:]` has the column, the branch and the step of each."""
PUT_LIST: Final = 9
"""Begin a list: write its length, and its items with the steps after this one. If it is empty, continue at step `x`.
`y` is the level of the items."""
PUT_ITEM: Final = 10
"""End an item. The next one is written by the steps from `x` on. `y`: as for PUT_LIST."""
GO: Final = 11
"""Continue at step `x`."""
STOP: Final = 12
"""End the value."""

LEVEL: Final = 1
"""A column to write has at this place, instead of the size of its data, its level: columns in the same list share one,
and level 0 are the rows."""

IS_NULL: Final = 1
NO_MEMBER: Final = 2
MANY_MEMBERS: Final = 3
NO_ROOM: Final = 4
BAD_DURATION: Final = 5

COMPLAINTS: Final = {
    IS_NULL: "must not be null",
    NO_MEMBER: "has no member, but a union must have one",
    MANY_MEMBERS: "has several members, but a union must have one",
    BAD_DURATION: "must have whole milliseconds, at most 2^32 - 1 of them, and no negative part",
}
"""Why a row cannot be written, after the name of its column."""
