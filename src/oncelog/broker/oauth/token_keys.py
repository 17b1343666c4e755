"""Get the keys of an identity provider from its address or a file, and get them again in the background.

Source: Kafka's `RefreshingHttpsJwks`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.token_settings import TokenSettings
from oncelog.broker.oauth.signing_keys import SigningKeys
from oncelog.broker.retrying import Backoff, Problem
from oncelog.net.http import HttpError, JsonClient
from oncelog.net.threads import in_thread
from oncelog.net.tls_files import TlsFileError, TlsFiles

MAX_BYTES = 1 << 20
"""The maximum size of a key set."""
FETCH_S = 10.0
"""The maximum time to connect to the identity provider, and that to read its answer."""
FILE_S = 1.0
"""How often a file is read again. So a key that was removed from the file is invalid soon."""
LEAST_S = 0.1
"""The shortest time between two attempts, whatever the settings are."""
REQUESTED_S = 10.0
"""The shortest time between two attempts for unknown keys, which strangers can cause."""
_URL = "sasl.oauthbearer.jwks.endpoint.url"


class KeySourceError(Exception):
    """The keys cannot be read. The text has no address, which may contain anything."""


def read_keys(settings: TokenSettings) -> SigningKeys:
    """Return the keys that the provider or the file has now. Blocks. Raises KeySourceError."""
    try:
        if urlsplit(settings.keys_url).scheme == "file":
            return SigningKeys.parse(_file(settings.keys_url))
        request = urllib.request.Request(settings.keys_url, headers={"Accept": "application/json"})
        client = JsonClient(TlsFiles(trust=settings.trust).load(), MAX_BYTES)
        return SigningKeys.parse(client.fetch(request, FETCH_S))
    except OSError as error:
        raise KeySourceError(error.strerror or str(error)) from None
    except (HttpError, TlsFileError, ValueError) as error:
        raise KeySourceError(str(error)) from None


def _file(url: str) -> dict[str, object]:
    with Path(urllib.request.url2pathname(urlsplit(url).path)).open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"the file has more than {MAX_BYTES} bytes")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("the file is no JSON object")
    return found


class RefreshTimes:
    """When the keys are read, without I/O. All times are in seconds of one monotonic clock."""

    def __init__(self, interval_s: float, backoff: Backoff) -> None:
        self._interval_s = max(interval_s, LEAST_S)
        self._backoff = backoff
        self._requested_at = -math.inf
        self.due = -math.inf
        """When the next attempt begins."""

    def succeeded(self, now: float) -> None:
        """Plan the next regular attempt."""
        self._backoff.reset()
        self.due = now + self._interval_s

    def failed(self, now: float) -> None:
        """Plan another attempt after a wait that doubles with each failure."""
        self.due = now + max(min(self._backoff.next_s(), self._interval_s), LEAST_S)

    def requested(self, now: float) -> bool:
        """Plan an attempt at once, and return True, unless another one was requested less than REQUESTED_S ago."""
        if now < self._requested_at + REQUESTED_S:
            return False
        self._requested_at = now
        self.due = min(self.due, now)
        return True


class TokenKeys:
    """The newest keys. While they cannot be read, the former ones stay valid. `now` is a monotonic clock in seconds."""

    def __init__(self, settings: TokenSettings, now: Callable[[], float], logger: logging.Logger) -> None:
        self._settings = settings
        self._now = now
        self._logger = logger
        self._problem = Problem(logger)
        interval_s = FILE_S if urlsplit(settings.keys_url).scheme == "file" else settings.refresh_ms / 1000
        self._times = RefreshTimes(interval_s, Backoff(settings.backoff_ms, settings.backoff_max_ms))
        self._woken = asyncio.Event()
        self.current = SigningKeys((), 0)
        """The keys."""

    def request(self) -> None:
        """Read the keys soon. Calls that follow within REQUESTED_S have no effect."""
        if self._times.requested(self._now()):
            self._woken.set()

    async def load(self) -> None:
        """Read the keys for the first time. As in Kafka, the broker does not start without them. Raises ConfigError."""
        try:
            await self._read()
        except KeySourceError as error:
            raise ConfigError(f"{_URL}: cannot read the keys: {error}") from None

    async def run(self) -> None:
        """Read the keys again and again, until the task is cancelled."""
        while True:
            wait_s = self._times.due - self._now()
            if wait_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._woken.wait()
            self._woken.clear()
            if self._times.due > self._now():
                continue
            try:
                await self._read()
            except KeySourceError as error:
                self._times.failed(self._now())
                text = "%s: cannot read the keys, and uses the previous ones: %s"
                self._problem.failed(text, _URL, error, kind=str(error), level=logging.WARNING)

    async def _read(self) -> None:
        found = await in_thread(partial(read_keys, self._settings))
        if self._problem.lasts:
            self._logger.info("%s: the keys can be read again", _URL)
        self._problem.over()
        if (len(found), found.skipped) != (len(self.current), self.current.skipped):
            level = logging.INFO if len(found) else logging.WARNING
            self._logger.log(level, "%s has %d usable keys, and %d others", _URL, len(found), found.skipped)
        self.current = found
        self._times.succeeded(self._now())
