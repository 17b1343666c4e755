"""The memory that answers take until their clients have read them, of all connections together."""

from __future__ import annotations

from mmap import mmap

Piece = bytes | memoryview

LEAST = 64 * 1024
"""Bytes of memory that an answer may always take, so that a client that reads is served whatever the others do."""
LEAST_AT_ONCE = 1024 * 1024
"""Bytes that may always be read from a log at once; it takes no memory if the pages of the file are sent."""


class Unsent:
    """Counts what answers take, and says how much the next one may take.

    One answer gets at most half of what is left. So a few clients that do not read cannot use up the whole budget, and
    those that come later still get a share. An answer that was sent at once takes nothing.
    """

    __slots__ = ("_copies", "_limit", "bytes")

    def __init__(self, limit: int, *, copies: bool) -> None:
        """`limit` in bytes, -1 for none; `copies`: the transport copies whatever is written to it."""
        self._limit = limit
        self._copies = copies
        self.bytes = 0

    def room(self) -> int:
        """Return how many bytes of memory the next answer may take."""
        if self._limit < 0:
            return 2**63 - 1
        return max((self._limit - self.bytes) // 2, LEAST)

    @property
    def too_much(self) -> bool:
        """Whether answers take twice the limit: other answers than those of Fetch, which ask for room."""
        return 0 <= 2 * self._limit < self.bytes

    def taken_by(self, piece: Piece) -> int:
        """Return the bytes of memory that a piece of an answer takes: none if it is a mapped part of a file."""
        mapped = type(piece) is memoryview and type(piece.obj) is mmap
        return 0 if mapped and not self._copies else len(piece)
