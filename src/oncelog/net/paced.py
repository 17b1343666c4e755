"""Write large responses over TLS in small steps. Encrypting 32 MB at once would hold the event loop for 50 ms.

The event loop's transport encrypts all that is written to it at once, and keeps the result in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from mmap import mmap

STEP_BYTES = 256 * 1024
"""How much is encrypted before other connections get a turn, and the size of the largest response without steps."""


class PacedWriter:
    """What one connection with TLS has not passed to its transport yet."""

    __slots__ = ("_closing", "_loop", "_next_step", "_paused", "_pieces", "_transport", "_written")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.WriteTransport, written: Callable[[], None]
    ) -> None:
        """`written` is called when the transport has got everything, and takes more."""
        self._loop = loop
        self._transport = transport
        self._written = written
        self._pieces: deque[memoryview] = deque()
        self._paused = False
        """The client reads too slowly."""
        self._closing = False
        self._next_step: asyncio.Handle | None = None

    @property
    def waiting(self) -> bool:
        """Whether something is not passed to the transport yet. If so, pass what follows to `add`, too."""
        return bool(self._pieces)

    def add(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a response after what waits. `written` is called later, never at once.

        Pages of a file are copied: they could be truncated before they are encrypted, which would kill the process.
        """
        for piece in pieces:
            mapped = type(piece) is memoryview and type(piece.obj) is mmap
            self._pieces.append(memoryview(bytes(piece) if mapped else piece))
        self._schedule()

    def pause(self) -> None:
        """Write no more: the transport has enough."""
        self._paused = True
        self._unschedule()

    def resume(self) -> bool:
        """Continue. Return whether nothing waits."""
        self._paused = False
        self._schedule()
        return not self._pieces

    def close(self) -> None:
        """Close the transport when everything is written."""
        self._closing = True
        if not self._pieces:
            self._transport.close()

    def discard(self) -> None:
        """Write no more. The connection is lost, or will be."""
        self._pieces.clear()
        self._unschedule()

    def _schedule(self) -> None:
        if self._pieces and not self._paused and self._next_step is None:
            self._next_step = self._loop.call_soon(self._step)

    def _unschedule(self) -> None:
        if self._next_step is not None:
            self._next_step.cancel()
            self._next_step = None

    def _step(self) -> None:
        self._next_step = None
        self._transport.write(self._taken())
        self._schedule()
        if not self._pieces:
            if self._closing:
                self._transport.close()
            elif not self._paused:
                self._written()

    def _taken(self) -> bytes:
        """Remove and return the next bytes."""
        taken: list[memoryview] = []
        left = STEP_BYTES
        while self._pieces and left:
            piece = self._pieces.popleft()
            if len(piece) > left:
                self._pieces.appendleft(piece[left:])
                piece = piece[:left]
            taken.append(piece)
            left -= len(piece)
        return b"".join(taken)
