"""Derive what a listener requires of its clients (TLS, certificates, logins) from the settings.

Source: Kafka's `SslConfigs`, `BrokerSecurityConfigs`, `JaasContext`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from oncelog.broker.config.certificate_names import principal_mapper
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.peer_security import peer_login
from oncelog.broker.config.security_sources import MECHANISMS, jaas_options
from oncelog.broker.config.token_settings import TokenSettings, check_callback_handler, token_settings
from oncelog.net.credentials import Secret

if TYPE_CHECKING:
    from oncelog.net.security import Login
    from oncelog.net.tls_files import ServerTlsFiles, Store

_USER = "user_"


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The security of one listener. `users` has the passwords of PLAIN by user name."""

    tls: ServerTlsFiles | None = None
    tls_values: Mapping[str, Any] = field(default_factory=dict)
    """The settings from which `tls` was made, by the names of `SecuritySettings`."""
    allow_dn_changes: bool = False
    """Whether AlterConfigs may replace the certificate by one with another name."""
    allow_san_changes: bool = False
    """Whether AlterConfigs may replace the certificate by one that lacks some of its host names."""
    principal_of: Callable[[str], str] = str
    """Return the user of a client from the distinguished name in its certificate."""
    mechanisms: tuple[str, ...] = ()
    """The mechanisms with which clients can log in. If it is empty, clients do not log in."""
    users: Mapping[str, Secret] | None = None
    tokens: TokenSettings | None = None
    """How tokens are checked, if clients can log in with OAUTHBEARER."""
    peer_login: Login | None = None
    """How this broker logs in to other brokers, if brokers use this listener."""
    check_host: bool = True
    """Whether the certificates of other brokers must contain their host names."""
    identifies: bool = False
    """Whether each client must log in or have a certificate."""
    max_reauth_ms: int = 0
    max_reauth_of: Mapping[str, int] = field(default_factory=dict)
    """`max_reauth_ms` of the mechanisms with a value of their own."""
    max_receive_size: int = 524_288
    failure_delay_ms: int = 100

    def session_ms(self, mechanism: str) -> int:
        """Return how long a session lasts after a login with this mechanism; 0 if it does not expire."""
        return self.max_reauth_of.get(mechanism, self.max_reauth_ms)


def listener_security(
    name: str,
    protocol: str,
    values: Mapping[str, Any],
    jaas: Mapping[str, Secret],
    of_mechanisms: Mapping[str, Mapping[str, Any]],
    *,
    of_brokers: bool,
) -> ListenerSecurity:
    """Return the security of a listener. Raises ConfigError.

    `values` are the settings of `SecuritySettings` that apply to the listener. `of_mechanisms` has the same for
    mechanisms with settings of their own, and `jaas` the lines of login modules, both by the mechanism in lower case.
    `of_brokers` says whether brokers use the listener.
    """
    where = f"listener {name}"
    login = protocol.startswith("SASL_")
    mechanisms = _mechanisms(values["sasl_enabled_mechanisms"], where) if login else ()
    users = None
    if "PLAIN" in mechanisms:
        users = _plain_users(name, jaas)
    for mechanism in set(mechanisms) - {"OAUTHBEARER"}:
        own = of_mechanisms.get(mechanism.lower(), {})
        check_callback_handler(where, mechanism, own.get("sasl_server_callback_handler_class", ""))
    return ListenerSecurity(
        tls=_tls(values, where) if protocol.endswith("SSL") else None,
        tls_values={name: value for name, value in values.items() if name.startswith("ssl_")},
        allow_dn_changes=values["ssl_allow_dn_changes"],
        allow_san_changes=values["ssl_allow_san_changes"],
        principal_of=principal_mapper(values["ssl_principal_mapping_rules"]),
        mechanisms=mechanisms,
        identifies=login or (protocol == "SSL" and values["ssl_client_auth"] == "required"),
        users=users,
        tokens=_tokens(name, of_mechanisms.get("oauthbearer", values), jaas) if "OAUTHBEARER" in mechanisms else None,
        peer_login=peer_login(name, values, of_mechanisms, jaas, mechanisms) if login and of_brokers else None,
        check_host=bool(values["ssl_endpoint_identification_algorithm"]),
        max_reauth_ms=values["connections_max_reauth_ms"],
        max_reauth_of={name.upper(): own["connections_max_reauth_ms"] for name, own in of_mechanisms.items()},
        max_receive_size=values["sasl_server_max_receive_size"],
        failure_delay_ms=values["connection_failed_authentication_delay_ms"],
    )


# -- logins ---------------------------------------------------------------------------------------------------------


def _mechanisms(text: str, where: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip().upper() for part in text.split(",") if part.strip()))
    offered = ", ".join(MECHANISMS)
    if not names:
        raise ConfigError(f"{where} needs sasl.enabled.mechanisms: some of {offered}")
    for name in names:
        if name == "GSSAPI":
            raise ConfigError(
                f"{where}: sasl.enabled.mechanisms has GSSAPI, which is Kafka's default, but Kerberos is not "
                f"supported; set it to some of {offered}"
            )
        if name not in MECHANISMS:
            raise ConfigError(f"{where}: sasl.enabled.mechanisms has {name}; supported are {offered}")
    return names


def _plain_users(listener: str, jaas: Mapping[str, Secret]) -> dict[str, Secret]:
    missing = 'PLAIN needs {key}, with user_NAME="PASSWORD" for each user'
    _, options = jaas_options(listener, "PLAIN", jaas, missing)
    return {name.removeprefix(_USER): Secret(text) for name, text in options.items() if name.startswith(_USER)}


def _tokens(listener: str, values: Mapping[str, Any], jaas: Mapping[str, Secret]) -> TokenSettings:
    options: Mapping[str, str] = {}
    if "oauthbearer" in jaas:  # Kafka requires the line, which needs no options
        _, options = jaas_options(listener, "OAUTHBEARER", jaas, "")
    return token_settings(f"listener {listener}", values, options)


def with_tls_values(name: str, security: ListenerSecurity, values: Mapping[str, Any]) -> ListenerSecurity:
    """Return the security of a listener with other settings of its certificates. Raises ConfigError."""
    merged = {**security.tls_values, **values}
    return replace(security, tls=_tls(merged, f"listener {name}"), tls_values=merged)


# -- certificates ---------------------------------------------------------------------------------------------------


def _tls(values: Mapping[str, Any], where: str) -> ServerTlsFiles:
    import ssl

    from oncelog.net.tls_files import ServerTlsFiles

    key, chain = _key(values, where)
    clients = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    numbers = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
    versions = [part.strip() for part in values["ssl_enabled_protocols"].split(",") if part.strip()]
    if not versions or not set(versions) <= set(numbers):
        raise ConfigError(f"{where}: ssl.enabled.protocols must be TLSv1.2, TLSv1.3 or both")
    return ServerTlsFiles(
        key=key,
        chain=chain,
        trust=_store(values, "ssl_truststore_location", "ssl_truststore_certificates", "ssl_truststore_password"),
        clients=clients[values["ssl_client_auth"]],
        versions=frozenset(numbers[each] for each in versions),
        ciphers=":".join(map(openssl_name, filter(None, map(str.strip, values["ssl_cipher_suites"].split(","))))),
    )


def _key(values: Mapping[str, Any], where: str) -> tuple[Store, Store | None]:
    from oncelog.net.tls_files import Store

    key = _store(values, "ssl_keystore_location", "ssl_keystore_key", "ssl_keystore_password")
    chain: Secret = values["ssl_keystore_certificate_chain"]
    if key is None:
        raise ConfigError(
            f"{where} needs ssl.keystore.location, or ssl.keystore.key and ssl.keystore.certificate.chain"
        )
    if (key.path is None) != bool(chain):
        raise ConfigError(f"{where}: ssl.keystore.key and ssl.keystore.certificate.chain belong together")
    password: Secret = values["ssl_key_password"]
    key = replace(key, key_password=password or None)
    return key, Store("ssl.keystore.certificate.chain", pem=chain) if chain else None


def _store(values: Mapping[str, Any], location: str, content: str, password: str) -> Store | None:
    from oncelog.net.tls_files import Store

    path, pem, secret = values[location], values[content], values[password]
    names = location.replace("_", "."), content.replace("_", ".")
    if path and pem:
        raise ConfigError(f"{' and '.join(names)}: set one of them")
    if not path and not pem:
        return None
    given = secret or None
    return Store(names[0], path=path, password=given) if path else Store(names[1], pem=pem, password=given)


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 cipher suite, such as `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`."""
    exchange, found, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not found:
        return suite
    cipher = re.sub(r"^AES_(\d+)_", r"AES\1_", cipher).replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return "-".join([*([] if exchange == "RSA" else [exchange]), cipher]).replace("_", "-")
