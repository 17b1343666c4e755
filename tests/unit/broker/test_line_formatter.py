"""No name in a log line forges another line."""

from __future__ import annotations

import logging
import sys

from oncelog.broker.config.loggers import LineFormatter


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
