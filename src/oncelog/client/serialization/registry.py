"""The client of a schema registry with Confluent's REST API. Calls block: `aio` clients run them in a thread."""

from __future__ import annotations

import json
import random
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from math import inf
from typing import Any
from uuid import UUID

from oncelog.client.backoff import Backoff
from oncelog.errors import ConfigError, RegistryError
from oncelog.net.credentials import Secret
from oncelog.net.http import HttpError, JsonClient, basic
from oncelog.net.sasl import shown

MAX_ANSWER_BYTES = 16 << 20
CONTENT = "application/vnd.schemaregistry.v1+json"
MISSING = (40401, 40402, 40403)
"""Error codes of the registry: no such subject, version or schema."""
MIN_TIMEOUT_S = 0.05
FIRST_PAUSE_MS = 100
"""Pause before the first retry. It doubles with each retry."""


class SchemaRegistry:
    """A schema registry with Confluent's REST API (also Karapace, Apicurio's `/apis/ccompat/v7`).

    `url` is one URL, or several of the same registry: a list, or a string with commas. The client begins with the one
    that answered last. If it does not answer in HTTP within its share of the time, or its certificate is not trusted,
    the client tries the next. `username` and `password` are for basic authentication, `token` is a bearer token.
    `ssl_context` is an `ssl.SSLContext` for https (default: the system's authorities). `timeout` limits a request
    including its retries, in seconds.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        username: str | None = None,
        password: str | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 10.0,
    ) -> None:
        given = url if isinstance(url, list | tuple) else (url,)
        self._urls = [_checked(each) for urls in given for each in _listed(urls)]
        if not self._urls:
            raise ConfigError("url: give at least one URL of the schema registry")
        if (username is None) != (password is None):
            raise ConfigError("username and password: set both, or none")
        if username is not None and token is not None:
            raise ConfigError("username and token: set one of them")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ConfigError(f"timeout = {timeout!r}: it must be a positive number of seconds")
        self._login: Secret | None = None
        if username is not None:
            self._login = basic(username, str(password))
        elif token is not None:
            self._login = Secret(f"Bearer {token}")
        self._timeout = timeout
        if ssl_context is None:  # to load the system's authorities takes 30 ms, in each of Spark's tasks
            secure = any(each.startswith("https:") for each in self._urls)
            ssl_context = ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = JsonClient(ssl_context, MAX_ANSWER_BYTES)

    def __repr__(self) -> str:
        return f"SchemaRegistry({', '.join(self._urls)})"

    def register(self, subject: str, schema: str) -> int:
        """Register a schema for a subject, and return its id. A schema that is registered already keeps its id.

        Raises RegistryError, also if the schema is incompatible with the subject's other schemas.
        """
        return self.id_of(self._request(f"/subjects/{_quoted(subject)}/versions", {"schema": schema}), subject)

    def find(self, subject: str, schema: str) -> int:
        """Return the id of a schema of a subject. Raises LookupError if it is not registered, and RegistryError."""
        try:
            found = self._request(f"/subjects/{_quoted(subject)}", {"schema": schema})
        except LookupError as error:
            raise LookupError(f"{error}; register the schema for subject {subject} first") from None
        return self.id_of(found, subject)

    def guid(self, subject: str, schema: str, *, register: bool = True) -> UUID:
        """Return the GUID of a schema of a subject. With `register`, register it first if it is not registered.

        Confluent's registry has GUIDs since version 8.0. Raises RegistryError if the registry has none, LookupError if
        the schema is not registered.
        """
        place = f"/subjects/{_quoted(subject)}" + "/versions" * register
        found = self._request(place, {"schema": schema}).get("guid")
        try:
            return UUID(found)
        except (ValueError, TypeError, AttributeError):
            raise RegistryError(
                f"{self!r}: the answer for subject {subject} has no GUID, which headers need; write ids before the data"
            ) from None

    def schema(self, schema_id: int | UUID) -> dict[str, Any]:
        """Return the registry's answer for an id or a GUID: `schema`, `schemaType` unless it is Avro, `references`.

        Raises LookupError for an unknown id, and RegistryError.
        """
        return self._request(f"/schemas/{'guids' if isinstance(schema_id, UUID) else 'ids'}/{schema_id}")

    def version(self, subject: str, version: int) -> dict[str, Any]:
        """Return the registry's answer for a version of a subject. Raises LookupError and RegistryError."""
        return self._request(f"/subjects/{_quoted(subject)}/versions/{version:d}")

    def latest(self, subject: str) -> dict[str, Any]:
        """Return the registry's answer for the latest version of a subject. Raises LookupError and RegistryError."""
        return self._request(f"/subjects/{_quoted(subject)}/versions/latest")

    def id_of(self, answer: dict[str, Any], subject: str) -> int:
        """Return the id in an answer for a subject. Raises RegistryError."""
        found = answer.get("id")
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 1 << 32:
            raise RegistryError(f"{self!r}: the answer for subject {subject} has no id")
        return found

    def _request(self, path: str, body: object = None) -> dict[str, Any]:
        """Return the JSON of an answer. Retry until the timeout. Raises LookupError and RegistryError."""
        until = time.monotonic() + self._timeout
        backoff = Backoff(FIRST_PAUSE_MS, inf, random.random)
        while True:
            failures: list[RegistryError] = []
            urls = self._urls  # another thread may replace the list
            for left, url in zip(range(len(urls), 0, -1), urls, strict=True):
                share = max(until - time.monotonic(), MIN_TIMEOUT_S) / left
                try:
                    return self._send(url, path, body, share)
                except RegistryError as error:
                    if error.status is not None and not error.retriable:
                        raise  # the registry has answered, and the others would answer the same
                    failures.append(error)
            retriable = [error for error in failures if error.retriable]
            pause = backoff.next_s()
            if not retriable or time.monotonic() + pause >= until:
                raise (retriable or failures)[-1]
            time.sleep(pause)

    def _send(self, url: str, path: str, body: object, timeout: float) -> dict[str, Any]:
        headers = {"Accept": f"{CONTENT}, application/json"}
        if self._login is not None:
            headers["Authorization"] = self._login.value
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = CONTENT
        try:
            found = self._client.fetch(urllib.request.Request(url + path, data, headers), timeout)
        except HttpError as error:
            if error.status is not None and not error.retriable:
                self._prefer(url)
            raise _failed(url + path, error) from None
        self._prefer(url)
        return found

    def _prefer(self, url: str) -> None:
        """Send the next requests to this URL first, because it has answered."""
        if self._urls[0] != url:
            self._urls = [url, *(each for each in self._urls if each != url)]


def _listed(urls: object) -> list[object]:
    """Return the URLs of a list with commas, as Confluent's clients accept it. `_checked` rejects other types."""
    return [each.strip() for each in urls.split(",")] if isinstance(urls, str) else [urls]


def _checked(url: object) -> str:
    if isinstance(url, str) and "@" in url:  # the error must not show a password
        raise ConfigError("url: it must have no login; pass username and password")
    parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url = {url!r}: it must be an http or https URL")
    if parts.query or parts.fragment:
        raise ConfigError(f"url = {url!r}: it must have no query or fragment")
    return parts.geturl().rstrip("/")


def _quoted(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _failed(url: str, error: HttpError) -> RegistryError | LookupError:
    """Return LookupError if the registry lacks the schema. Another 404, as of a wrong URL, is a RegistryError."""
    fields = error.fields()
    reason = f": {shown(str(fields['message'])).rstrip('.')}" if "message" in fields else ""
    if error.status == 404 and fields.get("error_code") in MISSING:
        return LookupError(f"{url}: the registry has no such schema{reason}")
    advice = ""
    if error.untrusted:
        advice = "; pass an ssl_context that trusts its authority"
    elif error.status is None:
        advice = "; check the URL of the schema registry" + ", and that it runs" * error.retriable
    return RegistryError(f"{url}: {error}{reason}{advice}", retriable=error.retriable, status=error.status)
