"""One connection of the server: bytes in, frames out to the handler, answers back.

A frame is an int32 length (big endian) and that many bytes. Nothing here knows what is in them.

Reading copies nothing beyond what the kernel does, as far as frames allow. All connections read into one scratch
buffer, for a read and the work on it happen in one turn of the event loop; a connection takes the buffer for itself
only while it holds more than a little of an unfinished or unanswered frame. So an idle connection costs no buffer, and
what a connection can make us hold is bounded by what it has sent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from oncelog.net.eager import step
from oncelog.net.pieces import in_few_pieces
from oncelog.protocol.memory import reserved

if TYPE_CHECKING:
    from oncelog.net.server import Server

Chunks = list[bytes | memoryview]


class Holds(NamedTuple):
    """An answer that has to wait, and still reads the request's bytes while it waits."""

    answer: Awaitable[Any]


Handler = Callable[[memoryview, "Peer"], Chunks | Awaitable[Chunks | None] | Holds | None]

BUFFER_BYTES = 256 * 1024
"""Size of a read buffer; a longer frame gets memory of its own."""
SMALL_BYTES = 4096
"""Up to here, copying is cheaper than holding on to a whole read buffer."""
GROWTH = 8
"""A long frame's memory is at most this many times what has come of it: a length alone reserves nothing."""
MAPPED_BYTES = 4 * 1024 * 1024
"""A frame from this size on is read into mapped memory."""
CROWD = 64
"""Connections that may be in the middle of a frame at once, before memory counts for more than copying ..."""
CROWDED_GROWTH = 2
"""... and then an unfinished frame gets at most this many times what has come of it."""
WRITE_BYTES = 64 * 1024
"""Answers to pipelined requests are gathered up to this size before they are written."""
JOIN_BYTES = 16 * 1024
"""Up to here, chunks are joined into one write."""
FRAMES_A_TURN = 64
"""Frames that one connection has answered before the others are looked at."""
SWEEPS = 8
"""Looks at a connection without any activity in between, until it counts as idle."""

_LENGTH = struct.Struct(">i")
_TLS_HANDSHAKE, _TLS_MINOR_MAX = 0x1603, 4
"""How a TLS record begins: type (handshake) and major version in two bytes, then the minor version."""
_log = logging.getLogger("oncelog.net")


class BadFrameError(Exception):
    """Raised by a handler for a frame that has no answer: the connection is closed, with a line in the log."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who sent a frame; `connection_id` is unique within the server."""

    host: str
    port: int
    connection_id: int
    on_hang_up: list[Callable[[], None]] = field(default_factory=list, compare=False, repr=False)
    """Called when the client hangs up: a request that may wait long puts something here, and takes it away again."""


class Connection(asyncio.BufferedProtocol):
    """One client. Unserved bytes are, in order: `_long` (one long frame) or `_tail` or `_buffer[_start:_end]`."""

    __slots__ = (
        "_buffer",
        "_busy",
        "_closing",
        "_end",
        "_eof",
        "_got",
        "_holding",
        "_long",
        "_long_size",
        "_peer",
        "_pinned",
        "_quiet_sweeps",
        "_reading",
        "_server",
        "_start",
        "_tail",
        "_transport",
        "_turn_pending",
        "_write_paused",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._peer = Peer("", 0, 0)
        self._buffer: memoryview | None = None
        """The buffer that was claimed; without one, reads go to the server's scratch buffer."""
        self._start = self._end = 0
        self._tail = b""
        """A part of an unfinished or unserved frame, while no buffer is claimed."""
        self._long: memoryview | None = None
        self._long_size = self._got = 0
        self._holding = False
        """Counted by the server among those that hold a read buffer or a long frame."""
        self._busy = False
        """A request waits for its answer."""
        self._pinned = False
        """That request's frame is in `_buffer` and still read, so the buffer must not move."""
        self._turn_pending = False
        self._write_paused = False
        self._reading = True
        self._eof = False
        self._closing = False
        self._quiet_sweeps = 0

    # -- what the event loop calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        connection_id = self._server.admit(self)
        name = transport.get_extra_info("peername") or ("", 0)
        self._peer = Peer(str(name[0]), int(name[1]), connection_id)
        if not connection_id:
            self._closing = True
            self._transport.abort()
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; an answer in progress goes nowhere."""
        self._closing = True
        self._server.all_read(self)
        self._server.unsent.drop_draft(self._peer.connection_id)
        self._tell_hang_up()
        self._tail, self._long = b"", None
        if not self._pinned:
            self._drop_buffer()
        self._server.gone(self)

    def eof_received(self) -> bool:
        """The client sends no more: hang up, after the answer that it may still wait for."""
        self._eof = True
        self._tell_hang_up()
        return self._busy or self._turn_pending or self._write_paused

    def _tell_hang_up(self) -> None:
        for callback in tuple(self._peer.on_hang_up):
            callback()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes."""
        if self._long is not None:
            if self._got == len(self._long):
                self._grow()
            return self._long[self._got :]
        if self._buffer is not None:
            return self._buffer[self._end :]
        scratch, tail = self._server.scratch, self._tail
        if tail:
            scratch[: len(tail)] = tail
            return scratch[len(tail) :]
        return scratch

    def buffer_updated(self, nbytes: int) -> None:
        """A read has brought so many bytes."""
        if self._closing:
            return
        if self._long is not None:
            self._got += nbytes
            self._quiet_sweeps = 0
            if self._got < self._long_size:
                return
        elif self._buffer is None:
            self._start, self._end = 0, len(self._tail) + nbytes
            self._tail = b""
            self._turn(self._server.scratch)
            return
        else:
            self._end += nbytes
        self._turn(self._buffer)

    def pause_writing(self) -> None:
        """The client does not keep up with its answers."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._write_paused = False
        self._server.all_read(self)
        self._quiet_sweeps = 0
        self._next_turn()

    # -- what the server calls ----------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Serve nothing more; hang up, now or when the request in progress is answered."""
        if not self._busy:
            self._hang_up()

    def abort(self) -> None:
        """Hang up without sending what is left."""
        self._closing = True
        self._server.all_read(self)
        self._transport.abort()

    def abort_unread(self, size: int) -> None:
        """Close the connection: the client does not read its answers, and they take too much memory."""
        _log.warning(
            "closing %s:%d, it leaves %d bytes of answers unread, and all connections together exceed twice "
            "queued.max.response.bytes",
            self._peer.host,
            self._peer.port,
            size,
        )
        self.abort()

    def sweep(self) -> None:
        """Called regularly: closes the connection if nothing has happened since many calls ago."""
        self._quiet_sweeps += 1
        if self._quiet_sweeps > SWEEPS and not self._busy:
            _log.info("closing %s:%d, idle", self._peer.host, self._peer.port)
            self.abort()

    # -- serving ------------------------------------------------------------------------------------------------------

    def _blocked(self) -> bool:
        return self._busy or self._write_paused or self._turn_pending or self._closing

    def _turn(self, view: memoryview | None) -> None:
        """Serves what it can of the bytes at hand (in `view`, where they are not a long frame), keeps the rest."""
        if not self._blocked():
            self._serve(view)
        if self._closing:
            if not self._pinned:
                self._drop_buffer()
            return
        if view is not None:
            self._keep(view)
        self._count()
        blocked = self._blocked()
        if self._reading and blocked and self._full():
            self._reading = False
            self._transport.pause_reading()
        elif not self._reading and not blocked and not self._eof:
            self._reading = True
            self._transport.resume_reading()
        if self._eof and not blocked:
            self._hang_up()

    def _next_turn(self) -> None:
        """Goes on after a wait; there may be nothing at hand."""
        self._turn_pending = False
        if self._buffer is None and self._tail and not self._blocked():
            scratch = self._server.scratch
            self._start, self._end = 0, len(self._tail)
            scratch[: self._end] = self._tail
            self._tail = b""
            self._turn(scratch)
        else:
            self._turn(self._buffer)

    def _serve(self, view: memoryview | None) -> None:
        out: Chunks = []
        size = 0
        left = FRAMES_A_TURN
        handler, peer = self._server.handler, self._peer
        try:
            while (frame := self._next_frame(view)) is not None:
                result = handler(frame, peer)
                holds = type(result) is Holds
                if holds:
                    result = cast(Holds, result).answer
                if type(result) is CoroutineType:
                    result = step(result)
                if type(result) is list:
                    size += _add(out, result)
                    if size >= WRITE_BYTES:
                        self._write(out, size)
                        out, size = [], 0
                elif result is not None:
                    self._busy = True
                    self._pinned = holds and len(frame) > SMALL_BYTES and view is not None
                    self._server.run(self._wait(cast(Awaitable[Chunks | None], result)))
                if self._blocked():
                    break
                left -= 1
                if not left:
                    self._turn_pending = True
                    self._server.loop.call_soon(self._next_turn)
                    break
        except Exception as error:  # noqa: BLE001 - a bad request must not reach the event loop
            self._fail(error, out, size)
            return
        if out:
            self._write(out, size)
        if not self._busy and self._server.unsent.drafts:
            self._server.unsent.drop_draft(peer.connection_id)

    def _next_frame(self, view: memoryview | None) -> memoryview | None:
        """The next whole frame, taken off what is at hand; BadFrameError for an impossible length."""
        if self._long is not None:
            if self._got < self._long_size:
                return None
            frame, self._long = self._long, None
            self._quiet_sweeps = 0
            return frame
        if view is None or self._end - self._start < 4:
            return None
        start = self._start + 4
        length: int = _LENGTH.unpack_from(view, self._start)[0]
        if not 0 <= length <= self._server.limits.max_request_size:
            raise BadFrameError(_wrong_length(length, self._server.limits.max_request_size))
        if start + length > self._end:
            return None
        self._start = start + length
        self._quiet_sweeps = 0
        frame = view[start : self._start]
        return memoryview(bytearray(frame)) if length <= SMALL_BYTES else frame

    async def _wait(self, pending: Awaitable[Chunks | None]) -> None:
        """Answer a request whose handler has to wait."""
        try:
            chunks = await pending
        except Exception as error:  # noqa: BLE001 - a bad request must not reach the event loop
            self._server.unsent.drop_draft(self._peer.connection_id)
            self._busy = self._pinned = False
            self._fail(error, [], 0)
            return
        self._busy = self._pinned = False
        self._quiet_sweeps = 0
        if chunks is not None and not self._closing:
            out: Chunks = []
            self._write(out, _add(out, chunks))
        self._server.unsent.drop_draft(self._peer.connection_id)
        if self._server.draining:
            self._hang_up()
        self._next_turn()

    def _write(self, out: Chunks, size: int) -> None:
        if size <= JOIN_BYTES or self._server.joins:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(in_few_pieces(out))
        if self._write_paused and not self._closing:
            taken = sum(map(self._server.unsent.taken_by, out))
            self._server.unread(self, taken)

    def _fail(self, error: Exception, out: Chunks, size: int) -> None:
        """Closes the connection over a request that cannot be answered; answers before it still go out."""
        if not self._closing:
            expected = isinstance(error, BadFrameError)
            message = str(error) if expected else f"a request failed: {error!r}"
            level = logging.WARNING if expected else logging.ERROR
            trace = None if expected else error
            _log.log(level, "closing %s:%d, %s", self._peer.host, self._peer.port, message, exc_info=trace)
            if out:
                self._write(out, size)
            self._hang_up()
        if not self._pinned:
            self._drop_buffer()

    def _hang_up(self) -> None:
        if not self._closing:
            self._closing = True
            self._transport.close()

    # -- keeping bytes ------------------------------------------------------------------------------------------------

    def _keep(self, view: memoryview) -> None:
        """Keep the unserved bytes of `view` with as little memory and as few copies as possible."""
        left = self._end - self._start
        if not self._pinned and (left <= SMALL_BYTES or (self._blocked() and self._wasteful(left, view))):
            self._tail = bytes(view[self._start : self._end])
            self._drop_buffer()
            return
        if not self._pinned and self._wasteful(left, view):
            self._begin_long(view, _LENGTH.unpack_from(view, self._start)[0])
            return
        self._claim(view)
        if self._pinned:
            return
        if self._blocked():
            if self._end == len(view):
                self._move_to_front(view)
            return
        length = _LENGTH.unpack_from(view, self._start)[0]
        if 4 + length > len(view):
            self._begin_long(view, length)
        elif self._start + 4 + length > len(view):
            self._move_to_front(view)

    def _wasteful(self, left: int, view: memoryview) -> bool:
        """Return whether so few bytes should not keep a whole buffer, because many connections hold buffers."""
        return CROWDED_GROWTH * left < len(view) and self._crowded()

    def _claim(self, view: memoryview) -> None:
        if self._buffer is None:
            self._buffer = self._server.claim()
            assert self._buffer is view

    def _drop_buffer(self) -> None:
        self._start = self._end = 0
        if self._buffer is not None:
            self._server.release(self._buffer)
            self._buffer = None
        self._count()

    def _move_to_front(self, view: memoryview) -> None:
        left = self._end - self._start
        if self._start:
            view[:left] = view[self._start : self._end]
        self._start, self._end = 0, left

    def _begin_long(self, view: memoryview, length: int) -> None:
        got = self._end - self._start - 4
        size = CROWDED_GROWTH * got if self._crowded() else max(GROWTH * got, BUFFER_BYTES)
        self._long = _mapped(length) or memoryview(bytearray(min(length, size)))
        self._long[:got] = view[self._start + 4 : self._end]
        self._long_size, self._got = length, got
        self._drop_buffer()

    def _grow(self) -> None:
        assert self._long is not None
        growth = CROWDED_GROWTH if self._crowded() else GROWTH
        grown = memoryview(bytearray(min(self._long_size, growth * self._got)))
        grown[: self._got] = self._long
        self._long = grown

    def _crowded(self) -> bool:
        return self._server.holders > CROWD

    def _count(self) -> None:
        """Tells the server whether this connection is among those that hold memory for frames."""
        holding = self._buffer is not None or self._long is not None
        if holding is not self._holding:
            self._holding = holding
            self._server.holders += 1 if holding else -1

    def _full(self) -> bool:
        """Whether there is no room for another read."""
        if self._long is not None:
            return self._got == self._long_size
        return self._buffer is not None and self._end == len(self._buffer)


def _mapped(length: int) -> memoryview | None:
    """Return memory for a very long frame, or None for other frames. The system provides its pages as bytes arrive.

    Growing a frame's memory would copy and zero tens of MB at a time while all clients wait. If the system cannot
    reserve this much, return None as well: the frame may never arrive, so its memory grows with it.
    """
    if length < MAPPED_BYTES:
        return None
    try:
        return reserved(length)
    except MemoryError:
        return None


def _wrong_length(length: int, limit: int) -> str:
    """Describe an invalid frame length. The first bytes may be a TLS handshake instead of a length."""
    if length >> 16 == _TLS_HANDSHAKE and length >> 8 & 0xFF <= _TLS_MINOR_MAX:
        return "a TLS client, but this port speaks PLAINTEXT; set security.protocol=PLAINTEXT in the client"
    return f"request of {length} bytes, 0 to {limit} (socket.request.max.bytes) are allowed"


def _add(out: Chunks, chunks: Chunks) -> int:
    """Adds one answer with its length in front; returns the bytes added."""
    size = sum(map(len, chunks))
    out.append(_LENGTH.pack(size))
    out += chunks
    return size + 4
