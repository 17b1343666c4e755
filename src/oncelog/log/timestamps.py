"""Look records up by time, in steps that are short: a caller may serve others between two of them.

A step reads batch headers, and ends with a batch that may hold the record. To decode that batch may take long, for it
may be compressed: `first_since` and `last_of` look at nothing but its bytes, so that a worker thread can run them.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog.protocol.records import iter_heads

Found = tuple[int, int]
"""(timestamp, offset) of a record."""

HEADERS_A_STEP = 500
"""Batch headers that one step reads."""
SEGMENTS_A_STEP = 8
"""Segments whose indexes one step asks: each may have to be read from its file first."""


class TimeStep(NamedTuple):
    """The end of one step of a search by time."""

    next_offset: int
    """Where the next step begins, if the batch does not have the record."""
    batch: bytes = b""
    """A batch that may hold the record; empty if this step has found none."""
    epoch: int = -1
    """Leader epoch of that batch."""


def first_since(batch: bytes, timestamp: int, start_offset: int) -> Found | None:
    """Return the first record from ``start_offset`` on that is not older than ``timestamp``.

    Raises CORRUPT_MESSAGE and INVALID_RECORD if the batch is damaged before it.
    """
    for offset, time, _ in iter_heads(batch):
        if time >= timestamp and offset >= start_offset:
            return time, offset
    return None


def last_of(batch: bytes) -> Found | None:
    """Return the first record with the largest timestamp of a batch, None if compaction has taken all of them."""
    found = max(((time, -offset) for offset, time, _ in iter_heads(batch)), default=None)
    return None if found is None else (found[0], -found[1])
