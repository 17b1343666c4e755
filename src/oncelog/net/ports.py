"""Bind the ports of a server's listeners, accept connections on them, and close them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from oncelog.net.admission import Arrival
from oncelog.net.entrance import Entrance
from oncelog.net.handshakes import TlsAcceptor
from oncelog.net.repeated_lines import RepeatedLines
from oncelog.net.server_options import WILDCARD, Listener, wildcard_socket


class Ports:
    """The bound ports of a server."""

    def __init__(
        self,
        protocol: Callable[[Listener, Arrival | None], asyncio.BaseProtocol],
        entrance: Entrance,
        lines: RepeatedLines,
        backlog: int,
    ) -> None:
        """`protocol` returns the asyncio protocol of a new connection. It gets the arrival if that is admitted.

        `entrance` admits connections with TLS before their handshakes.
        """
        self._protocol = protocol
        self._entrance = entrance
        self._lines = lines
        self._backlog = backlog
        self._bound: list[asyncio.Server] = []
        self._acceptors: list[TlsAcceptor] = []
        """One for each listener with TLS. The event loop accepts the connections of the other listeners."""
        self.listeners: dict[str, Listener] = {}
        """The bound listeners by name. Each has the number of its port, also if 0 was requested."""

    @property
    def handshakes(self) -> int:
        """The number of TLS handshakes in progress."""
        return sum([each.handshakes for each in self._acceptors])

    async def bind(self, listeners: Sequence[Listener]) -> None:
        """Bind all listeners, or none, so that `listeners` has their ports. Raises OSError if one cannot be bound."""
        try:
            for listener in listeners:
                await self._bind(listener)
        except OSError:
            self.close()
            raise

    async def serve(self) -> None:
        """Accept connections. Raises OSError if another process has begun to listen on a port since `bind`."""
        try:
            for bound, listener in zip(self._bound, self.listeners.values(), strict=True):
                if listener.tls is None:
                    await bound.start_serving()
            for acceptor in self._acceptors:
                acceptor.start(self._backlog)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Accept no more connections, and cancel the TLS handshakes in progress."""
        for bound in self._bound:
            bound.close()
        for acceptor in self._acceptors:
            acceptor.stop()

    async def closed(self) -> None:
        """Wait until no handshake is in progress."""
        await asyncio.gather(*[acceptor.stopped() for acceptor in self._acceptors])

    async def _bind(self, listener: Listener) -> None:
        bound = await self._bound_to(listener)
        sockets = cast(Any, bound).sockets  # a tuple in asyncio, a list in uvloop
        port = int(sockets[0].getsockname()[1])
        if listener.port == 0 and len(sockets) > 1:  # the name has several addresses: use one port for all
            bound.close()
            bound = await self._bound_to(replace(listener, port=port))
        self._bound.append(bound)
        self.listeners[listener.name] = replace(listener, port=port)
        if listener.tls is not None:
            factory = partial(self._new, listener.name)
            acceptor = TlsAcceptor(
                listener.name, cast(Any, bound).sockets, listener.tls, factory, self._entrance, self._lines
            )
            self._acceptors.append(acceptor)

    async def _bound_to(self, listener: Listener) -> asyncio.Server:
        options: dict[str, Any] = {"backlog": self._backlog, "start_serving": False}
        if listener.host == WILDCARD:
            options["sock"] = wildcard_socket(listener.port)
        else:
            options |= {"host": listener.host or "0.0.0.0", "port": listener.port}
        return await asyncio.get_running_loop().create_server(partial(self._new, listener.name), **options)

    def _new(self, name: str, arrival: Arrival | None = None) -> asyncio.BaseProtocol:
        return self._protocol(self.listeners[name], arrival)
