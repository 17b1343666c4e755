"""Get credentials for logins: passwords from the options, tokens from a callback, a file or a token endpoint."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from typing import Any

from oncelog.client.option_readers import Secret
from oncelog.net.connection import ConnectionLostError, LoginRejectedError
from oncelog.net.sasl import Exchange, OAuthBearer, Plain, Scram

REFRESH_AT = 0.8
"""Get a new token after this share of the old one's life, as Kafka's client does (sasl.login.refresh.window.factor)."""
MAX_ANSWER_BYTES = 1 << 20

Token = tuple[str, float]
"""A token, and the seconds for which it may be used; 0 if it is not to be kept."""


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """A login with user name and password."""

    mechanism: str
    username: str
    password: Secret

    async def begin(self) -> Exchange:
        """Return a new exchange."""
        if self.mechanism == "PLAIN":
            return Plain(self.username, self.password.value)
        return Scram(self.mechanism, self.username, self.password.value, secrets.token_urlsafe(24))


class TokenLogin:
    """A login with a token (OAUTHBEARER). It keeps a token that has a known life, for all connections of a client."""

    mechanism = "OAUTHBEARER"

    def __init__(self, source: Callable[[], Awaitable[Token]], extensions: Mapping[str, str]) -> None:
        self._source = source
        self._extensions = extensions
        self._token = ""
        self._until = 0.0

    async def begin(self) -> Exchange:
        """Return a new exchange, with a new token if needed. Raises LoginRejectedError and ConnectionLostError."""
        token = self._token
        if time.monotonic() >= self._until:
            begun = time.monotonic()
            token, life = await self._source()
            self._token, self._until = token, begun + REFRESH_AT * life
        try:
            return OAuthBearer(token, self._extensions)
        except ValueError as error:
            raise LoginRejectedError(str(error)) from None


class Callback:
    """Tokens of `sasl_oauth_token_provider`: a function or coroutine function, or an object with a method `token`.

    It returns the token, or (token, time of its expiry in seconds since 1970) as confluent-kafka's `oauth_cb` does.
    """

    def __init__(self, provider: Any) -> None:
        self._call = getattr(provider, "token", provider)

    async def __call__(self) -> Token:
        """Return a token. A function runs in a thread, because it may wait."""
        try:
            found = await asyncio.to_thread(self._call)
            if isawaitable(found):
                found = await found
        except OSError as error:  # of its network: worth another attempt
            raise ConnectionLostError(f"sasl_oauth_token_provider failed: {error}") from error
        except Exception as error:
            raise LoginRejectedError(f"sasl_oauth_token_provider raised {type(error).__name__}: {error}") from error
        token, life = (found[0], found[1] - time.time()) if isinstance(found, tuple) else (found, 0.0)
        if not isinstance(token, str):
            kind = type(token).__name__
            raise LoginRejectedError(f"sasl_oauth_token_provider must return a str, or (str, expiry), not {kind}")
        return token, life


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Tokens of an identity provider, for a client id and its secret (RFC 6749, section 4.4), or from a file."""

    url: str
    client_id: str
    client_secret: Secret
    scope: str | None = None
    url_encode: bool = False
    timeout_s: float = 10.0
    ca: str | None = None

    async def __call__(self) -> Token:
        """Return a token, and how long it may be used. Raises LoginRejectedError and ConnectionLostError."""
        return await asyncio.to_thread(self._request)

    def _request(self) -> Token:
        where = f"sasl.oauthbearer.token.endpoint.url = {self.url}"
        try:
            content = self._file() if self.url.startswith("file:") else self._post()
        except urllib.error.HTTPError as error:
            with error:
                why = f"{where}: HTTP {error.code} {_reason(error.read(MAX_ANSWER_BYTES))}".rstrip()
            if error.code >= 500 or error.code == 429:
                raise ConnectionLostError(why) from None
            raise LoginRejectedError(f"{why}; check client id, secret and scope") from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise LoginRejectedError(f"{where}: {error.reason.verify_message}; check https.ca.location") from None
            raise ConnectionLostError(f"{where}: {error.reason}") from None
        except OSError as error:
            raise ConnectionLostError(f"{where}: {error}") from None
        return content

    def _file(self) -> Token:
        path = urllib.request.url2pathname(urllib.parse.urlsplit(self.url).path)
        return Path(path).read_text().strip(), 0.0

    def _post(self) -> Token:
        quote = urllib.parse.quote_plus if self.url_encode else str
        basic = b64encode(f"{quote(self.client_id)}:{quote(self.client_secret.value)}".encode()).decode()
        form = {"grant_type": "client_credentials", **({} if self.scope is None else {"scope": self.scope})}
        headers = {"Authorization": f"Basic {basic}", "Accept": "application/json"}
        request = urllib.request.Request(self.url, urllib.parse.urlencode(form).encode(), headers)
        context = ssl.create_default_context(cafile=self.ca)
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
        with opener.open(request, timeout=self.timeout_s) as response:
            content = response.read(MAX_ANSWER_BYTES)
        try:
            answer = json.loads(content)
            return str(answer["access_token"]), float(answer.get("expires_in", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise LoginRejectedError(
                f"sasl.oauthbearer.token.endpoint.url = {self.url}: the answer has no access_token"
            ) from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follow no redirect, because it would carry the client's secret to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _reason(content: bytes) -> str:
    """Return error and description of an answer of RFC 6749, section 5.2. Other content may contain anything."""
    try:
        answer = json.loads(content)
        parts = [answer.get("error"), answer.get("error_description")]
    except (ValueError, AttributeError):
        return ""
    return ": ".join(str(part) for part in parts if part)
