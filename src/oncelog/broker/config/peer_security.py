"""Derive how a broker connects to other brokers: with the TLS and login of the listener that brokers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.security_sources import jaas_options, load_tls
from oncelog.net.credentials import Secret

if TYPE_CHECKING:
    import logging

    from oncelog.net.security import Login, Security
    from oncelog.net.tls_files import ServerTlsFiles


def peer_login(
    listener: str,
    values: Mapping[str, Any],
    of_mechanisms: Mapping[str, Mapping[str, Any]],
    jaas: Mapping[str, Secret],
    offered: tuple[str, ...],
) -> Login:
    """Return how this broker logs in to other brokers. Raises ConfigError.

    User and password are in the `jaas` line of the mechanism in `sasl.mechanism.inter.broker.protocol`. `offered` has
    the mechanisms of the listener, and `of_mechanisms` their settings if they have some of their own.
    """
    mechanism = values["sasl_mechanism_inter_broker_protocol"].upper()
    if mechanism not in offered:
        raise ConfigError(
            f"sasl.mechanism.inter.broker.protocol must be one of sasl.enabled.mechanisms ({', '.join(offered)}), not "
            f"{mechanism}"
        )
    if mechanism == "OAUTHBEARER":
        from oncelog.broker.config.peer_tokens import peer_token_login

        options = jaas_options(listener, mechanism, jaas, "")[1] if "oauthbearer" in jaas else {}
        return peer_token_login(f"listener {listener}", of_mechanisms.get("oauthbearer", values), options)
    missing = f"brokers log in with {mechanism}, so {{key}} must have their username and password"
    key, options = jaas_options(listener, mechanism, jaas, missing)
    if not options.get("username") or not options.get("password"):
        raise ConfigError(f"{key} needs username and password, with which this broker logs in at others")
    from oncelog.net.security import PasswordLogin

    return PasswordLogin(mechanism, options["username"], Secret(options["password"]))


def peer_security(
    protocol: str, own: ServerTlsFiles | None, login: Login | None, logger: logging.Logger, *, check_host: bool
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
        from oncelog.net.tls_files import TlsFiles

        files = TlsFiles(own.trust, own.chain, own.key, check_host, own.versions)
        tls = load_tls(files, "connections to other brokers", logger)
    return Security(protocol, tls, login)
