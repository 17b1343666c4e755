"""Log lines whose reader hangs: they are kept up to a limit, and the broker does not wait."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from oncelog.broker.log_lines import LineWriter
from support.processes import full_pipe


def read_all(reader: int) -> str:
    """Return what the pipe has now."""
    os.set_blocking(reader, False)
    parts = []
    try:
        while part := os.read(reader, 65536):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts).decode()


def test_lines_beyond_the_limit_are_counted_and_reported_once() -> None:
    with full_pipe() as (reader, writer):
        lines = LineWriter(writer, most_bytes=1000)
        logger = logging.Logger("test")
        logger.addHandler(logging.StreamHandler(lines))
        for number in range(500):
            logger.info("line %03d", number)  # 9 bytes
        assert lines.waiting_bytes <= 1000
        assert not lines.drain(0.0)
        found = read_all(reader)
        while lines.waiting_bytes:
            found += read_all(reader)
        logger.info("the last line")
        assert lines.drain(10)
        found = (found + read_all(reader)).lstrip("-")
    kept = found.count("line 0") + found.count("line 1")
    assert 100 <= kept < 500
    reports = [line for line in found.splitlines() if not line.startswith("line ")]
    assert reports == [f"oncelog: dropped {500 - kept} log lines, because stderr was not read in time", "the last line"]
    assert [line for line in found.splitlines() if line.startswith("line ")] == [f"line {n:03}" for n in range(kept)]


def test_stderr_that_cannot_be_written_loses_lines_only() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lines = LineWriter(writer)
    lines.write("lost\n")
    assert lines.drain(10)
    os.close(writer)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.write(writer, b"")


def test_nonblocking_stderr_gets_all_lines() -> None:
    with full_pipe() as (reader, writer):
        os.set_blocking(writer, False)
        lines = LineWriter(writer)
        lines.write("kept\n")
        found = ""
        while lines.waiting_bytes:
            found += read_all(reader)
        assert (found + read_all(reader)).lstrip("-") == "kept\n"
