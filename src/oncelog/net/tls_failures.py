"""Explain why TLS with a broker failed."""

from __future__ import annotations

import ssl

from oncelog.net.failures import Cause, ConnectionLostError, LoginRejectedError

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


def explain(error: Exception, address: str, *, connected: bool) -> LoginRejectedError | ConnectionLostError | None:
    """Return the error to raise for a failure of TLS, or None for any other failure.

    `connected` is True if the handshake is complete. A connection that ends before that is lost, because a broker that
    restarts ends it so.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error, address)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError | ConnectionAbortedError):
        if connected:
            return None
        what = f"{address}: the connection ended during the TLS handshake"
        return ConnectionLostError(what, cause=Cause.HANDSHAKE_ENDED)
    if isinstance(error, ssl.CertificateError):  # asyncio's and uvloop's, without OpenSSL's code
        return LoginRejectedError(f"{address}: the broker's certificate was rejected: {error}", cause=Cause.CERTIFICATE)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or str(error)
    if any(name in reason for name in NO_TLS):
        return LoginRejectedError(f"{address} does not speak TLS ({reason})", cause=Cause.NO_TLS)
    if any(name in reason for name in CLIENT_REJECTED):
        what = f"{address} rejected the client's certificate ({reason})"
        return LoginRejectedError(what, cause=Cause.CLIENT_CERTIFICATE)
    return LoginRejectedError(f"{address}: the TLS handshake failed ({reason})", cause=Cause.HANDSHAKE)


UNTRUSTED = {
    **dict.fromkeys((HOST_MISMATCH, IP_MISMATCH), (Cause.HOST_NAME, "is for another host name")),
    **dict.fromkeys(UNKNOWN_AUTHORITY, (Cause.UNKNOWN_AUTHORITY, "is from an unknown authority")),
    EXPIRED: (Cause.EXPIRED, "has expired"),
    NOT_YET_VALID: (Cause.NOT_YET_VALID, "is not valid yet"),
}
"""OpenSSL's code -> the cause, and what it says of the broker's certificate."""


def _untrusted(error: ssl.SSLCertVerificationError, address: str) -> LoginRejectedError:
    cause, what = UNTRUSTED.get(error.verify_code, (Cause.CERTIFICATE, "was rejected"))
    detail = error.verify_message.rstrip(".")
    return LoginRejectedError(f"{address}: the broker's certificate {what}: {detail}", cause=cause)
