"""The login of a connection: which requests it admits, and how the SASL requests work (KIP-43, KIP-152, KIP-368).

Source: Kafka's `SaslServerAuthenticator`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

from oncelog.broker.config.listener_security import ListenerSecurity
from oncelog.cluster.image import MetadataCache
from oncelog.net.frames import BadFrameError
from oncelog.net.oauth_server import OAuthBearerServer, TokenUser
from oncelog.net.sasl_server import (
    PlainServer,
    RejectedLoginError,
    ScramCredential,
    ScramServer,
    ServerExchange,
    TokenLogin,
)
from oncelog.net.session import REJECTED, Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

FindScram = Callable[[str, str], ScramCredential | None]
"""Return the credential of a mechanism and a user, or None."""
CheckToken = Callable[[str], TokenUser | None]
FindToken = Callable[[str, str], TokenLogin | None]
"""Return the login of a mechanism and the id of a delegation token. None: the broker has no tokens."""

LOGIN_S = 30.0
"""How long a client may take for its login."""
MOST = 512
"""The number of clients of a listener that may be logging in. Each may take 1 MB for an unfinished request."""
RENEWAL_S = 1.0
"""A client may begin one later login in this time. The first later login is always admitted."""
_BEFORE = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_DURING = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

_log = logging.getLogger("oncelog.broker")


def find_scram(cache: MetadataCache, mechanism: str, user: str) -> ScramCredential | None:
    """Return the credential of a user in the newest metadata, or None."""
    text = cache.image.user_configs.get(user, {}).get(mechanism)
    return None if text is None else readable_credential(user, mechanism, text)


def readable_credential(user: str, mechanism: str, text: str) -> ScramCredential | None:
    """Return the credential of a user in its stored form, or log that it is damaged and return None."""
    try:
        return ScramCredential.decode(text)
    except ValueError:
        _log.error("the credential of user %r for %s is damaged, so the user cannot log in", user, mechanism)
        return None


class Logins:
    """The logins of one listener."""

    def __init__(
        self,
        security: ListenerSecurity,
        disguise: bytes,
        find_scram: FindScram,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        find_token: FindToken = lambda mechanism, token_id: None,
        check_token: CheckToken | None = None,
    ) -> None:
        """`disguise` is the secret for the salts of unknown users, the same in all brokers of the cluster.

        `check_token` returns the user of an OAUTHBEARER token, or None if the token is not valid.
        """
        self.security = security
        self.now = now
        """A monotonic clock, in seconds."""
        self.now_ms = now_ms
        """The wall-clock time."""
        self._check_token = check_token
        self._find_token = find_token
        self._find_scram = find_scram
        self._disguise = disguise
        self._begun: dict[Login, None] = {}
        """The logins that are not complete, oldest first."""

    def begin(self, session: Session) -> Login:
        """Return the login of a new connection. If there are too many, close the connection of the oldest one.

        The login of an honest client is complete after a few round trips.
        """
        if len(self._begun) >= MOST:
            oldest = next(iter(self._begun))
            del self._begun[oldest]
            oldest.give_way()
        login = Login(self, session)
        self._begun[login] = None
        return login

    def ended(self, login: Login) -> None:
        """Count a login no longer: it is complete, or its connection is lost."""
        self._begun.pop(login, None)

    def exchange(self, mechanism: str) -> ServerExchange:
        """Return a new exchange of messages for a mechanism of the listener."""
        if mechanism == "PLAIN":
            return PlainServer(self.security.users or {})
        if mechanism == "OAUTHBEARER":
            assert self._check_token is not None
            return OAuthBearerServer(self._check_token)

        def find(user: str) -> ScramCredential | None:
            return self._find_scram(mechanism, user)

        def find_token(token_id: str) -> TokenLogin | None:
            return self._find_token(mechanism, token_id)

        return ScramServer(mechanism, find, secrets.token_urlsafe(24), self._disguise, find_token)

    def lifetime_ms(self, mechanism: str, expires_ms: int | None) -> int | None:
        """Return how long a new session lasts. None: it does not expire. `expires_ms`: when the credentials expire.

        As in Kafka, 0 means that the session has expired: the clock skew allowed credentials that have just expired.
        """
        limits = [limit] if (limit := self.security.session_ms(mechanism)) else []
        if expires_ms is not None:
            limits.append(max(0, expires_ms - self.now_ms()))
        return min(limits, default=None)


class Login:
    """The login of one connection."""

    __slots__ = (
        "_deadline",
        "_end_of_wait",
        "_exchange",
        "_expires_at",
        "_lifetime_ms",
        "_logins",
        "_mechanism",
        "_renewed_at",
        "_session",
        "_user",
        "_whole",
        "raw",
    )

    def __init__(self, logins: Logins, session: Session) -> None:
        self._logins = logins
        self._session = session
        self._mechanism = ""
        self._exchange: ServerExchange | None = None
        self.raw = False
        """Whether the next frame is a message of the mechanism, without a request header (after SaslHandshake v0)."""
        self._user = ""
        self._lifetime_ms: int | None = None
        self._expires_at = 0.0
        """When the session expires, by `Logins.now`. 0: it does not expire."""
        self._renewed_at: float | None = None
        """When the client began its last later login."""
        self._whole = session.request_limit
        session.request_limit = min(self._whole, logins.security.max_receive_size)
        self._deadline: Any = session.drop(LOGIN_S, "it has not logged in")
        """The timer that closes the connection, until the login is complete or the connection is lost."""
        self._end_of_wait: Any = session.on_disconnect(self._stop_waiting)

    def check(self, api_key: int) -> None:
        """Raise BadFrameError, which closes the connection, if a request of this API is not admitted now."""
        if self._exchange is not None:
            if api_key not in _DURING:
                raise BadFrameError(f"a request with API key {api_key} during a login")
        elif not self._user:
            if api_key not in _BEFORE:
                raise BadFrameError(f"a request with API key {api_key} before the login")
        elif self._expires_at and self._logins.now() >= self._expires_at and not self._may_renew(api_key):
            raise BadFrameError(f"the session of {self._session.principal} has expired")

    def handshake(self, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse:
        """Begin a login with the mechanism of the request, or return an error. A login in progress ends.

        Too early a later login gets ILLEGAL_SASL_STATE, too, and the session continues (Kafka's `KafkaChannel`).
        """
        offered = list(self._logins.security.mechanisms)
        if self._exchange is not None:
            self._end()
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered)
        if self._user:
            if not self._expires_at or not self._may_renew():
                return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
            self._renewed_at = self._logins.now()
        if request.mechanism not in offered:
            self._end()
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
        if self._user and request.mechanism != self._mechanism:
            self._end()
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered)
        self._mechanism = request.mechanism
        self._exchange = self._logins.exchange(request.mechanism)
        self.raw = version == 0
        return SaslHandshakeResponse(mechanisms=offered)

    def authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        """Pass the message in a request to the mechanism, and return its response, or an error."""
        if self._exchange is None:
            text = "SaslAuthenticate request received after successful authentication"
            if not self._user:
                self._end()
                text = "SaslAuthenticate request received without a SaslHandshake request"
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
        try:
            answer = self._step(bytes(request.auth_bytes))
        except RejectedLoginError as error:
            self._end()
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error))
        lifetime_ms = (self._lifetime_ms or 0) if self._exchange is None else 0
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms)

    def authenticate_raw(self, frame: memoryview) -> bytes:
        """Pass a frame without a header to the mechanism, and return its response.

        Raises BadFrameError, which closes the connection.
        """
        try:
            answer = self._step(bytes(frame))
        except RejectedLoginError as error:
            raise BadFrameError(f"the login has failed: {error}") from None
        return answer

    def _may_renew(self, api_key: int = ApiKey.SASL_HANDSHAKE) -> bool:
        """Return whether a request may begin a later login now."""
        last = self._renewed_at
        return api_key == ApiKey.SASL_HANDSHAKE and (last is None or self._logins.now() - last >= RENEWAL_S)

    def _step(self, message: bytes) -> bytes:
        exchange = self._exchange
        assert exchange is not None
        answer = exchange.answer(message)
        if exchange.user:
            self._complete(exchange.user, exchange.expires_ms)
            self._session.token_authenticated = exchange.by_token
        return answer

    def _complete(self, user: str, expires_ms: int | None) -> None:
        if self._user and user != self._user:
            raise RejectedLoginError(
                f"Cannot change principals during re-authentication from User.{self._user} to User.{user}"
            )
        self._user = user
        self._exchange = None
        self.raw = False
        self._lifetime_ms = self._logins.lifetime_ms(self._mechanism, expires_ms)
        self._expires_at = 0.0 if self._lifetime_ms is None else self._logins.now() + self._lifetime_ms / 1000
        self._session.principal = f"User:{user}"
        self._session.request_limit = self._whole
        self._stop_waiting()

    def give_way(self) -> None:
        """Close the connection, because too many others log in."""
        self._session.drop(0, "it has not logged in, and too many others log in")

    def _stop_waiting(self) -> None:
        """Cancel the deadline, and drop what would keep a lost connection in memory."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._end_of_wait.remove()
            self._deadline = self._end_of_wait = None
            self._logins.ended(self)

    def _end(self) -> None:
        """Close the connection `failure_delay_ms` after the response. Admit no more requests until then."""
        self._exchange = None
        self._session.mute(REJECTED)
        self._session.drop(self._logins.security.failure_delay_ms / 1000, "its login has failed")
