"""Look up records by timestamp in short steps, so that the caller can serve other requests between two of them.

A step reads batch headers, and ends at a batch that may contain the record. Decoding a compressed batch may take long.
`first_since` and `last_of` read only the bytes of the batch, so a worker thread can run them.
"""

from __future__ import annotations

from typing import NamedTuple

from oncelog.protocol.records import iter_heads

Found = tuple[int, int]
"""(timestamp, offset) of a record."""

HEADERS_A_STEP = 500
"""Batch headers that one step reads."""
SEGMENTS_A_STEP = 8
"""Segments whose indexes one step searches. It may have to read each index from its file first."""


class TimeStep(NamedTuple):
    """The result of one step of a search by timestamp."""

    next_offset: int
    """Where the next step begins, if the batch does not contain the record."""
    batch: bytes = b""
    """A batch that may contain the record; empty if this step has found none."""
    epoch: int = -1
    """Leader epoch of that batch."""


def first_since(batch: bytes, timestamp: int, start_offset: int) -> Found | None:
    """Return the first record at or after ``start_offset`` whose timestamp is at least ``timestamp``.

    Raises CORRUPT_MESSAGE and INVALID_RECORD if the batch is damaged before that record.
    """
    for offset, time, _ in iter_heads(batch):
        if time >= timestamp and offset >= start_offset:
            return time, offset
    return None


def last_of(batch: bytes) -> Found | None:
    """Return the first record with the largest timestamp of a batch; None if compaction has removed all of them."""
    found = max(((time, -offset) for offset, time, _ in iter_heads(batch)), default=None)
    return None if found is None else (found[0], -found[1])
