"""The two sides of a connection through the proxy, which carry frames."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

MAX_REQUEST = 100 << 20
"""The largest request in bytes, as in Kafka (`socket.request.max.bytes`)."""
MAX_RESPONSE = 1 << 30
"""The largest response in bytes."""
TLS_HANDSHAKE = b"\x16\x03"


class CutError(Exception):
    """The connection closes now. The message is the reason if a person should see it."""


class Stream(NamedTuple):
    """One side of a link."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read_frame(self, largest: int) -> bytes | None:
        """Return the next frame without its length, or None at the end. Raises CutError if it is too large."""
        try:
            prefix = await self.reader.readexactly(4)
            size = int.from_bytes(prefix, "big", signed=True)
            if not 0 <= size <= largest:
                tls = prefix.startswith(TLS_HANDSHAKE)
                raise CutError(
                    "the client begins with TLS, which the proxy cannot read: use security.protocol=PLAINTEXT or "
                    "SASL_PLAINTEXT"
                    if tls
                    else f"a frame has {size} bytes, but at most {largest} are read"
                )
            return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def write_frame(self, frame: bytes) -> None:
        """Write a frame with its length. Wait while the other side does not read. Raises CutError."""
        try:
            self.writer.write(len(frame).to_bytes(4, "big"))
            self.writer.write(frame)
            await self.writer.drain()
        except OSError as error:
            raise CutError from error

    def close(self) -> None:
        """Close the socket when everything is written."""
        self.writer.close()

    def abort(self) -> None:
        """Close the socket at once."""
        self.writer.transport.abort()
