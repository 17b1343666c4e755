"""Cut the bytes of one connection into frames. This module does no I/O, and does not read the contents of frames.

A frame is an int32 length (big endian) and that many bytes.

Reading copies nothing beyond what the kernel does, if frames allow it. All connections read into one scratch buffer,
because a read and the work on it take one turn of the event loop. A connection claims the buffer only while it holds
more than a little of an unfinished or unanswered frame. So an idle connection costs no buffer, and the memory of a
connection is bounded by what its client has sent.
"""

from __future__ import annotations

import struct

from oncelog.protocol.memory import reserved

BUFFER_BYTES = 256 * 1024
"""Size of a read buffer. A longer frame gets its own memory."""
SMALL_BYTES = 4096
"""Copying up to this many bytes is cheaper than keeping a whole read buffer."""
GROWTH = 8
"""A long frame's memory is at most this many times the bytes received, or BUFFER_BYTES if that is more.

So a client cannot reserve memory by sending only a length.
"""
MAPPED_BYTES = 4 * 1024 * 1024
"""Frames of at least this size are read into mapped memory."""
CROWD = 64
"""If more connections than this hold memory for frames, saving memory matters more than avoiding copies."""
CROWDED_GROWTH = 2
"""The value of GROWTH while more than CROWD connections hold memory. Then a frame has no minimum memory."""
SPARE_BUFFERS = 4
"""Number of unused read buffers to keep."""
HEAD_BYTES = 8
"""The first bytes of a frame that `FrameReader.head` returns."""

_LENGTH = struct.Struct(">i")
_TLS_HANDSHAKE, _TLS_MINOR_MAX = 0x1603, 4
"""The start of a TLS record: type (handshake) and major version in two bytes, then the minor version."""


class BadFrameError(Exception):
    """Raised for a frame that cannot be answered. The server closes the connection and logs a line."""


class ReadBuffers:
    """The read buffers of all connections of a server."""

    __slots__ = ("_spare", "holders", "scratch")

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(BUFFER_BYTES))
        self.holders = 0
        """Connections that hold a read buffer or a long frame."""
        self._spare: list[memoryview] = []

    @property
    def crowded(self) -> bool:
        """Whether so many connections hold memory that saving it matters more than avoiding copies."""
        return self.holders > CROWD

    def claim(self) -> memoryview:
        """Return the scratch buffer with its contents, and use another one as the scratch buffer."""
        taken = self.scratch
        self.scratch = self._spare.pop() if self._spare else memoryview(bytearray(BUFFER_BYTES))
        return taken

    def release(self, buffer: memoryview) -> None:
        """Take back a claimed buffer."""
        if len(self._spare) < SPARE_BUFFERS:
            self._spare.append(buffer)


class FrameReader:
    """Hold the unserved bytes of one connection: `_long` (one long frame), or `_tail`, or `_buffer[_start:_end]`.

    A read goes into `get_buffer()`. If `received(size)` returns True, and after `resume()`, the connection takes frames
    with `next_frame(limit)`. Then it calls `keep()`, in the same turn of the event loop.
    """

    __slots__ = (
        "_buffer",
        "_buffers",
        "_end",
        "_got",
        "_holding",
        "_long",
        "_long_size",
        "_pinned",
        "_start",
        "_tail",
        "_view",
    )

    def __init__(self, buffers: ReadBuffers) -> None:
        self._buffers = buffers
        self._view: memoryview | None = None
        """The buffer that `_start` and `_end` refer to, between a read and `keep`; None if a long frame was read."""
        self._buffer: memoryview | None = None
        """The claimed buffer; without one, reads go to the scratch buffer."""
        self._start = self._end = 0
        self._tail = b""
        """A part of an unfinished or unserved frame, while no buffer is claimed."""
        self._long: memoryview | None = None
        self._long_size = self._got = 0
        self._holding = False
        """This connection is counted among the holders of a read buffer or a long frame."""
        self._pinned = False
        """A request reads its frame in `_buffer` while it waits, so the buffer must not move."""

    def get_buffer(self) -> memoryview:
        """Return the memory for the next read."""
        if self._long is not None:
            if self._got == len(self._long):
                self._grow(self._long)
            return self._long[self._got :]
        if self._buffer is not None:
            return self._buffer[self._end :]
        scratch, tail = self._buffers.scratch, self._tail
        if tail:
            scratch[: len(tail)] = tail
            return scratch[len(tail) :]
        return scratch

    def received(self, nbytes: int) -> bool:
        """Count the bytes of a read. Return False while a long frame is incomplete."""
        if self._long is not None:
            self._got += nbytes
            return self._got >= self._long_size
        if self._buffer is None:
            self._start, self._end = 0, len(self._tail) + nbytes
            self._tail = b""
            self._view = self._buffers.scratch
        else:
            self._end += nbytes
            self._view = self._buffer
        return True

    def resume(self, *, blocked: bool) -> None:
        """Prepare to take frames from the kept bytes. A `blocked` connection will take none."""
        if self._buffer is None and self._tail and not blocked:
            scratch = self._buffers.scratch
            self._start, self._end = 0, len(self._tail)
            scratch[: self._end] = self._tail
            self._tail = b""
            self._view = scratch
        else:
            self._view = self._buffer

    def next_frame(self, limit: int) -> memoryview | None:
        """Take the next whole frame, or return None. Raises BadFrameError if its length exceeds `limit` bytes."""
        if self._long is not None:
            if self._got < self._long_size:
                return None
            long, self._long = self._long, None
            return long
        view = self._view
        if view is None or self._end - self._start < 4:
            return None
        start = self._start + 4
        length: int = _LENGTH.unpack_from(view, self._start)[0]
        if not 0 <= length <= limit:
            raise BadFrameError(_wrong_length(length, limit))
        if start + length > self._end:
            return None
        self._start = start + length
        frame = view[start : self._start]
        return memoryview(bytearray(frame)) if length <= SMALL_BYTES else frame

    def head(self) -> memoryview | None:
        """Return the first HEAD_BYTES of the next frame, or the whole frame if it is shorter.

        Return None if they are not received yet, or if the length is impossible. Then `next_frame` takes no frame.
        """
        if self._long is not None:
            return self._long[:HEAD_BYTES] if self._got >= HEAD_BYTES else None
        view = self._view
        received = self._end - self._start - 4
        if view is None or received < 0:
            return None
        length: int = _LENGTH.unpack_from(view, self._start)[0]
        size = min(length, HEAD_BYTES)
        return view[self._start + 4 : self._start + 4 + size] if 0 <= size <= received else None

    def pin(self, frame: memoryview) -> None:
        """Keep the buffer of a frame in place, because a request reads the frame while it waits."""
        self._pinned = len(frame) > SMALL_BYTES and self._view is not None

    def unpin(self) -> None:
        """Allow the buffer to move again: the request is answered."""
        self._pinned = False

    def keep(self, *, blocked: bool) -> None:
        """Keep the unserved bytes. `blocked`: the connection takes no further frame now, even if one is complete."""
        view, self._view = self._view, None
        if view is not None:
            self._keep(view, blocked)
        self._count()

    def discard(self) -> None:
        """Drop all bytes, because the connection is lost."""
        self._tail, self._long = b"", None
        self.release()

    def release(self) -> None:
        """Release the buffer, unless a request still reads it."""
        self._view = None
        if not self._pinned:
            self._drop_buffer()

    @property
    def empty(self) -> bool:
        """Whether there are no unserved bytes, after `keep`."""
        return self._long is None and not self._tail and (self._buffer is None or self._start == self._end)

    @property
    def full(self) -> bool:
        """Whether there is no space for another read."""
        if self._long is not None:
            return self._got == self._long_size
        return self._buffer is not None and self._end == len(self._buffer)

    def _keep(self, view: memoryview, blocked: bool) -> None:
        left = self._end - self._start
        if not self._pinned and (left <= SMALL_BYTES or (blocked and self._wasteful(left, view))):
            self._tail = bytes(view[self._start : self._end])
            self._drop_buffer()
            return
        if not self._pinned and self._wasteful(left, view):
            self._begin_long(view, _LENGTH.unpack_from(view, self._start)[0])
            return
        self._claim(view)
        if self._pinned:
            return
        if blocked:
            if self._end == len(view):
                self._move_to_front(view)
            return
        length: int = _LENGTH.unpack_from(view, self._start)[0]
        if 4 + length > len(view):
            self._begin_long(view, length)
        elif self._start + 4 + length > len(view):
            self._move_to_front(view)

    def _wasteful(self, left: int, view: memoryview) -> bool:
        """Return whether so few bytes should not keep a whole buffer, because many connections hold buffers."""
        return CROWDED_GROWTH * left < len(view) and self._buffers.crowded

    def _claim(self, view: memoryview) -> None:
        if self._buffer is None:
            self._buffer = self._buffers.claim()
            assert self._buffer is view

    def _drop_buffer(self) -> None:
        self._start = self._end = 0
        if self._buffer is not None:
            self._buffers.release(self._buffer)
            self._buffer = None
        self._count()

    def _move_to_front(self, view: memoryview) -> None:
        left = self._end - self._start
        if self._start:
            view[:left] = view[self._start : self._end]
        self._start, self._end = 0, left

    def _begin_long(self, view: memoryview, length: int) -> None:
        got = self._end - self._start - 4
        size = CROWDED_GROWTH * got if self._buffers.crowded else max(GROWTH * got, BUFFER_BYTES)
        self._long = _mapped(length) or memoryview(bytearray(min(length, size)))
        self._long[:got] = view[self._start + 4 : self._end]
        self._long_size, self._got = length, got
        self._drop_buffer()

    def _grow(self, short: memoryview) -> None:
        growth = CROWDED_GROWTH if self._buffers.crowded else GROWTH
        grown = memoryview(bytearray(min(self._long_size, growth * self._got)))
        grown[: self._got] = short
        self._long = grown

    def _count(self) -> None:
        """Count this connection among the holders of memory for frames, or stop counting it."""
        holding = self._buffer is not None or self._long is not None
        if holding is not self._holding:
            self._holding = holding
            self._buffers.holders += 1 if holding else -1


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
        return "the client uses TLS, but this port speaks PLAINTEXT; set security.protocol=PLAINTEXT in the client"
    return f"the request has {length} bytes, but socket.request.max.bytes allows 0 to {limit}"
