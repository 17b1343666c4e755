"""What a client needs to connect to a secured listener, and the login on a new or an open connection."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from oncelog.net.credentials import Secret
from oncelog.net.failures import Cause, ConnectionLostError, LoginRejectedError
from oncelog.net.sasl import Exchange, Plain, SaslError, Scram, shown
from oncelog.net.threads import in_thread
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from oncelog.protocol.schema import Message

if TYPE_CHECKING:
    import ssl

Call = Callable[[Message, int], Awaitable[Any]]
"""Send a request in a version, and return the response."""


class Tls(Protocol):
    """The source of TLS settings. Files may change while the client runs."""

    async def context(self) -> ssl.SSLContext:
        """Return the settings for a new connection."""


class Login(Protocol):
    """The source of credentials for one mechanism."""

    @property
    def mechanism(self) -> str:
        """The name of the SASL mechanism."""

    async def begin(self) -> Exchange:
        """Return a new exchange. Raises LoginRejectedError, and ConnectionLostError if a retry may help."""


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """A login with user name and password."""

    mechanism: str
    username: str
    password: Secret
    token: bool = False
    """The user name is the id of a delegation token, and the password its HMAC."""

    async def begin(self) -> Exchange:
        """Return a new exchange."""
        if self.mechanism == "PLAIN":
            return Plain(self.username, self.password.value)
        nonce = secrets.token_urlsafe(24)
        return Scram(self.mechanism, self.username, self.password.value, nonce, token=self.token)


@dataclass(frozen=True, slots=True)
class Security:
    """How to connect: with TLS, with a login, with both or none. The `repr` has no secrets."""

    protocol: str = "PLAINTEXT"
    tls: Tls | None = None
    login: Login | None = None
    advice: Mapping[Cause, str] = field(default_factory=dict, compare=False)
    """What to do about a failure, in the terms of the program that created this object."""

    def __repr__(self) -> str:
        mechanism = "" if self.login is None else f", {self.login.mechanism}"
        return f"Security({self.protocol}{mechanism})"

    def explain(self, error: ConnectionLostError | LoginRejectedError) -> str:
        """Return the text of an error, with the advice for its cause."""
        advice = None if error.cause is None else self.advice.get(error.cause)
        return str(error) if advice is None else f"{error}; {advice}"


PLAINTEXT = Security()


async def log_in(
    call: Call, mechanism: str, exchange: Exchange, versions: dict[int, tuple[int, int]], address: str
) -> int:
    """Log in on a connection. Return the lifetime of the session in ms; 0 if it does not expire (KIP-368).

    Raises LoginRejectedError, and ConnectionLostError if a retry may help.
    """
    version = min(versions.get(SaslAuthenticateRequest.API_KEY, (0, -1))[1], SaslAuthenticateRequest.MAX_VERSION)
    if version < 0 or versions.get(SaslHandshakeRequest.API_KEY, (0, -1))[1] < 1:
        raise LoginRejectedError(f"{address} does not support SASL", ErrorCode.ILLEGAL_SASL_STATE, cause=Cause.NO_LOGIN)
    handshake = await call(SaslHandshakeRequest(mechanism=mechanism), 1)
    if handshake.error_code:
        raise _rejected_handshake(address, mechanism, handshake)
    token: bytes | None = exchange.first()
    lifetime_ms = 0
    while token is not None:
        response = await call(SaslAuthenticateRequest(auth_bytes=token), version)
        if response.error_code:
            raise _rejected(address, mechanism, exchange, response)
        lifetime_ms = response.session_lifetime_ms
        try:
            answer = partial(exchange.answer, bytes(response.auth_bytes))
            token = await in_thread(answer) if exchange.computes else answer()
        except SaslError as error:
            raise LoginRejectedError(f"{address}: login with {mechanism} failed: {error}") from None
    if not exchange.done:
        raise LoginRejectedError(f"{address} ended the login with {mechanism} too early")
    return max(0, lifetime_ms)


def _rejected_handshake(address: str, mechanism: str, response: Any) -> LoginRejectedError:
    code = ErrorCode.of(response.error_code)
    if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        accepted = shown(", ".join(response.mechanisms)) or "none"
        what = f"{address} does not accept the mechanism {mechanism}; it accepts: {accepted}"
        return LoginRejectedError(what, code, cause=Cause.MECHANISM)
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        return LoginRejectedError(f"{address} expects no login on this listener", code, cause=Cause.NO_LOGIN)
    return LoginRejectedError(f"{address} rejected the mechanism {mechanism}: {code.text}", code)


def _rejected(address: str, mechanism: str, exchange: Exchange, response: Any) -> Exception:
    code = ErrorCode.of(response.error_code)
    reasons = [text for text in (shown(response.error_message or code.text), exchange.reason) if text]
    message = f"{address} rejected the login with {mechanism}: {'; '.join(reasons)}"
    if code.retriable:
        return ConnectionLostError(message)
    return LoginRejectedError(message, code, cause=Cause.CREDENTIALS)
