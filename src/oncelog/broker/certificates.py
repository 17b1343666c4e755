"""The TLS files that a broker uses: those of its listeners, and those with which it connects to other brokers.

AlterConfigs replaces them while the broker runs. Source: Kafka's `SslFactory.reconfigure`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listener_security import ListenerSecurity
from oncelog.broker.config.listeners import ListenerConfig
from oncelog.broker.config.security_sources import load_tls
from oncelog.broker.config.settings import BrokerConfig
from oncelog.net.security import PLAINTEXT, Security
from oncelog.net.threads import in_thread
from oncelog.protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from oncelog.net.tls_files import ReloadedTls, TlsFiles


class Certificates:
    """Load the TLS files of one broker, check other ones, and replace them."""

    def __init__(self, config: DynamicConfig, logger: logging.Logger) -> None:
        """Raises ConfigError if the files for connections to other brokers cannot be loaded."""
        self._config = config
        self._logger = logger
        self._listeners: dict[str, tuple[ReloadedTls, ListenerSecurity]] = {}
        """The files of each listener with TLS, and the settings from which they were loaded, by the listener's name."""
        static = config.static
        named = static.broker_listener
        self.of_brokers: ListenerConfig = next(
            (each for each in static.client_listeners if each.name == named), ListenerConfig(name=named)
        )
        """The listener through which brokers connect to each other."""
        required = static.security.get(self.of_brokers.name, ListenerSecurity())
        self.peers: Security = peer_security(self.of_brokers.protocol, required, logger)
        """How this broker connects to others."""

    def load(self, listener: str) -> ReloadedTls | None:
        """Load the files of a listener; None if it has no TLS. Raises ConfigError.

        If its dynamic settings cannot be used, log that, and load the files that the broker was started with. The
        dynamic ones are used as soon as their files are usable.
        """
        security = self._config.current.security.get(listener, ListenerSecurity())
        static = self._config.static.security.get(listener, ListenerSecurity())
        if security.tls is None or static.tls is None:
            return None
        where = f"listener {listener}"
        try:
            loaded = load_tls(security.tls, where, self._logger)
        except ConfigError as error:
            if security is static:
                raise
            self._logger.error("ignoring the dynamic TLS settings, and using those of the start: %s", error)
            loaded = load_tls(static.tls, where, self._logger)
            loaded.replace(security.tls)
        self._listeners[listener] = loaded, security
        if security is not static and listener == self.of_brokers.name:
            self._replace_peers(security)
        return loaded

    async def check(self, wanted: BrokerConfig, listeners: Sequence[str]) -> None:
        """Raise INVALID_REQUEST if a listener, or a connection between brokers, would not work with these settings."""
        from oncelog.net.tls_files import TlsFileError

        for listener in listeners:
            security = wanted.security.get(listener)
            if security is None or listener not in self._listeners:
                continue
            try:
                await in_thread(partial(self._check, listener, security))
            except TlsFileError as error:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, f"listener {listener}: {error}") from error

    def _check(self, listener: str, security: ListenerSecurity) -> None:
        from oncelog.net import tls_checks

        files = security.tls
        assert files is not None
        tls_checks.check_paths(files)
        server = files.load()
        loaded, _ = self._listeners[listener]
        former = tls_checks.names_of(loaded.in_use)
        if former is not None:
            tls_checks.check_names(
                former,
                tls_checks.certificate_of(files),
                dn_changes=security.allow_dn_changes,
                san_changes=security.allow_san_changes,
            )
        if listener == self.of_brokers.name:
            host = self.of_brokers.advertised_host or self.of_brokers.host
            client = peer_files(security).load()
            tls_checks.check_between(server, self._peer_tls().in_use, host, "the new certificate with the former ones")
            tls_checks.check_between(loaded.in_use, client, host, "the former certificate with the new ones")
            tls_checks.check_between(server, client, host, "the new certificate with the new ones")

    def apply(self) -> None:
        """Use the newest settings for the next connections."""
        for listener, (loaded, before) in self._listeners.items():
            security = self._config.current.security[listener]
            if security is before or security.tls is None:
                continue
            loaded.replace(security.tls)
            self._listeners[listener] = loaded, security
            if listener == self.of_brokers.name:
                self._replace_peers(security)

    def _replace_peers(self, security: ListenerSecurity) -> None:
        self._peer_tls().replace(peer_files(security))

    def _peer_tls(self) -> ReloadedTls:
        from oncelog.net.tls_files import ReloadedTls

        assert isinstance(self.peers.tls, ReloadedTls)
        return self.peers.tls


def peer_files(own: ListenerSecurity) -> TlsFiles:
    """Return the files for connections to other brokers. `own` is the security of the listener that brokers use."""
    from oncelog.net.tls_files import TlsFiles

    assert own.tls is not None
    return TlsFiles(own.tls.trust, own.tls.chain, own.tls.key, own.check_host, own.tls.versions)


def peer_security(protocol: str, own: ListenerSecurity, logger: logging.Logger) -> Security:
    """Load the files, and return how to connect to other brokers. Raises ConfigError.

    `own` is the security of the listener that brokers use.
    """
    if protocol == PLAINTEXT.protocol:
        return PLAINTEXT
    tls = None if own.tls is None else load_tls(peer_files(own), "connections to other brokers", logger)
    return Security(protocol, tls, own.peer_login)
