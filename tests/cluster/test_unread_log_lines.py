"""Three brokers whose log lines are not read: no broker waits for the reader, and neither does `oncelog up`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from oncelog.net.connection import connect
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from support.processes import accepts, children, full_pipe, wait_until


def test_brokers_serve_and_are_restarted_while_stderr_is_not_read(tmp_path: Path) -> None:
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
            if supervisor.poll() is None:
                os.killpg(supervisor.pid, signal.SIGKILL)
            supervisor.wait()
