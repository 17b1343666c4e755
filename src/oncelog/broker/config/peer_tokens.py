"""Derive from the settings where a broker gets the tokens with which it logs in to other brokers (OAUTHBEARER).

Sources: KIP-768, KIP-1139; Kafka's `OAuthBearerLoginCallbackHandler`, `DefaultJwtRetriever` and `ConfigOrJaas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.token_settings import PACKAGE, check_url, trust_of
from oncelog.net.credentials import Secret

if TYPE_CHECKING:
    from oncelog.net.security import Login

_URL = "sasl.oauthbearer.token.endpoint.url"
_CLASSES = {
    "sasl_login_callback_handler_class": frozenset(
        {"", f"{PACKAGE}OAuthBearerLoginCallbackHandler", f"{PACKAGE}secured.OAuthBearerLoginCallbackHandler"}
    ),
    "sasl_oauthbearer_jwt_retriever_class": frozenset(
        f"{PACKAGE}{name}" for name in ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
    ),
}
"""The classes of Kafka that do what this broker does."""
_EXTENSION = "extension_"


def peer_token_login(where: str, values: Mapping[str, Any], jaas: Mapping[str, str]) -> Login:
    """Return how this broker gets its tokens. `jaas` has the options of the login module. Raises ConfigError."""
    from oncelog.net.tls_files import TlsFileError, check_authorities
    from oncelog.net.tokens import TokenEndpoint, TokenLogin

    for attribute, known in _CLASSES.items():
        if values[attribute] not in known:
            names = " and ".join(sorted(filter(None, known)))
            raise ConfigError(
                f"{where}: {attribute.replace('_', '.')} = {values[attribute]} is a Java class, which oncelog cannot "
                f"load; supported are {names}"
            )
    url = values["sasl_oauthbearer_token_endpoint_url"]
    if not url:
        raise ConfigError(
            f"{where}: brokers log in with OAUTHBEARER, so {_URL} must be the address of the identity provider, or a "
            "file: URL of a token"
        )
    check_url(_URL, url)
    client_id = _given(values, "sasl_oauthbearer_client_credentials_client_id", jaas, "clientId")
    secret = _given(values, "sasl_oauthbearer_client_credentials_client_secret", jaas, "clientSecret")
    if not url.startswith("file:") and not (client_id and secret):
        raise ConfigError(
            f"{where}: {_URL} needs sasl.oauthbearer.client.credentials.client.id and "
            "sasl.oauthbearer.client.credentials.client.secret, with which this broker gets its tokens"
        )
    trust = trust_of(where, jaas)
    if trust is not None and trust.path is None:
        raise ConfigError(f"{where}: between brokers, ssl.truststore.location must be a file with PEM certificates")
    if trust is not None and trust.path is not None:
        try:
            check_authorities(trust.option, trust.path)
        except TlsFileError as error:
            raise ConfigError(f"{where}: {error}") from None
    endpoint = TokenEndpoint(
        url,
        client_id,
        Secret(secret),
        _given(values, "sasl_oauthbearer_scope", jaas, "scope") or None,
        values["sasl_oauthbearer_header_urlencode"],
        None if trust is None else trust.path,
    )
    extensions = {name.removeprefix(_EXTENSION): text for name, text in jaas.items() if name.startswith(_EXTENSION)}
    return TokenLogin(endpoint, extensions)


def _given(values: Mapping[str, Any], attribute: str, jaas: Mapping[str, str], option: str) -> str:
    """Return a setting, or the older option in the line of the login module. As in Kafka, the setting wins."""
    value = values[attribute]
    text: str = value.value if isinstance(value, Secret) else value
    return text or jaas.get(option, "")
