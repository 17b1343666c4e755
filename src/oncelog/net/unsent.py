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

    __slots__ = ("_copies", "_limit", "bytes", "drafts")

    def __init__(self, limit: int, *, copies: bool) -> None:
        """`limit` in bytes, -1 for none; `copies`: the transport copies whatever is written to it."""
        self._limit = limit
        self._copies = copies
        self.bytes = 0
        self.drafts: dict[int, int] = {}
        """Memory of answers that are being made, by connection; it is part of `bytes`."""

    def room(self, own: int = 0) -> int:
        """Return how many bytes of memory an answer may still take of which `own` bytes are made."""
        if self._limit < 0:
            return 2**63 - 1
        return max((self._limit - self.bytes + own) // 2, LEAST) - own

    def draft(self, connection_id: int, size: int) -> None:
        """Count what an answer takes that is being made: others may be made at the same time."""
        self.drafts[connection_id] = self.drafts.get(connection_id, 0) + size
        self.bytes += size

    def drop_draft(self, connection_id: int) -> None:
        """Note that the answer was written, which is counted elsewhere, or is made again."""
        self.bytes -= self.drafts.pop(connection_id, 0)

    @property
    def too_much(self) -> bool:
        """Whether answers take twice the limit: other answers than those of Fetch, which ask for room."""
        return 0 <= 2 * self._limit < self.bytes

    def taken_by(self, piece: Piece) -> int:
        """Return the bytes of memory that a piece of an answer takes: none if it is a mapped part of a file."""
        mapped = type(piece) is memoryview and type(piece.obj) is mmap
        return 0 if mapped and not self._copies else len(piece)
