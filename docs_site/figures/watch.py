"""Collect the log lines of the client and the brokers in a run, and the requests that pass the fault proxy."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from oncelog.broker.config.loggers import LEVEL_VARIABLE
from oncelog.faults.proxy import FaultProxy
from oncelog.faults.requests import Request

ASSIGNED = re.compile(r"producer id (\d+), epoch (\d+): assigned")
"""Matches the line in which the client logs its producer id and epoch."""
_BROKERS_LINE = re.compile(r"^(\S+ \S+) \[Broker id=(\d+)\] DEBUG (\S+): (.*)$", re.MULTILINE)


class Line(NamedTuple):
    """A log line. `at` is in seconds since the epoch, `broker` the id of the broker, or 0 for the client."""

    at: float
    broker: int
    logger: str
    text: str


class Sent(NamedTuple):
    """A request, and when it reached the proxy."""

    at: float
    request: Request


def lines_of(log: str) -> list[Line]:
    """Return the DEBUG lines in the log of one or several brokers. A line may be up to 1 ms older than its `at`."""
    return [
        Line(datetime.fromisoformat(stamp).timestamp() + 0.001, int(broker), logger, text)
        for stamp, broker, logger, text in _BROKERS_LINE.findall(log)
    ]


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[Line] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(Line(record.created, 0, record.name, record.getMessage()))


@contextmanager
def clients_lines() -> Iterator[list[Line]]:
    """Within the block, collect the DEBUG lines of the clients in this process."""
    logger, collector = logging.getLogger("oncelog.client"), _Collector()
    before = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.DEBUG)
    try:
        yield collector.lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(before)


@contextmanager
def brokers_at_debug() -> Iterator[None]:
    """Within the block, start brokers at log level DEBUG."""
    before = os.environ.get(LEVEL_VARIABLE)
    os.environ[LEVEL_VARIABLE] = "DEBUG"
    try:
        yield
    finally:
        if before is None:
            del os.environ[LEVEL_VARIABLE]
        else:
            os.environ[LEVEL_VARIABLE] = before


def requests_through(faults: FaultProxy) -> list[Sent]:
    """Return a list to which the proxy adds each request from now on."""
    found: list[Sent] = []

    def note(request: Request) -> None:
        found.append(Sent(time.time(), request))

    faults.rule = note
    return found
