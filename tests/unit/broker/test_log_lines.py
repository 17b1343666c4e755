"""Brokers whose stderr nobody reads: log lines are kept up to a limit, and no broker waits for them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelog.broker.log_lines import LineWriter
from oncelog.net.connection import connect
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from support.processes import accepts, children, wait_until


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Yield both ends of a pipe that takes no more bytes until they are read."""
    reader, writer = os.pipe()
    filler = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)  # its flags are its own
    try:
        try:
            while True:
                os.write(filler, b"-" * 512)
        except BlockingIOError:
            yield reader, writer
    finally:
        for fd in (filler, writer, reader):
            os.close(fd)


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


def test_brokers_serve_and_are_restarted_while_nobody_reads_stderr(tmp_path: Path) -> None:
    async def create(address: str, name: str) -> int:
        host, _, port = address.rpartition(":")
        client = await connect(host, int(port), request_timeout_ms=30_000, connect_timeout_ms=20_000)
        topic = CreatableTopic(name=name, num_partitions=3, replication_factor=-1)
        response: CreateTopicsResponse = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
        client.close()
        return response.topics[0].error_code

    command = [
        str(Path(sys.executable).with_name("oncelog")), "up", "--brokers", "3", "--port", "0",
        "--data", str(tmp_path / "data"),
    ]  # fmt: skip
    with full_pipe() as (_, writer), (tmp_path / "out").open("wb") as out:
        supervisor = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=writer, start_new_session=True
        )
        try:
            wait_until(lambda: (tmp_path / "out").read_text().endswith("\n"), "the brokers are ready")
            addresses = (tmp_path / "out").read_text().strip().removeprefix("BROKERS=").split(",")
            assert [asyncio.run(create(address, f"t{n}")) for n, address in enumerate(addresses)] == [0, 0, 0]
            before = set(children(supervisor.pid))
            victim = int((tmp_path / "data" / "broker-2" / "broker.pid").read_text())
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: set(children(supervisor.pid)) - before, "the broker is restarted")
            wait_until(lambda: accepts(addresses[1]), "the broker accepts connections")
            supervisor.terminate()
            assert supervisor.wait(60) == 0
        finally:
            os.killpg(supervisor.pid, signal.SIGKILL) if supervisor.poll() is None else None
            supervisor.wait()
