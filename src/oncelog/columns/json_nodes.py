"""Define the numbers that the kernel `json_shaped` and its caller share. numba is not imported here."""

from __future__ import annotations

from typing import Final

ANY: Final = 0
"""A value that is copied unchanged. A shape is a table of numbers: first this one, then the other nodes."""
STRUCT: Final = 1
"""An object. The count of its fields follows, and for each, start and end of its name in `names`, and its node."""
LIST: Final = 2
"""An array. The node of its items follows."""
MAP: Final = 3
"""An object that becomes an array of objects with `key` and `value`. The node of the values follows."""
DECIMAL: Final = 4
"""A number, or a text with a number. Precision and scale follow."""
TEXT: Final = 5
"""Any value. Except for null, it becomes an object with its JSON as a text, and with the value itself to be checked."""

NOT_JSON: Final = 1
NO_OBJECT: Final = 2
NO_NUMBER: Final = 3
MANY_DIGITS: Final = 4
CODES: Final = 8
"""What is wrong with a value: CODES times the place of a node, plus one of the codes above. 0: nothing."""

MAP_GROWTH: Final = 16
"""Bytes that an entry of a map grows by."""
DECIMAL_GROWTH: Final = 6
"""Bytes that a number grows by."""
TEXT_GROWTH: Final = 24
"""Bytes that a value grows by which becomes a text, besides itself and a byte for each quote and backslash."""
