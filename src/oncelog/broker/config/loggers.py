"""The levels of this process's loggers: from the start, and as the resource BROKER_LOGGER (KIP-412).

A restart discards the changes of the resource.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from oncelog.broker.config.changes import Change, ConfigOperation
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.json_lines import json_line
from oncelog.protocol.errors import ErrorCode, ProtocolError

ROOT = "root"
PREFIX = "oncelog"
_PRESENT = (PREFIX, f"{PREFIX}.broker", f"{PREFIX}.log", f"{PREFIX}.net")
"""Loggers that are listed even if they have not logged anything yet."""

LEVELS: dict[str, int] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""Maps the names of Kafka's levels to Python's levels."""

LEVEL_VARIABLE = "ONCELOG_LOG_LEVEL"
"""The variable with the levels at the start of a process. `oncelog --log-level` sets it for processes it starts."""


def parse_levels(text: str) -> dict[str, int]:
    """Return the levels in `LEVEL` (of all loggers of oncelog) or `LOGGER=LEVEL`, separated by commas, by logger name.

    Raises ConfigError.
    """
    found = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, level = item.rpartition("=")
        if level.upper() not in LEVELS:
            raise ConfigError(f"{item!r} is not a log level; use {', '.join(LEVELS)}, or LOGGER=LEVEL")
        if name not in ("", ROOT, PREFIX) and not name.startswith(f"{PREFIX}."):
            raise ConfigError(f"{name!r} is not a logger of oncelog; its loggers are {PREFIX} and {PREFIX}.MODULE")
        found[name or PREFIX] = LEVELS[level.upper()]
    return found


def start_levels(environment: Mapping[str, str]) -> None:
    """Set the levels in LEVEL_VARIABLE. Raises ConfigError."""
    for name, level in parse_levels(environment.get(LEVEL_VARIABLE, "")).items():
        _logger(name).setLevel(level)


def levels() -> dict[str, str]:
    """Return the effective level of each logger, by logger name."""
    known = {name for name in logging.root.manager.loggerDict if name.partition(".")[0] == PREFIX}
    names = [ROOT, *sorted(known.union(_PRESENT))]
    return {name: _named(_logger(name).getEffectiveLevel()) for name in names}


def check(changes: Sequence[Change]) -> None:
    """Check the changes. Raises INVALID_CONFIG for an unknown logger or level, INVALID_REQUEST for other errors."""
    present = levels()
    for change in changes:
        if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            message = (
                f"{ConfigOperation(change.operation).name} operation is not allowed for the BROKER_LOGGER resource"
            )
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
        if change.name not in present:
            raise ProtocolError(ErrorCode.INVALID_CONFIG, f"Logger {change.name} does not exist!")
        if change.operation == ConfigOperation.DELETE:
            if change.name == ROOT:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "the level of the root logger cannot be removed")
        elif change.value not in LEVELS:
            message = (
                f"Cannot set the log level of {change.name} to {change.value} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(LEVELS))}"
            )
            raise ProtocolError(ErrorCode.INVALID_CONFIG, message)


def apply(changes: Sequence[Change]) -> list[str]:
    """Apply changes that are already checked. Return a sentence for each, for the log."""
    said = []
    for change in changes:
        level = LEVELS[change.value or ""] if change.operation == ConfigOperation.SET else logging.NOTSET
        _logger(change.name).setLevel(level)
        said.append(f"the log level of {change.name} is now {_named(_logger(change.name).getEffectiveLevel())}")
    return said


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _named(level: int) -> str:
    """Return the name of Kafka's level that is equal or next below."""
    return next((name for name, number in LEVELS.items() if level >= number), "TRACE")


class LineFormatter(logging.Formatter):
    """Write the message of a record on one line, with escapes for control characters.

    A name of a user, a client or a topic may have them. It must not forge a line or change the terminal. A traceback
    still has its own lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is that of `logging`
        """Return the line of a record without its traceback."""
        message = record.message
        if not message.isprintable():
            record.message = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Write a record as one JSON object on one line, with its traceback in `exception`."""

    def __init__(self, broker: int | None = None) -> None:
        """Create a formatter. `broker` is the id in each object, None: there is none."""
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        """Return the object."""
        parts = [self.formatException(record.exc_info)] if record.exc_info else [record.exc_text or ""]
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return json_line(
            record.getMessage(),
            level=record.levelname,
            logger=record.name,
            at=datetime.fromtimestamp(record.created, UTC),
            broker=self._broker,
            exception="\n".join(filter(None, parts)),
        )
