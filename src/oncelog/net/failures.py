"""Define why a connection fails or ends."""

from __future__ import annotations

from oncelog.protocol.errors import ErrorCode


class ConnectionLostError(ConnectionError):
    """Raised if a connection fails or ends before the response arrives. The broker may have processed the request."""


class RequestTimeoutError(ConnectionLostError):
    """Raised if a response does not arrive in time. The connection is closed."""


class LoginRejectedError(Exception):
    """Raised if TLS or the login fails so that another attempt with the same settings fails again.

    It is no ConnectionLostError, so that no code retries it.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED) -> None:
        super().__init__(message)
        self.code = code
