"""Explain why TLS with a broker failed, and which option to check."""

from __future__ import annotations

import ssl

from oncelog.net.failures import ConnectionLostError, LoginRejectedError

EXPIRED, HOST_MISMATCH, IP_MISMATCH = 10, 62, 64
NOT_YET_VALID = 9
UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's codes (X509_V_ERR_*) for a chain that ends at no trusted certificate."""
CLIENT_REJECTED = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_REVOKED",
    "UNSUPPORTED_CERTIFICATE",
    "ACCESS_DENIED",
)
"""Parts of OpenSSL's names for the alerts with which a broker rejects the client's certificate."""
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's names for bytes that are not TLS."""


def explain(error: Exception, address: str) -> LoginRejectedError | ConnectionLostError | None:
    """Return the error to raise for a failure of TLS, or None for any other failure.

    A connection that ends during the handshake is lost, because a broker that restarts ends it so.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return LoginRejectedError(f"{address}: {_untrusted(error)}")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError | ConnectionAbortedError):
        return ConnectionLostError(
            f"{address}: the connection ended during the TLS handshake; if this persists, check that the port is a "
            "TLS listener (security.protocol)"
        )
    if isinstance(error, ssl.CertificateError):  # asyncio's and uvloop's, without OpenSSL's code
        return LoginRejectedError(f"{address}: the broker's certificate was rejected: {error}")
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or str(error)
    if any(name in reason for name in NO_TLS):
        return LoginRejectedError(
            f"{address} does not speak TLS ({reason}); use its TLS listener, or a security.protocol without SSL"
        )
    if any(name in reason for name in CLIENT_REJECTED):
        return LoginRejectedError(
            f"{address} rejected the client's certificate ({reason}); check ssl.keystore.location, or "
            "ssl.certificate.location and ssl.key.location"
        )
    return LoginRejectedError(
        f"{address}: the TLS handshake failed ({reason}); check ssl.enabled.protocols, ssl.cipher.suites and, if the "
        "broker requires a client certificate, ssl.keystore.location"
    )


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    code, detail = error.verify_code, error.verify_message
    if code in (HOST_MISMATCH, IP_MISMATCH):
        return (
            f"the broker's certificate is for another host name: {detail} Connect by a name in the certificate, or set "
            "ssl.endpoint.identification.algorithm = none to accept any name"
        )
    if code == EXPIRED:
        return (
            f"the broker's certificate has expired ({detail}); renew it on the broker, and check this machine's clock"
        )
    if code == NOT_YET_VALID:
        return f"the broker's certificate is not valid yet ({detail}); check this machine's clock"
    if code in UNKNOWN_AUTHORITY:
        return (
            f"the broker's certificate is from an unknown authority ({detail}); set ssl.truststore.location or "
            "ssl.ca.location to the authority's certificate"
        )
    return f"the broker's certificate was rejected: {detail}; check ssl.truststore.location or ssl.ca.location"
