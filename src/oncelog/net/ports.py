"""Bind the ports of a server's listeners, accept connections on them, and close them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from oncelog.net.handshakes import TlsAcceptor
from oncelog.net.server_options import WILDCARD, Listener, wildcard_socket


class Ports:
    """The bound ports of a server. `protocol` returns the asyncio protocol of a new connection to a listener."""

    def __init__(self, protocol: Callable[[Listener], asyncio.BaseProtocol], backlog: int) -> None:
        self._protocol = protocol
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
            factory = self._factory(listener.name)
            self._acceptors.append(TlsAcceptor(cast(Any, bound).sockets, listener.tls, factory))

    async def _bound_to(self, listener: Listener) -> asyncio.Server:
        options: dict[str, Any] = {"backlog": self._backlog, "start_serving": False}
        if listener.host == WILDCARD:
            options["sock"] = wildcard_socket(listener.port)
        else:
            options |= {"host": listener.host or "0.0.0.0", "port": listener.port}
        return await asyncio.get_running_loop().create_server(self._factory(listener.name), **options)

    def _factory(self, name: str) -> Callable[[], asyncio.BaseProtocol]:
        return lambda: self._protocol(self.listeners[name])
