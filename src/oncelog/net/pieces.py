"""Choose the pieces of a response to join before the write to a transport."""

from __future__ import annotations

import asyncio
import struct

MANY_PIECES = 1024
"""The system accepts no more in one call (IOV_MAX). uvloop silently drops a response of more than a million pieces."""
SMALL_PIECE = 4096
JOINED_BYTES = 64 * 1024
_LENGTH = struct.Struct(">i")


def add_framed(out: list[bytes | memoryview], chunks: list[bytes | memoryview]) -> int:
    """Append one response with its length in front. Return the number of bytes added."""
    size = sum(map(len, chunks))
    out.append(_LENGTH.pack(size))
    out += chunks
    return size + 4


def in_few_pieces(pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the same bytes in fewer pieces. If there are very many, join small adjacent pieces."""
    if len(pieces) <= MANY_PIECES:
        return pieces
    found: list[bytes | memoryview] = []
    run: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if len(piece) < SMALL_PIECE:
            run.append(piece)
            size += len(piece)
            if size < JOINED_BYTES:
                continue
        if run:
            found.append(b"".join(run))
            run, size = [], 0
        if len(piece) >= SMALL_PIECE:
            found.append(piece)
    if run:
        found.append(b"".join(run))
    return found


def needs_join(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the pieces of a response must be joined before the write to a transport of this event loop.

    asyncio's own `writelines` joins them up to Python 3.11. From 3.12 on it does not, and has two bugs. It never pauses
    a writer (CVE-2024-12254, until 3.12.9 and 3.13.2). It never sends an empty last piece: the loop spins, and the
    transport does not close (gh-155888, fixed in late releases of 3.14). uvloop has neither.
    """
    return isinstance(loop, asyncio.BaseEventLoop)
