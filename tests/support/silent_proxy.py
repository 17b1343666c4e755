"""A proxy between our clients and a broker that drops all requests of some APIs, as a broker that hangs."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from oncelog.protocol.apis import ApiKey
from support.proxy import _frame, _shut


class SilentProxy:
    """Listen at `port`. Requests of the APIs in `silent` do not arrive."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.silent: set[ApiKey] = set()
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        for each in self._sockets:
            _shut(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._target)
                self._sockets += [client, upstream]
                threading.Thread(target=self._requests, args=(client, upstream), daemon=True).start()
                threading.Thread(target=self._answers, args=(client, upstream), daemon=True).start()

    def _requests(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(client)) is not None:
                (key,) = struct.unpack_from(">h", frame)
                if key not in self.silent:
                    upstream.sendall(struct.pack(">i", len(frame)) + frame)
        _shut(upstream)

    def _answers(self, client: socket.socket, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(1 << 16):
                client.sendall(data)
        _shut(client)
