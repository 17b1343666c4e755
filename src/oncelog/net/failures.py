"""Define why a connection fails or ends."""

from __future__ import annotations

from enum import Enum, auto

from oncelog.protocol.errors import ErrorCode


class Cause(Enum):
    """Why TLS or a login fails, if a setting can help. `Security.advice` says which one."""

    UNKNOWN_AUTHORITY = auto()
    HOST_NAME = auto()
    EXPIRED = auto()
    NOT_YET_VALID = auto()
    CERTIFICATE = auto()
    """The broker's certificate was rejected for another reason."""
    CLIENT_CERTIFICATE = auto()
    NO_TLS = auto()
    HANDSHAKE = auto()
    HANDSHAKE_ENDED = auto()
    """The connection ended in the TLS handshake: the broker restarts, or expects no TLS."""
    NO_LOGIN = auto()
    """The listener is one without a login."""
    MECHANISM = auto()
    CREDENTIALS = auto()


class ConnectionLostError(ConnectionError):
    """Raised if a connection fails or ends before the response arrives. The broker may have processed the request."""

    def __init__(self, *args: object, cause: Cause | None = None) -> None:
        super().__init__(*args)
        self.cause = cause


class RequestTimeoutError(ConnectionLostError):
    """Raised if a response does not arrive in time. The connection is closed."""


class LoginRejectedError(Exception):
    """Raised if TLS or the login fails so that another attempt with the same settings fails again.

    It is no ConnectionLostError, so that no code retries it.
    """

    def __init__(
        self,
        message: str,
        code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED,
        *,
        cause: Cause | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.cause = cause
