"""Derive how a broker logs in to other brokers: with the login of the listener that brokers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.security_sources import jaas_options
from oncelog.net.credentials import Secret

if TYPE_CHECKING:
    from oncelog.net.security import Login


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
