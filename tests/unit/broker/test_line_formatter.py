"""No name in a log line forges another line."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from oncelog.broker.config.loggers import JsonFormatter, LineFormatter
from oncelog.broker.json_lines import own_line


def record(message: str, *arguments: object, failed: bool = False) -> logging.LogRecord:
    info = None
    if failed:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            info = sys.exc_info()
    return logging.LogRecord("oncelog.broker", logging.INFO, __file__, 1, message, arguments, info)


def test_control_characters_are_escaped() -> None:
    formatter = LineFormatter("%(levelname)s %(name)s: %(message)s")
    user = "User:eve\r\nINFO oncelog.broker: granted \x1b[2J\u2028 \x00"
    shown = "INFO oncelog.broker: denied to User:eve\\r\\nINFO oncelog.broker: granted \\x1b[2J\\u2028 \\x00"
    assert formatter.format(record("denied to %s", user)) == shown
    assert formatter.format(record("Äpfel at %s", "/tmp/ü")) == "INFO oncelog.broker: Äpfel at /tmp/ü"


def test_traceback_keeps_its_lines() -> None:
    lines = LineFormatter("%(message)s").format(record("failed", failed=True)).splitlines()
    assert lines[0] == "failed"
    assert lines[1].startswith("Traceback")
    assert lines[-2:] == ["ValueError: two", "lines"]


@pytest.mark.parametrize("failed", [False, True])
def test_record_is_one_object_on_one_line(failed: bool) -> None:
    user = 'eve"}\r\n{"level": "INFO"}\x1b[2J\u2028\x85\x7f\udc80'
    text = JsonFormatter(2).format(record("denied to %s", user, failed=failed))
    assert text.isascii()
    assert text.isprintable()
    found = json.loads(text)
    exception = found.pop("exception", "")
    timestamp = found.pop("timestamp")
    assert timestamp.endswith("Z")
    assert found == {"level": "INFO", "logger": "oncelog.broker", "message": f"denied to {user}", "broker": 2}
    assert exception.splitlines()[:1] == (["Traceback (most recent call last):"] if failed else [])
    assert exception.endswith("ValueError: two\nlines" if failed else "")


def test_line_of_a_command_has_the_chosen_format() -> None:
    line = "oncelog: broker 1 ended"
    assert own_line(line, {}) == own_line(line, {"ONCELOG_LOG_FORMAT": "text"}) == line
    found = json.loads(own_line(line, {"ONCELOG_LOG_FORMAT": "json"}, level="ERROR"))
    del found["timestamp"]
    assert found == {"level": "ERROR", "logger": "oncelog", "message": "broker 1 ended"}
