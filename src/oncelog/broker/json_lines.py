"""Log lines as JSON: one object a line, for programs that collect logs.

The text is ASCII, with escapes for all other characters. So no name in a message can end the line, change a terminal,
or have bytes that are not UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

FORMAT_VARIABLE = "ONCELOG_LOG_FORMAT"
"""The variable with the format of a process's lines. `--log-format` sets it for processes that the command starts."""
TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
OWN_PREFIX = "oncelog: "
"""Begins a line of a command, which no logger writes."""
OWN_LOGGER = "oncelog"


def wants_json(environment: Mapping[str, str]) -> bool:
    """Return whether lines are objects. The command line has checked the variable."""
    return environment.get(FORMAT_VARIABLE) == JSON


def json_line(
    message: str,
    *,
    level: str,
    logger: str,
    at: datetime,
    broker: int | None = None,
    exception: str = "",
) -> str:
    """Return one object without a line break at its end. `exception` is a traceback. `at` has a time zone."""
    moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found: dict[str, object] = {"timestamp": moment, "level": level, "logger": logger, "message": message}
    if broker is not None:
        found["broker"] = broker
    if exception:
        found["exception"] = exception
    return json.dumps(found)


def own_line(line: str, environment: Mapping[str, str], *, level: str = "INFO", broker: int | None = None) -> str:
    """Return a line that no logger writes, in the format that the environment chooses. As text, it is unchanged."""
    if not wants_json(environment):
        return line
    message = line.removeprefix(OWN_PREFIX).strip()
    return json_line(message, level=level, logger=OWN_LOGGER, at=datetime.now(UTC), broker=broker)
