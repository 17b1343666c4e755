"""A proxy between our clients and a broker that drops all requests of some APIs, as a broker that hangs."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from oncelog.protocol.apis import ApiKey
from support.proxy import Proxy, shut
from support.wire import frame_from


class SilentProxy(Proxy):
    """Requests of the APIs in `silent` do not arrive."""

    def __init__(self, bootstrap: str) -> None:
        self.silent: set[ApiKey] = set()
        super().__init__(bootstrap)

    def link(self, client: socket.socket, upstream: socket.socket) -> None:
        threading.Thread(target=self._requests, args=(client, upstream), daemon=True).start()
        threading.Thread(target=self._answers, args=(client, upstream), daemon=True).start()

    def _requests(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (frame := frame_from(client)) is not None:
                (key,) = struct.unpack_from(">h", frame)
                if key not in self.silent:
                    upstream.sendall(struct.pack(">i", len(frame)) + frame)
        shut(upstream)

    def _answers(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(1 << 16):
                client.sendall(data)
        shut(client)
