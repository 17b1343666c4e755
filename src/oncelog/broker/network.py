"""The connections of a broker: those from clients and other brokers, and those to other brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from oncelog.broker.config.certificate_names import distinguished_name
from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listener_security import ListenerSecurity
from oncelog.broker.config.listeners import ListenerConfig
from oncelog.broker.config.security_sources import load_tls
from oncelog.broker.logins import CheckToken, FindScram, Logins
from oncelog.broker.peers import Peers
from oncelog.broker.workers import Runtime
from oncelog.cluster.brokers import Endpoint
from oncelog.cluster.image import MetadataDelta
from oncelog.net.server import Listener, Server


class Network:
    """Bind the listeners of one broker, serve them, and close all connections."""

    def __init__(
        self,
        server: Server,
        peers: Peers,
        config: DynamicConfig,
        find_scram: FindScram,
        runtime: Runtime,
        most_clients: int,
    ) -> None:
        """`most_clients` bounds `max.connections`."""
        self._runtime = runtime
        self._find_scram = find_scram
        self._logger = runtime.logger
        self._server = server
        self._peers = peers
        self._config = config
        self._most_clients = most_clients

    async def bind(self) -> Mapping[str, Endpoint]:
        """Bind all listeners. Return the address of each for its clients, by the name of the listener."""
        self._limit_connections()
        config = self._config.static
        checks = {each.name: await self._token_check(each.name) for each in config.client_listeners}
        await self._server.bind([self._listener(each, checks[each.name]) for each in config.client_listeners])
        return {each.name: self.endpoint(each.name) for each in config.client_listeners}

    async def _token_check(self, listener: str) -> CheckToken | None:
        """Return the check of a listener's tokens, or None if it has none. Raises ConfigError."""
        security = self._config.static.security.get(listener)
        if security is None or security.tokens is None:
            return None
        try:
            from oncelog.broker.oauth.token_check import token_check
        except ModuleNotFoundError:
            raise ConfigError("OAUTHBEARER needs the package joserfc: pip install 'oncelog[oauth]'") from None
        return await token_check(f"listener {listener}", security.tokens, self._server.loop.time, self._runtime)

    def _listener(self, config: ListenerConfig, check_token: CheckToken | None) -> Listener:
        """Return a listener with its certificates. Raises ConfigError if they cannot be loaded."""
        static = self._config.static
        security = static.security.get(config.name, ListenerSecurity())
        tls = None if security.tls is None else load_tls(security.tls, f"listener {config.name}", self._logger)
        login = bool(security.mechanisms)
        logins = Logins(security, self._find_scram, self._server.loop.time, self._runtime.now_ms, check_token)
        return Listener(
            config.host,
            config.port,
            config.name,
            config.protocol,
            protected=config.name == static.broker_listener and len(static.client_listeners) > 1,
            tls=tls,
            principal_of=None if tls is None or login else partial(principal, security),
            begin_login=logins.begin if login else None,
        )

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


def principal(security: ListenerSecurity, certificate: bytes) -> str:
    """Return the principal of a client with this certificate (DER). Raises ValueError if no rule matches its name."""
    return f"User:{security.principal_of(distinguished_name(certificate))}"
