"""Lists in error messages and log lines, of bounded length."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

NAMED = 3
"""How many items a text names by default."""


def first_named(items: Iterable[object], total: int, most: int = NAMED, separator: str = ", ") -> str:
    """Return the first `most` of `total` items, and how many follow: "a, b, c and 7 more"."""
    named = separator.join(map(str, islice(items, most)))
    return named if total <= most else f"{named} and {total - most} more"
