"""The connections of a broker: those from clients and other brokers, and those to other brokers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from oncelog.broker.certificates import Certificates
from oncelog.broker.config.certificate_names import distinguished_name
from oncelog.broker.config.connection_limits import as_address, listener_quotas, overrides
from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listener_security import ListenerSecurity
from oncelog.broker.config.listeners import ListenerConfig
from oncelog.broker.logins import CheckToken, FindScram, FindToken, Logins
from oncelog.broker.membership import Membership
from oncelog.broker.peers import Peers
from oncelog.broker.workers import Runtime
from oncelog.cluster.brokers import Endpoint
from oncelog.cluster.image import MetadataDelta
from oncelog.cluster.quotas import DEFAULT as ALL_OTHERS
from oncelog.net.admission import UNLIMITED, ConnectionQuotas
from oncelog.net.server import Listener, Server


class Network:
    """Bind the listeners of one broker, serve them, and close all connections."""

    def __init__(
        self,
        server: Server,
        peers: Peers,
        certificates: Certificates,
        config: DynamicConfig,
        membership: Membership,
        find_scram: FindScram,
        find_token: FindToken,
        runtime: Runtime,
        most_clients: int,
    ) -> None:
        """`most_clients` bounds `max.connections`."""
        self._runtime = runtime
        self._find_scram = find_scram
        self._logger = runtime.logger
        self._certificates = certificates
        self._find_token = find_token
        self._server = server
        self._peers = peers
        self._config = config
        self._membership = membership
        self._most_clients = most_clients
        self._addresses: dict[str, list[str]] = {}
        """The addresses of the named hosts in `max.connections.per.ip.overrides`."""
        self._rates: Mapping[str, float] = {}
        """The quotas of addresses (KIP-612)."""

    async def bind(self) -> Mapping[str, Endpoint]:
        """Bind all listeners. Return the address of each for its clients, by the name of the listener.

        Raises ConfigError if a host in `max.connections.per.ip.overrides` has no address.
        """
        await self._resolve()
        if unknown := sorted(set(self._named_hosts()) - set(self._addresses)):
            raise ConfigError(f"max.connections.per.ip.overrides: no address of {', '.join(unknown)} is known")
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
        tls = self._certificates.load(config.name)
        login = bool(security.mechanisms)
        logins = Logins(
            security,
            self._membership.login_secret,
            self._find_scram,
            self._server.loop.time,
            self._runtime.now_ms,
            self._find_token,
            check_token,
        )
        return Listener(
            config.host,
            config.port,
            config.name,
            config.protocol,
            protected=config.name == static.broker_listener,
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
        """Apply other certificates, and limits of connections. Those of named hosts follow when these are resolved."""
        changed = delta.broker_configs_changed(self._config.static.node_id)
        rates, self._rates = self._rates, delta.after.quotas.connection_rates
        if changed or rates != self._rates:
            self._limit_connections()
        if changed:
            self._certificates.apply()
            if not set(self._addresses).issuperset(self._named_hosts()):
                self._server.run(self._limit_named_hosts())

    def _limit_connections(self) -> None:
        current, addresses = self._config.current, self._addresses
        of_addresses: dict[str, int] = {}
        for host, most in overrides(current.max_connections_per_ip_overrides).items():
            address = as_address(host)
            of_addresses |= dict.fromkeys(addresses.get(host, ()) if address is None else [address], most)
        of_listeners = listener_quotas(self._config.of_listeners())
        names = [each.name for each in self._config.static.client_listeners]
        quotas = ConnectionQuotas(
            max_connections=current.max_connections,
            creation_rate=current.max_connection_creation_rate,
            of_listeners={name: of_listeners[name.lower()] for name in names if name.lower() in of_listeners},
            per_address=current.max_connections_per_ip,
            of_addresses=of_addresses,
            address_rate=int(self._rates.get(ALL_OTHERS, UNLIMITED)),
            address_rates={address: int(rate) for address, rate in self._rates.items() if address != ALL_OTHERS},
            descriptors=self._most_clients,
        )
        self._server.entrance.limit(quotas)

    def _named_hosts(self) -> list[str]:
        """Return the hosts in `max.connections.per.ip.overrides` that are given by name."""
        hosts = overrides(self._config.current.max_connections_per_ip_overrides)
        return [host for host in hosts if as_address(host) is None]

    async def _resolve(self) -> None:
        """Find the addresses of the named hosts. Log those that have none."""
        for host in self._named_hosts():
            try:
                found = await self._server.loop.getaddrinfo(host, None)
            except (OSError, UnicodeError) as error:
                self._logger.error("max.connections.per.ip.overrides: cannot resolve %s: %s", host, error)
            else:
                self._addresses[host] = [str(each[4][0]) for each in found]

    async def _limit_named_hosts(self) -> None:
        await self._resolve()
        self._limit_connections()

    async def close(self) -> None:
        """Answer the requests in progress, and close all connections. Later requests to other brokers fail."""
        await self._server.close()
        self._peers.close()


def principal(security: ListenerSecurity, certificate: bytes) -> str:
    """Return the principal of a client with this certificate (DER). Raises ValueError if no rule matches its name."""
    return f"User:{security.principal_of(distinguished_name(certificate))}"
