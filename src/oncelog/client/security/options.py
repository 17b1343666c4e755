"""The options for TLS and logins, by Kafka's names, and by librdkafka's if they differ."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog.client.option_readers import Option, boolean, integer, optional_secret, optional_text
from oncelog.errors import ConfigError
from oncelog.net.credentials import Secret, parse_jaas
from oncelog.net.failures import Cause
from oncelog.net.sasl import MECHANISMS
from oncelog.net.security import PLAINTEXT, Login, PasswordLogin, Security, Tls

if TYPE_CHECKING:
    from oncelog.net.tls_files import Store

_Loaded = TypeVar("_Loaded")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAVA_CLASS = "it names a Java class; use sasl_oauth_token_provider, or the options of the token endpoint"
STORES = ("JKS", "PKCS12", "PEM")

ADVICE = {
    Cause.UNKNOWN_AUTHORITY: "set ssl.truststore.location or ssl.ca.location to the authority's certificate",
    Cause.HOST_NAME: (
        "connect by a name in the certificate, or set ssl.endpoint.identification.algorithm = none to accept any name"
    ),
    Cause.EXPIRED: "renew it on the broker, and check this machine's clock",
    Cause.NOT_YET_VALID: "check this machine's clock",
    Cause.CERTIFICATE: "check ssl.truststore.location or ssl.ca.location",
    Cause.CLIENT_CERTIFICATE: "check ssl.keystore.location, or ssl.certificate.location and ssl.key.location",
    Cause.NO_TLS: "use its TLS listener, or a security.protocol without SSL",
    Cause.HANDSHAKE: (
        "check ssl.enabled.protocols and, if the broker requires a client certificate, ssl.keystore.location; pass an "
        "ssl_context of your own if the broker requires other ciphers"
    ),
    Cause.HANDSHAKE_ENDED: "if this persists, check that the port is a TLS listener (security.protocol)",
    Cause.NO_LOGIN: "use a listener that requires a login, or a security.protocol without SASL",
    Cause.MECHANISM: "set sasl.mechanism to one that it accepts",
    Cause.CREDENTIALS: "check sasl.username and sasl.password, or sasl.jaas.config",
}
"""Cause -> what to do, by Kafka's names of the options."""

_CHECK_TOKEN = "check sasl_oauth_token_provider, or sasl.oauthbearer.token.endpoint.url with client id and secret"


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value.upper() not in allowed:
            raise ValueError(f"it must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return value.upper()

    return read


def _mechanism(value: Any) -> str | None:
    if isinstance(value, str) and value.upper() in ("GSSAPI", "KERBEROS"):
        raise ValueError(f"Kerberos is not supported; supported are {', '.join(MECHANISMS)}")
    return None if value is None else _one_of(*MECHANISMS)(value)


def _store_type(value: Any) -> str | None:
    return None if value is None else _one_of(*STORES)(value)


def _host_check(value: Any) -> str:
    if value in ("", None) or str(value).lower() == "none":
        return "none"
    if str(value).lower() != "https":
        raise ValueError("it must be https or none")
    return "https"


def _versions(value: Any) -> tuple[str, ...]:
    names = tuple(part.strip() for part in (value.split(",") if isinstance(value, str) else value))
    if not names or not set(names) <= {"TLSv1.2", "TLSv1.3"}:
        raise ValueError("it must be TLSv1.2, TLSv1.3 or both")
    return names


def _context(value: Any) -> Any:
    if value is None:
        return None
    import ssl

    if not isinstance(value, ssl.SSLContext):
        raise ValueError("it must be an ssl.SSLContext")
    return value


def _handler(value: Any) -> str | None:
    """Accept Kafka's own class, because OAuth configurations for Kafka name it. Reject any other class."""
    if value is not None and str(value).rpartition(".")[2] != "OAuthBearerLoginCallbackHandler":
        raise ValueError(_JAVA_CLASS)
    return None


def _provider(value: Any) -> Any:
    if value is not None and not callable(getattr(value, "token", value)):
        raise ValueError("it must be a function that returns a token, or an object with a method token()")
    return value


_CLIENT = "sasl_oauthbearer_client_credentials_client"
_ENDPOINT = "sasl_oauthbearer_token_endpoint_url"

SECURITY: dict[str, Option] = {
    "security_protocol": Option(
        "PLAINTEXT", _one_of(*PROTOCOLS), "PLAINTEXT, SSL (TLS), SASL_PLAINTEXT (login), or SASL_SSL (TLS and login)."
    ),
    "ssl_truststore_location": Option(
        None,
        optional_text,
        "File with the certificates of trusted authorities, as PEM or PKCS12. By default those of the system.",
    ),
    "ssl_truststore_type": Option(None, _store_type, "PEM or PKCS12. The content of the file decides."),
    "ssl_truststore_password": Option(None, optional_secret, "Password of a PKCS12 file.", secret=True),
    "ssl_truststore_certificates": Option(
        None, optional_secret, "The certificates of trusted authorities themselves, as PEM.", secret=True
    ),
    "ssl_keystore_location": Option(
        None, optional_text, "File with this client's key and certificates, as PEM or PKCS12, for mutual TLS."
    ),
    "ssl_keystore_type": Option(None, _store_type, "PEM or PKCS12. The content of the file decides."),
    "ssl_keystore_password": Option(None, optional_secret, "Password of a PKCS12 file.", secret=True),
    "ssl_keystore_key": Option(None, optional_secret, "This client's key itself, as PEM.", secret=True),
    "ssl_keystore_certificate_chain": Option(
        None, optional_secret, "This client's certificates themselves, as PEM.", secret=True
    ),
    "ssl_certificate_location": Option(None, optional_text, "File with this client's certificates, as PEM."),
    "ssl_key_location": Option(None, optional_text, "File with this client's key, as PEM."),
    "ssl_key_password": Option(None, optional_secret, "Password of the key, if it is encrypted PEM.", secret=True),
    "ssl_endpoint_identification_algorithm": Option(
        "https", _host_check, "`https` requires that the broker's certificate has its host name; `none` does not."
    ),
    "ssl_enabled_protocols": Option(("TLSv1.2", "TLSv1.3"), _versions, "Versions of TLS to use."),
    "ssl_context": Option(None, _context, "An `ssl.SSLContext` of your own, in place of all other `ssl_` options."),
    "sasl_mechanism": Option(None, _mechanism, "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."),
    "sasl_username": Option(None, optional_text, "User name for PLAIN and SCRAM."),
    "sasl_password": Option(None, optional_secret, "Password for PLAIN and SCRAM.", secret=True),
    "sasl_jaas_config": Option(
        None, optional_secret, "User name and password in Java's form, in place of the two options.", secret=True
    ),
    "sasl_tokenauth": Option(
        False,
        boolean,
        "For SCRAM: log in with a delegation token. The user name is its id, and the password its HMAC as base64.",
        secret=True,  # a user may set it to the token
    ),
    "sasl_oauth_token_provider": Option(
        None,
        _provider,
        "For OAUTHBEARER: a function that returns a token, or (token, time of expiry in seconds since 1970).",
        secret=True,
    ),
    _ENDPOINT: Option(
        None, optional_text, "For OAUTHBEARER: URL that issues tokens for a client id and its secret, or a `file:` URL."
    ),
    f"{_CLIENT}_id": Option(None, optional_text, "Client id for the token endpoint."),
    f"{_CLIENT}_secret": Option(None, optional_secret, "Secret of the client id.", secret=True),
    "sasl_oauthbearer_scope": Option(None, optional_text, "Scope to request from the token endpoint."),
    "sasl_oauthbearer_extensions": Option(None, optional_text, "SASL extensions for the broker, as `name=value,...`."),
    "sasl_oauthbearer_header_urlencode": Option(
        False, boolean, "Encode client id and secret as RFC 6749 says before they are sent."
    ),
    "sasl_login_callback_handler_class": Option(
        None, _handler, "Has no effect: the token endpoint replaces Java's OAuthBearerLoginCallbackHandler."
    ),
    "sasl_login_read_timeout_ms": Option(10_000, integer(1), "How long one request for a token may take."),
    "https_ca_location": Option(
        None,
        optional_text,
        "File with the authorities to trust at the token endpoint, as PEM. By default the system's.",
    ),
}


def _dotted(name: str) -> str:
    return name.replace("_", ".") if name not in ("ssl_context", "sasl_oauth_token_provider") else name


def security_of(options: Mapping[str, Any]) -> Security:
    """Load the files that these options name, and return the settings of connections. Raises ConfigError."""
    protocol = options["security_protocol"]
    given = [name for name in SECURITY if options[name] != SECURITY[name].default and name != "security_protocol"]
    for prefix, needed in (("sasl_", "SASL"), ("ssl_", "SSL")):
        unused = next((name for name in given if name.startswith(prefix)), None)
        if unused is not None and needed not in protocol:
            raise ConfigError(
                f"{_dotted(unused)} has no effect with security.protocol = {protocol}; set security.protocol = "
                + ("SASL_SSL" if needed == "SASL" or protocol != "PLAINTEXT" else "SSL")
            )
    if protocol == "PLAINTEXT":
        return PLAINTEXT
    tls = _tls(options, given) if "SSL" in protocol else None
    login = _login(options) if "SASL" in protocol else None
    return Security(protocol, tls, login, advice_for(None if login is None else login.mechanism))


def advice_for(mechanism: str | None) -> Mapping[Cause, str]:
    """Return the advice for clients with this SASL mechanism."""
    return {**ADVICE, Cause.CREDENTIALS: _CHECK_TOKEN} if mechanism == "OAUTHBEARER" else ADVICE


def _tls(options: Mapping[str, Any], given: list[str]) -> Tls:
    from oncelog.net import tls_files

    if options["ssl_context"] is not None:
        other = next((name for name in given if name.startswith("ssl_") and name != "ssl_context"), None)
        if other is not None:
            raise ConfigError(f"ssl_context and {_dotted(other)}: set one of them")
        return tls_files.OwnTls(options["ssl_context"])
    import ssl

    numbers = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
    key, chain = _key(options)
    files = tls_files.TlsFiles(
        trust=_store(options, ("ssl_truststore_location", "ssl_truststore_certificates"), "ssl_truststore_password"),
        chain=chain,
        key=key,
        check_host=options["ssl_endpoint_identification_algorithm"] == "https",
        versions=frozenset(numbers[name] for name in options["ssl_enabled_protocols"]),
    )
    return _usable(lambda: tls_files.ReloadedTls(files, logging.getLogger("oncelog.client.security")))


def _usable(load: Callable[[], _Loaded]) -> _Loaded:
    """Return what `load` has loaded from TLS files. Raises ConfigError if it cannot."""
    from oncelog.net.tls_files import TlsFileError

    try:
        return load()
    except TlsFileError as error:
        raise ConfigError(str(error)) from None


def _store(options: Mapping[str, Any], names: tuple[str, ...], password: str | None = None) -> Store | None:
    """Return the file or text in the one option that is set, or None if none is set."""
    from oncelog.net.tls_files import Store

    found = [name for name in names if options[name] is not None]
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(map(_dotted, found))}: set one of them")
    if not found:
        if password is not None and options[password] is not None:
            raise ConfigError(f"{_dotted(password)} needs {_dotted(names[0])}")
        return None
    value = options[found[0]]
    secret = None if password is None else options[password]
    if isinstance(value, Secret):
        return Store(_dotted(found[0]), pem=value, password=secret)
    return Store(_dotted(found[0]), path=value, password=secret)


def _key(options: Mapping[str, Any]) -> tuple[Store | None, Store | None]:
    """Return the stores of the client's key and of its certificates. The first store may contain both."""
    both = _store(options, ("ssl_keystore_location",), "ssl_keystore_password")
    key = _store(options, ("ssl_key_location", "ssl_keystore_key"))
    chain = _store(options, ("ssl_certificate_location", "ssl_keystore_certificate_chain"))
    if both is not None and (key or chain) is not None:
        other = key or chain
        raise ConfigError(f"{both.option} and {other.option if other else ''}: set one of them")
    if key is not None and chain is None:
        raise ConfigError(f"{key.option} needs ssl.certificate.location or ssl.keystore.certificate.chain")
    if chain is not None and key is None:
        raise ConfigError(f"{chain.option} needs ssl.key.location or ssl.keystore.key")
    from dataclasses import replace

    used = both or key
    password = options["ssl_key_password"]
    if used is None:
        if password is not None:
            raise ConfigError("ssl.key.password needs ssl.keystore.location or ssl.key.location")
        return None, None
    return replace(used, key_password=password), chain


def _login(options: Mapping[str, Any]) -> Login:
    mechanism = options["sasl_mechanism"]
    if mechanism is None:
        raise ConfigError(f"sasl.mechanism is missing; set it to one of {', '.join(MECHANISMS)}")
    jaas: dict[str, str] = {}
    if options["sasl_jaas_config"] is not None:
        try:
            jaas = parse_jaas(options["sasl_jaas_config"].value, mechanism)
        except ValueError as error:
            raise ConfigError(f"sasl.jaas.config: {error}") from None
    token = options["sasl_tokenauth"] or jaas.get("tokenauth", "").lower() == "true"
    if token and not mechanism.startswith("SCRAM-"):
        raise ConfigError("sasl.tokenauth: delegation tokens need sasl.mechanism = SCRAM-SHA-256 or SCRAM-SHA-512")
    if mechanism == "OAUTHBEARER":
        return _token_login(options, jaas)
    for name, key in (("sasl_username", "username"), ("sasl_password", "password")):
        if options[name] is not None and key in jaas:
            raise ConfigError(f"{_dotted(name)} and sasl.jaas.config: set one of them")
    username = options["sasl_username"] or jaas.get("username")
    password = options["sasl_password"] or (Secret(jaas["password"]) if "password" in jaas else None)
    for name, value in (("sasl.username", username), ("sasl.password", password)):
        if value is None:
            raise ConfigError(f"{name} is missing; sasl.mechanism = {mechanism} needs it, or sasl.jaas.config")
    assert username is not None
    assert password is not None
    return PasswordLogin(mechanism, username, password, token)


def _token_login(options: Mapping[str, Any], jaas: Mapping[str, str]) -> Login:
    from oncelog.net.tokens import Callback, TokenEndpoint, TokenLogin

    extensions = {name.removeprefix("extension_"): text for name, text in jaas.items() if name.startswith("extension_")}
    for pair in (options["sasl_oauthbearer_extensions"] or "").split(","):
        name, equals, value = pair.partition("=")
        if pair and not equals:
            raise ConfigError("sasl.oauthbearer.extensions: it must be NAME=VALUE,...")
        if pair:
            extensions[name.strip()] = value.strip()
    provider, url = options["sasl_oauth_token_provider"], options[_ENDPOINT]
    if provider is not None and url is not None:
        raise ConfigError(f"sasl_oauth_token_provider and {_dotted(_ENDPOINT)}: set one of them")
    if provider is not None:
        return TokenLogin(Callback(provider), extensions, options["sasl_login_read_timeout_ms"])
    if url is None:
        raise ConfigError(f"sasl.mechanism = OAUTHBEARER needs sasl_oauth_token_provider or {_dotted(_ENDPOINT)}")
    if "@" in url:
        raise ConfigError(f"{_dotted(_ENDPOINT)}: it must have no user name and password; set client id and secret")
    if not url.startswith(("https://", "http://", "file:")):
        shown = f" = {url!r}" if "://" in url else ""  # otherwise it may be a token
        raise ConfigError(f"{_dotted(_ENDPOINT)}{shown}: it must be an http, https or file URL")
    client_id = options[f"{_CLIENT}_id"] or jaas.get("clientId")
    secret = options[f"{_CLIENT}_secret"] or (Secret(jaas["clientSecret"]) if "clientSecret" in jaas else None)
    if not url.startswith("file:") and (client_id is None or secret is None):
        raise ConfigError(f"{_dotted(_ENDPOINT)} needs {_dotted(_CLIENT)}.id and {_dotted(_CLIENT)}.secret")
    ca = options["https_ca_location"]
    if ca is not None:
        from oncelog.net.tls_files import check_authorities

        _usable(lambda: check_authorities("https.ca.location", ca))
    endpoint = TokenEndpoint(
        url,
        client_id or "",
        secret or Secret(""),
        options["sasl_oauthbearer_scope"] or jaas.get("scope"),
        options["sasl_oauthbearer_header_urlencode"],
        ca,
    )
    return TokenLogin(endpoint, extensions, options["sasl_login_read_timeout_ms"])
