"""Limit the memory of responses that clients have not read yet, for all connections together."""

from __future__ import annotations

from mmap import mmap
from typing import Protocol

from oncelog.net.session import Session

Piece = bytes | memoryview

DEFAULT_LIMIT = 64 * 1024 * 1024
"""Memory for the responses of all connections of a server, in bytes."""
LEAST = 64 * 1024
"""Bytes of memory that a response may always take, so that slow clients cannot block the others."""
LEAST_AT_ONCE = 1024 * 1024
"""Bytes that a Fetch may always read from a log at once. They take no memory if the pages of the file are sent."""


class SlowReader(Protocol):
    """A connection whose client does not read its responses."""

    session: Session

    def abort_unread(self) -> None:
        """Close the connection because of its unread responses."""


class Unsent:
    """Count the memory of responses, and return how much the next response may take.

    One response gets at most half of what is left. So a few clients that do not read cannot use up the whole budget,
    and later responses still get a share. A response that was sent at once takes nothing.
    """

    __slots__ = ("_limit", "_unread", "bytes", "copies")

    def __init__(self, limit: int, *, copies: bool) -> None:
        """`limit` is in bytes, -1 for none. `copies`: the transport copies all data that is written to it."""
        self._limit = limit
        self.copies = copies
        self.bytes = 0
        self._unread: dict[SlowReader, None] = {}
        """The connections with unread responses. The one that has waited longest is first."""

    def available(self, own: int = 0) -> int:
        """Return how many more bytes a response may take, if it has taken `own` bytes so far."""
        if self._limit < 0:
            return 2**63 - 1
        return max((self._limit - self.bytes + own) // 2, LEAST) - own

    def draft(self, session: Session, size: int) -> None:
        """Count the memory of an incomplete response, because handlers may build others at the same time."""
        session.draft += size
        self.bytes += size

    def drop_draft(self, session: Session) -> None:
        """Stop counting an incomplete response: it was written and is counted elsewhere, or is built again."""
        self.bytes -= session.draft
        session.draft = 0

    def add_unread(self, connection: SlowReader, size: int) -> None:
        """Count a response that its client has not read yet; `size` is its memory in bytes.

        If all responses together take far too much memory, close the connections whose responses are unread for the
        longest time.
        """
        self._unread[connection] = None
        connection.session.unread += size
        self.bytes += size
        if self.too_much:
            for other in tuple(self._unread):
                if other.session.unread > LEAST and self.too_much:
                    other.abort_unread()

    def all_read(self, connection: SlowReader) -> None:
        """Stop counting a client's responses: it has read all of them, or has disconnected."""
        self._unread.pop(connection, None)
        self.bytes -= connection.session.unread
        connection.session.unread = 0

    @property
    def too_much(self) -> bool:
        """Whether responses take more than twice the limit.

        Fetches of consumers cannot cause this, because they check `available` first. Followers get copies of up to
        `LEAST_AT_ONCE`.
        """
        return 0 <= 2 * self._limit < self.bytes

    def taken_by(self, piece: Piece, session: Session) -> int:
        """Return the bytes of memory that a piece of a response takes: 0 if it is sent as a mapped part of a file."""
        mapped = type(piece) is memoryview and type(piece.obj) is mmap
        return 0 if mapped and not (self.copies or session.encrypted) else len(piece)
