"""Derive from the settings how tokens of an identity provider are checked (OAUTHBEARER).

Sources: KIP-255, KIP-768, KIP-1139; Kafka's `OAuthBearerValidatorCallbackHandler` and `DefaultJwtValidator`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oncelog.broker.config.errors import ConfigError

if TYPE_CHECKING:
    from oncelog.net.tls_files import Store

PACKAGE = "org.apache.kafka.common.security.oauthbearer."
_HANDLERS = frozenset(
    {f"{PACKAGE}OAuthBearerValidatorCallbackHandler", f"{PACKAGE}secured.OAuthBearerValidatorCallbackHandler"}
)
"""Kafka's name, and its name before version 4.0."""
_VALIDATORS = frozenset({f"{PACKAGE}DefaultJwtValidator", f"{PACKAGE}BrokerJwtValidator"})
_UNSECURED = "OAuthBearerUnsecuredValidatorCallbackHandler"
_URL = "sasl.oauthbearer.jwks.endpoint.url"
_TRUST = "ssl.truststore."


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token must claim. An empty `issuer` allows every issuer. `user_claim` is the claim with the user's name.

    If `audiences` is empty, tokens must have no audience.
    """

    issuer: str = ""
    audiences: frozenset[str] = frozenset()
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    user_claim: str = "sub"


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Where a listener gets the keys for signatures, how often, and what tokens must claim.

    `trust` has the authorities for the certificate of `keys_url`. If it is None, those of the system are used.
    """

    keys_url: str
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    rules: TokenRules
    trust: Store | None = None

    def warnings(self) -> list[str]:
        """Return sentences about settings that are allowed, but not safe."""
        found = []
        host = urlsplit(self.keys_url).hostname
        if self.keys_url.lower().startswith("http:") and host not in ("localhost", "127.0.0.1", "::1"):
            found.append(f"{_URL} has no TLS, so that others on the network can replace the keys; use https")
        if not self.rules.issuer:
            found.append("sasl.oauthbearer.expected.issuer is not set, so that tokens of every issuer are accepted")
        if not self.rules.audiences:
            found.append(
                "sasl.oauthbearer.expected.audience is not set, so that tokens without an audience (aud) are accepted, "
                "and no others"
            )
        return found


def token_settings(where: str, values: Mapping[str, Any], jaas: Mapping[str, str]) -> TokenSettings:
    """Return how a listener checks tokens. `jaas` has the options of its login module. Raises ConfigError."""
    url: str = values["sasl_oauthbearer_jwks_endpoint_url"]
    if not url:
        raise ConfigError(
            f"{where}: OAUTHBEARER needs {_URL}, the address or file: URL of the identity provider's keys. Without it, "
            "Kafka accepts tokens without a signature, which anyone can make; oncelog does not"
        )
    _check_classes(where, values)
    check_url(_URL, url)
    audiences = (each.strip() for each in values["sasl_oauthbearer_expected_audience"].split(","))
    rules = TokenRules(
        issuer=values["sasl_oauthbearer_expected_issuer"],
        audiences=frozenset(filter(None, audiences)),
        clock_skew_s=values["sasl_oauthbearer_clock_skew_seconds"],
        scope_claim=values["sasl_oauthbearer_scope_claim_name"].strip(),
        user_claim=values["sasl_oauthbearer_sub_claim_name"].strip(),
    )
    for name, claim in (("scope", rules.scope_claim), ("sub", rules.user_claim)):
        if not claim:
            raise ConfigError(f"{where}: sasl.oauthbearer.{name}.claim.name must not be empty")
    return TokenSettings(
        keys_url=url,
        refresh_ms=values["sasl_oauthbearer_jwks_endpoint_refresh_ms"],
        backoff_ms=values["sasl_oauthbearer_jwks_endpoint_retry_backoff_ms"],
        backoff_max_ms=values["sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms"],
        rules=rules,
        trust=trust_of(where, jaas),
    )


def check_callback_handler(where: str, mechanism: str, class_name: str) -> None:
    """Raise ConfigError for a class that would check a mechanism's logins, because the broker cannot load it."""
    key = "sasl.server.callback.handler.class"
    if mechanism == "OAUTHBEARER" and class_name.endswith(_UNSECURED):
        raise ConfigError(
            f"{where}: {key} = {class_name} accepts tokens without a signature, which anyone can make; set it to "
            f"{min(_HANDLERS)}, and set {_URL}"
        )
    if class_name and not (mechanism == "OAUTHBEARER" and class_name in _HANDLERS):
        known = f"the only one for OAUTHBEARER is {min(_HANDLERS)}" if mechanism == "OAUTHBEARER" else "omit it"
        raise ConfigError(f"{where}: {key} = {class_name} is a Java class, which oncelog cannot load; {known}")


def _check_classes(where: str, values: Mapping[str, Any]) -> None:
    check_callback_handler(where, "OAUTHBEARER", values["sasl_server_callback_handler_class"])
    validator = values["sasl_oauthbearer_jwt_validator_class"]
    if validator not in _VALIDATORS:
        raise ConfigError(
            f"{where}: sasl.oauthbearer.jwt.validator.class = {validator} is a Java class, which oncelog cannot load; "
            f"supported are {' and '.join(sorted(_VALIDATORS))}"
        )


def check_url(key: str, url: str) -> None:
    """Raise ConfigError if a setting is no address or file. The error does not show the URL, which may have secrets."""
    try:
        parts = urlsplit(url)
        usable = bool(parts.path if parts.scheme == "file" else parts.hostname) and (parts.port or True)
    except ValueError:
        usable = False
    if not usable or parts.scheme not in ("http", "https", "file"):
        raise ConfigError(f"{key} must be an https, http or file URL")
    if "@" in parts.netloc:
        raise ConfigError(f"{key} must have no user name and password")


def trust_of(where: str, jaas: Mapping[str, str]) -> Store | None:
    """Return the authorities in the options of a login module, as in Kafka. Raises ConfigError for a client's key."""
    from oncelog.net.credentials import Secret
    from oncelog.net.tls_files import Store

    for name in jaas:
        if name.startswith("ssl.") and not name.startswith(_TRUST):
            raise ConfigError(f"{where}: oauthbearer.sasl.jaas.config has the option {name}, which is not supported")
    path, pem = jaas.get(f"{_TRUST}location"), jaas.get(f"{_TRUST}certificates")
    if path:
        password = jaas.get(f"{_TRUST}password")
        return Store("ssl.truststore.location", path=path, password=Secret(password) if password else None)
    return Store("ssl.truststore.certificates", pem=Secret(pem)) if pem else None
