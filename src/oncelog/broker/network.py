"""The connections of a broker: those from clients and other brokers, and those to other brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.peers import Peers
from oncelog.cluster.brokers import Endpoint
from oncelog.cluster.image import MetadataDelta
from oncelog.net.server import Listener, Server


class Network:
    """Bind the listeners of one broker, serve them, and close all connections."""

    def __init__(self, server: Server, peers: Peers, config: DynamicConfig, most_clients: int) -> None:
        """`most_clients` bounds `max.connections`."""
        self._server = server
        self._peers = peers
        self._config = config
        self._most_clients = most_clients

    async def bind(self) -> Mapping[str, Endpoint]:
        """Bind all listeners. Return the address of each for its clients, by the name of the listener."""
        self._limit_connections()
        config = self._config.static
        protected = config.inter_broker_listener_name
        await self._server.bind(
            [
                Listener(each.host, each.port, each.name, each.protocol, protected=each.name == protected)
                for each in config.client_listeners
            ]
        )
        return {each.name: self.endpoint(each.name) for each in config.client_listeners}

    @property
    def is_bound(self) -> bool:
        """Whether the ports are bound."""
        return bool(self._server.listeners)

    def endpoint(self, listener: str) -> Endpoint:
        """Return the address that the clients of a bound listener must use."""
        bound = self._server.listeners[listener]
        named = next(each for each in self._config.static.client_listeners if each.name == listener)
        return Endpoint(named.advertised_host or bound.host, named.advertised_port or bound.port, bound.protocol)

    async def serve(self) -> None:
        """Accept connections."""
        await self._server.serve()

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Apply another `max.connections`."""
        if delta.broker_configs_changed(self._config.static.node_id):
            self._limit_connections()

    def _limit_connections(self) -> None:
        most = min(self._config.current.max_connections, self._most_clients)
        self._server.limits = replace(self._server.limits, max_connections=most)

    async def close(self) -> None:
        """Answer the requests in progress, and close all connections. Later requests to other brokers fail."""
        await self._server.close()
        self._peers.close()
