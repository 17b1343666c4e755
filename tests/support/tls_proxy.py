"""A proxy that ends TLS in front of a plaintext listener, as load balancers and service meshes do."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path

from support.certificates import Pair


class TlsProxy:
    """Listen at `address`, and forward to `target`. Use it in a `with` block.

    A client must send a host name in its handshake (SNI), because such proxies choose the target by it. `names` has
    the names of all connections.
    """

    def __init__(self, address: str, target: str, pair: Pair, folder: Path) -> None:
        self._address, self._target, self._folder = address, target, folder
        self.names: list[str | None] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.sni_callback = self._named
        self.present(pair)
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def present(self, pair: Pair) -> None:
        """Use this certificate for new connections."""
        self._context.load_cert_chain(*pair.write(self._folder, "proxy"))

    def _named(self, _: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int | None:
        self.names.append(name)
        return None if name else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        host, _, port = self._address.rpartition(":")
        async with await asyncio.start_server(self._forward, host, int(port), ssl=self._context, reuse_address=True):
            self._ready.set()
            await self._stopped.wait()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        other_reader, other_writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))
        finally:
            writer.close()
            other_writer.close()

    def __enter__(self) -> TlsProxy:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
