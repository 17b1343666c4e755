"""Derive how a broker connects to other brokers: with the TLS and login of the listener that brokers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelog.broker.config.errors import ConfigError
from oncelog.net.credentials import Secret, parse_jaas

if TYPE_CHECKING:
    import logging

    from oncelog.net.security import PasswordLogin, Security
    from oncelog.net.tls_files import ServerTlsFiles

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The SASL mechanisms that a broker supports."""


def peer_login(
    listener: str, values: Mapping[str, Any], jaas: Mapping[str, Secret], offered: tuple[str, ...]
) -> PasswordLogin:
    """Return how this broker logs in to other brokers. Raises ConfigError.

    User and password are in the `jaas` line of the mechanism in `sasl.mechanism.inter.broker.protocol`. `offered` has
    the mechanisms of the listener.
    """
    mechanism = values["sasl_mechanism_inter_broker_protocol"].upper()
    key = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    if mechanism not in offered:
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol must be one of sasl.enabled.mechanisms ({', '.join(offered)}), not "
            f"{mechanism}"
        )
    line = jaas.get(mechanism.lower())
    if line is None:
        raise ConfigError(f"brokers log in with {mechanism}, so {key} must have their username and password")
    try:
        options = parse_jaas(line.value, mechanism)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None
    if not options.get("username") or not options.get("password"):
        raise ConfigError(f"{key} needs username and password, with which this broker logs in at others")
    from oncelog.net.security import PasswordLogin

    return PasswordLogin(mechanism, options["username"], Secret(options["password"]))


def peer_security(
    protocol: str, own: ServerTlsFiles | None, login: PasswordLogin | None, logger: logging.Logger, *, check_host: bool
) -> Security:
    """Load the files, and return how to connect to other brokers. Raises ConfigError.

    `own` has the TLS files of the listener that brokers use. `check_host` says whether the brokers' certificates must
    contain their host names.
    """
    from oncelog.net.security import PLAINTEXT, Security

    if protocol == "PLAINTEXT":
        return PLAINTEXT
    tls = None
    if own is not None:
        from oncelog.net.tls_files import ReloadedTls, TlsFileError, TlsFiles

        files = TlsFiles(own.trust, own.chain, own.key, check_host, own.versions)
        try:
            tls = ReloadedTls(files, logger)
        except TlsFileError as error:
            raise ConfigError(f"connections to other brokers: {error}") from None
    return Security(protocol, tls, login)
