"""A server that sends fixed bytes to each client, at any speed: for the clients of HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat


@contextmanager
def raw_endpoint(*pieces: bytes, pause_s: float = 0.0) -> Iterator[tuple[str, list[int]]]:
    """Send these bytes to each client, the last piece again and again. Yield the URL, and the sizes that were sent."""
    sent: list[int] = []
    stopped = threading.Event()

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(4096)
            for piece in chain(pieces, repeat(pieces[-1] if pieces else b"")):
                client.sendall(piece)
                sent.append(len(piece))
                if stopped.wait(pause_s):
                    return

    def accept(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],)).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, args=(listening,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/token", sent
        finally:
            stopped.set()
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
