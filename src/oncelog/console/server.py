"""Run the console until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from oncelog.console.app import Console, make_app

MOST_CONNECTIONS = 500
REQUEST_S = 10.0
"""How long a request may take to arrive."""
STOP_S = 2
PARENT_POLL_S = 0.5


class _Impatient(H11Protocol):
    """Close a connection whose request, with its body, does not arrive within `REQUEST_S`."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request, if there is one."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Wait for the rest of a request that came with the one before."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._wait(lost=True)

    def _wait(self, *, lost: bool = False) -> None:
        if not lost and self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._deadline = self._deadline or self.loop.call_later(REQUEST_S, self.transport.abort)
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """A server that leaves signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: `serve` handles the signals on its event loop."""
        yield


async def serve(
    console: Console, listener: socket.socket, ready: Callable[[], None], orphaned: Callable[[], bool] = lambda: False
) -> None:
    """Serve the console on a socket until a signal, or until `orphaned` returns true.

    Call `ready` when the console answers.
    """
    config = uvicorn.Config(
        make_app(console),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http=_Impatient,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=STOP_S,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        console.watches.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not running.done():
        await asyncio.sleep(0.01)
    if server.started:
        ready()
    while not running.done():
        await asyncio.wait((running,), timeout=PARENT_POLL_S)
        if orphaned():
            stop()
    await running
