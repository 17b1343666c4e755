"""Commands that read what a transaction has not committed yet, or what no coordinator has created yet."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from oncelog import Consumer, Producer
from oncelog.testing import Broker
from support.command_line import ONCELOG, Tool
from support.processes import ManagedProcess, wait_until
from support.servers import Server


@pytest.mark.parametrize("command", ["group", "txn"])
def test_follow_waits_until_a_coordinator_creates_its_topic(command: str, tmp_path: Path) -> None:
    with Broker(topics=["orders"]) as broker:
        address = broker.bootstrap_servers
        arguments = [ONCELOG, command, "log", "mine", "--follow"]
        process = ManagedProcess(arguments, tmp_path, "log", {**os.environ, "ONCELOG_BROKERS": address})
        try:
            topic = {"group": "__consumer_offsets", "txn": "__transaction_state"}[command]
            remark = f"oncelog: {topic} does not exist yet; waiting until a coordinator creates it\n"
            wait_until(lambda: process.stderr_path.read_text() == remark, "the command waits", timeout=30)
            with Producer(address, transactional_id="mine") as producer, producer.transaction():
                producer.send("orders", b"x")
            with Consumer(address, group_id="mine") as consumer:
                consumer.commit({("orders", 0): 1})
            wait_until(lambda: "mine" in process.stdout_path.read_text(), "the command prints the record")
            assert process.stderr_path.read_text() == remark
        finally:
            process.kill()


def test_commands_say_what_read_committed_does_not_show(server: Server) -> None:
    tool, name = Tool(server.bootstrap), f"open-{uuid.uuid4().hex[:8]}"
    tool("topic", "create", name, "-p", "2")
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"x", partition=1)
        producer.send_offsets(name, {(name, 0): 7})
        producer.flush()
        wait_until(lambda: tool.run("group", "log", name).returncode == 0, "the coordinator has the offset")
        assert tool.fails(1, "group", "log", name, "--read-committed") == (
            f"oncelog: __consumer_offsets has records of '{name}', but only of transactions that are open or aborted, "
            "or behind an open one; without --read-committed, they are printed\n"
        )
        assert "has no offset of a group" in tool.fails(1, "group", "log", f"{name}-other", "--read-committed")
        for options in ((), ("--group", f"{name}-reader")):
            done = tool.run("topic", "consume", name, "-e", "--read-committed", *options)
            assert (done.returncode, done.stdout) == (0, "")
            assert done.stderr.startswith(
                f"oncelog: {name}-1: read_committed consumers wait at offset 0 for the transaction of '{name}'"
            )
        assert tool("topic", "consume", name, "-e", "--read-committed", "-p", "0") == ""
        producer.abort_transaction()
    assert "only of transactions that are open or aborted" in tool.fails(1, "group", "log", name, "--read-committed")
