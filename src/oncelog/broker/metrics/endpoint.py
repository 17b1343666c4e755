"""Serve the metrics of one broker, and whether it lives and is ready, over HTTP."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator

from msgspec import json

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.metrics.collect import Collector
from oncelog.broker.metrics.exposition import CONTENT_TYPE
from oncelog.broker.metrics.health import Health
from oncelog.broker.metrics.on_demand import Questions
from oncelog.net.http_server import Answer, HttpServer, one_part, plain
from oncelog.protocol.addresses import bracketed

JSON = "application/json"
MOST_SCRAPES = 4
"""Scrapes at a time. Further ones are refused. Prometheus repeats them at its next interval."""


class MetricsEndpoint:
    """An HTTP server with `/metrics`, `/live` and `/ready`."""

    def __init__(self, collector: Collector, questions: Questions, health: Health, logger: logging.Logger) -> None:
        self._collector = collector
        self._questions = questions
        self._health = health
        self._logger = logger
        self._server = HttpServer({"/metrics": self._metrics, "/live": self._live, "/ready": self._ready})
        self._scrapes = 0
        self.port = 0
        """The port that is bound, 0 before `start`."""

    async def start(self, host: str, port: int) -> None:
        """Bind the address. Port 0 is any free one. Raises ConfigError if that fails."""
        self._collector.watch.start()
        try:
            self.port = await self._server.listen(host, port)
        except OSError as error:
            where = f"cannot listen on {bracketed(host)}:{port}"
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"metrics.port: {where}, because the port is in use; 0 is any free port") from error
            raise ConfigError(f"metrics.host: {where}: {error.strerror or error}") from error
        self._logger.info("serving metrics at http://%s:%d/metrics", bracketed(host), self.port)

    async def close(self) -> None:
        """Answer no more."""
        self._collector.watch.stop()
        await self._server.close()

    def _metrics(self) -> Answer:
        if self._scrapes >= MOST_SCRAPES:
            return plain(503, f"{MOST_SCRAPES} other scrapes are in progress; try again\n")
        return Answer(200, CONTENT_TYPE, self._parts())

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the metrics, and count this scrape until its end."""
        self._scrapes += 1
        try:
            async for part in self._encoded():
                yield part
        finally:
            self._scrapes -= 1

    async def _encoded(self) -> AsyncGenerator[bytes, None]:
        """Yield the metrics, and let the loop serve other requests after each part."""
        answers = await self._questions.ask()
        for part in self._collector.parts(answers):
            yield part.encode("utf-8", "replace")
            await asyncio.sleep(0)

    @staticmethod
    def _live() -> Answer:
        return plain(200, "alive\n")

    def _ready(self) -> Answer:
        missing = self._health.missing()
        text = json.encode({"ready": not missing, "missing": missing}).decode() + "\n"
        return Answer(503 if missing else 200, JSON, one_part(text))
