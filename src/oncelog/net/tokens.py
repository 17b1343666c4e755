"""Get credentials for logins: passwords from the options, tokens from a callback, a file or a token endpoint."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

from oncelog.net.credentials import Secret
from oncelog.net.failures import ConnectionLostError, LoginRejectedError
from oncelog.net.http import HttpError, JsonClient, basic
from oncelog.net.sasl import Exchange, OAuthBearer, shown
from oncelog.net.threads import in_thread

REFRESH_AT = 0.8
"""Get a new token after this share of the old one's life, as Kafka's client does (sasl.login.refresh.window.factor)."""
LATE_AT = 0.95
"""After this share of its life, a token may expire before the broker has checked it."""
PAUSE_S = 10.0
"""Pause after a failure while the old token is valid, as of ExpiringCredentialRefreshingLogin in Kafka's client."""
MAX_HUNG = 12
"""Calls of a source that have not returned. The last one was abandoned after 2**11 times the timeout (5.7 hours)."""
MAX_ANSWER_BYTES = 1 << 20
MAX_LIFE_S = 10.0 * 365 * 24 * 3600
"""Do not keep a token whose life is longer: the number is wrong."""

T = TypeVar("T")
log = logging.getLogger(__name__)

Token = tuple[str, float]
"""A token, and the seconds for which it may be used; 0 if it is not to be kept."""


class TokenCalls:
    """The calls of one source of tokens, each in a thread or a task of its own.

    A call that hangs cannot be ended. The client abandons its thread or task, and calls the source again.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._running: set[object] = set()

    @property
    def hung(self) -> int:
        """The number of calls that have not returned. Between two requests for a token, these are abandoned ones."""
        return len(self._running)

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, and return its result."""
        call = object()

        def counted() -> T:
            self._running.add(call)
            try:
                return function()
            finally:
                self._running.discard(call)

        return await in_thread(counted)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Return the result of an awaitable. A coroutine may ignore its cancellation, so it runs in a task."""

        async def counted() -> T | _Raised:
            try:
                return await awaitable
            except BaseException as error:
                if isinstance(error, GeneratorExit):
                    raise
                # A task passes SystemExit and KeyboardInterrupt to the event loop, which would end.
                return _Raised(error)

        task = asyncio.ensure_future(counted())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        found = task.result()
        if isinstance(found, _Raised):
            raise found.error
        return found


class _Raised(NamedTuple):
    error: BaseException


class Source(Protocol):
    """A source of tokens."""

    @property
    def name(self) -> str:
        """The name of the option, for errors."""

    async def __call__(self, calls: TokenCalls) -> Token:
        """Return a token. Raises LoginRejectedError, and ConnectionLostError if a retry may help."""


class TokenLogin:
    """A login with a token (OAUTHBEARER). If a token's lifetime is known, all connections of a client share the token.

    At most one request for a token is in flight. Other logins that need a token wait for the same request. Each login
    waits for `timeout_ms` at most. A request that hangs is abandoned after this time, the next one after twice this
    time, and so on. So a source can recover after an outage, and the number of its threads stays small.
    """

    mechanism = "OAUTHBEARER"

    def __init__(self, source: Source, extensions: Mapping[str, str], timeout_ms: int = 10_000) -> None:
        self._source = source
        self._extensions = extensions
        self._timeout_ms = timeout_ms
        self._calls = TokenCalls(timeout_ms / 1000)
        self._token = ""
        self._refresh_at = self._late_at = self._expires_at = 0.0
        self._request: asyncio.Task[str] | None = None

    def __reduce__(self) -> tuple[type[TokenLogin], tuple[Any, ...]]:
        return type(self), (self._source, self._extensions, self._timeout_ms)

    async def begin(self) -> Exchange:
        """Return a new exchange, with a new token if needed. Raises LoginRejectedError and ConnectionLostError.

        A token of which 80 % of the life have passed is used, and a new one is requested in the background. After 95 %,
        wait for the new token. If the source returns none, for any reason, use the old token while it is valid.
        """
        return OAuthBearer(await self._valid_token(), self._extensions)

    async def _valid_token(self) -> str:
        now = monotonic()
        if now < self._refresh_at:
            return self._token
        if self._request is None:
            self._request = asyncio.ensure_future(self._new_token())
            self._request.add_done_callback(self._end_request)
        if now < self._late_at:
            return self._token
        try:
            async with asyncio.timeout(self._calls.timeout_s):
                return await asyncio.shield(self._request)
        except (ConnectionLostError, LoginRejectedError):  # `_end_request` has logged it
            if monotonic() >= self._expires_at:
                raise
        except TimeoutError:
            if monotonic() >= self._expires_at:
                raise self._late() from None
            self._postpone(self._late())
        return self._token

    async def _new_token(self) -> str:
        hung = self._calls.hung
        if hung >= MAX_HUNG:
            raise ConnectionLostError(f"{hung} calls of {self._source.name} have not returned; give it a timeout")
        begun = monotonic()
        try:
            async with asyncio.timeout(self._calls.timeout_s * 2**hung):
                token, life = await self._source(self._calls)
            OAuthBearer(token, self._extensions)
        except TimeoutError:
            raise self._late() from None
        except ValueError as error:  # the token or an extension is malformed
            raise LoginRejectedError(str(error)) from None
        life = life if 0 < life < MAX_LIFE_S else 0.0  # it may be negative, infinite or no number
        self._token = token
        self._refresh_at, self._late_at = begun + REFRESH_AT * life, begun + LATE_AT * life
        self._expires_at = begun + life
        return token

    def _late(self) -> ConnectionLostError:
        return ConnectionLostError(
            f"{self._source.name} returned no token within sasl.login.read.timeout.ms = {self._timeout_ms}"
        )

    def _end_request(self, request: asyncio.Task[str]) -> None:
        self._request = None
        error = None if request.cancelled() else request.exception()
        if error is not None and monotonic() < self._expires_at:
            self._postpone(error)

    def _postpone(self, error: BaseException) -> None:
        """Use the token, which is valid, without another request for a while."""
        self._refresh_at = min(monotonic() + PAUSE_S, self._expires_at)
        log.warning("cannot get a new token, and uses the previous one: %s", error)


class Callback:
    """Get tokens from `sasl_oauth_token_provider`: a function, a coroutine function, or an object with `token()`.

    It returns the token, or (token, time of its expiry in seconds since 1970) as confluent-kafka's `oauth_cb` does.
    """

    name = "sasl_oauth_token_provider"

    def __init__(self, provider: Any) -> None:
        self._call = getattr(provider, "token", provider)

    async def __call__(self, calls: TokenCalls) -> Token:
        """Return a token. A function runs in a thread, because it may wait."""
        task = asyncio.current_task()
        try:
            found = await calls.run(self._call)
            if isawaitable(found):
                found = await calls.wait(found)
        except OSError as error:  # of its network: worth another attempt
            raise ConnectionLostError(f"{self.name} failed: {error}") from error
        except BaseException as error:
            if isinstance(error, GeneratorExit) or (task is not None and task.cancelling()):
                raise  # the client has ended the request
            raise LoginRejectedError(f"{self.name} raised {type(error).__name__}: {error}") from error
        token, expiry = found[:2] if isinstance(found, tuple) and len(found) > 1 else (found, None)
        if not isinstance(token, str) or not isinstance(expiry, int | float | None):
            kind = type(found).__name__
            raise LoginRejectedError(f"{self.name} must return a str, or (str, expiry in seconds), not {kind}")
        return token, 0.0 if expiry is None else expiry - time.time()


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Get tokens from an identity provider, for a client id and its secret (RFC 6749, section 4.4), or from a file."""

    url: str
    client_id: str
    client_secret: Secret
    scope: str | None = None
    url_encode: bool = False
    ca: str | None = None

    @property
    def name(self) -> str:
        """The option, with its value."""
        return f"sasl.oauthbearer.token.endpoint.url = {self.url}"

    async def __call__(self, calls: TokenCalls) -> Token:
        """Return a token and its lifetime in seconds. Raises LoginRejectedError and ConnectionLostError."""
        return await calls.run(partial(self._request, calls.timeout_s))

    def _request(self, timeout_s: float) -> Token:
        try:
            return self._file() if self.url.startswith("file:") else self._post(timeout_s)
        except HttpError as error:
            why = f"{self.name}: {error} {_reason(error.fields())}".rstrip()
            if error.retriable:
                raise ConnectionLostError(why) from None
            if error.untrusted:
                why += "; check https.ca.location"
            elif error.status is not None:
                why += "; check client id, secret and scope"
            raise LoginRejectedError(why) from None
        except OSError as error:
            raise ConnectionLostError(f"{self.name}: {error}") from None
        except UnicodeDecodeError:
            raise LoginRejectedError(f"{self.name}: the file is not a token, because it is not text") from None

    def _file(self) -> Token:
        path = urllib.request.url2pathname(urllib.parse.urlsplit(self.url).path)
        with Path(path).open("rb") as file:
            return file.read(MAX_ANSWER_BYTES).decode().strip(), 0.0

    def _post(self, timeout_s: float) -> Token:
        quote = urllib.parse.quote_plus if self.url_encode else str
        login = basic(quote(self.client_id), quote(self.client_secret.value))
        form = {"grant_type": "client_credentials", **({} if self.scope is None else {"scope": self.scope})}
        headers = {"Authorization": login.value, "Accept": "application/json"}
        request = urllib.request.Request(self.url, urllib.parse.urlencode(form).encode(), headers)
        client = JsonClient(ssl.create_default_context(cafile=self.ca), MAX_ANSWER_BYTES)
        answer = client.fetch(request, timeout_s)
        try:
            token, life = answer["access_token"], float(answer.get("expires_in", 0))
        except (ValueError, KeyError, TypeError):
            token, life = None, 0.0
        if not isinstance(token, str):
            raise LoginRejectedError(f"{self.name}: the answer has no access_token")
        return token, life


def _reason(answer: Mapping[str, Any]) -> str:
    """Return the error and description in an answer (RFC 6749, section 5.2). Other content may contain anything."""
    parts = [answer.get("error"), answer.get("error_description")]
    return shown(": ".join(str(part) for part in parts if part))
