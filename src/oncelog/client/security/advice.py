"""Say which options to check if TLS or a login fails."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.net.failures import Cause

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


def advice_for(mechanism: str | None) -> Mapping[Cause, str]:
    """Return the advice for clients with this SASL mechanism."""
    return {**ADVICE, Cause.CREDENTIALS: _CHECK_TOKEN} if mechanism == "OAUTHBEARER" else ADVICE
