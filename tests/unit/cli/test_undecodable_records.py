"""`oncelog group log` and `txn log`: records that they cannot decode, names with control characters, no topic yet."""

from __future__ import annotations

import json
import time

import pytest

from oncelog import Consumer, Producer
from oncelog.coordinator.partitioning import partition_for
from oncelog.protocol.records import Record, build_batch
from oncelog.testing import Broker
from support.command_line import Tool
from support.processes import wait_until
from support.wire import Wire

GARBAGE = {"__consumer_offsets": b"\x00\x01\xff", "__transaction_state": b"\x00\x00\x7f\xff"}
"""Keys whose versions are known, but whose strings are too short."""


@pytest.mark.parametrize("command", [("group", "log"), ("txn", "log"), ("txn", "log", "--format", "json")])
def test_record_that_cannot_be_decoded_is_named(command: tuple[str, ...]) -> None:
    topic = "__consumer_offsets" if command[0] == "group" else "__transaction_state"
    with Broker(topics=["orders"]) as broker:
        with Producer(broker.bootstrap_servers, transactional_id="mine") as producer, producer.transaction():
            producer.send("orders", b"x")
        with Consumer(broker.bootstrap_servers, group_id="mine") as consumer:
            consumer.assign([("orders", 0)])
            consumer.commit({("orders", 0): 1})
        with Wire(broker.bootstrap_servers, "__admin_client") as wire:
            now = int(time.time() * 1000)
            batch = build_batch([Record(0, now, GARBAGE[topic], b"\x00\x01")])
            answer = wire.produce(topic, batch, partition=partition_for("mine", 50))
            assert answer.error_code == 0
            producer = Producer(broker.bootstrap_servers, transactional_id="mine")
            with producer, producer.transaction():
                producer.send("orders", b"y")
        done = Tool(broker.bootstrap_servers).run(*command, "mine")
    assert done.returncode == 0, done
    assert done.stderr.startswith(
        f"oncelog: cannot decode the record of {topic}-{partition_for('mine', 50)} at offset "
    )
    assert len(done.stderr.splitlines()) == 1
    assert len(done.stdout.splitlines()) >= (1 if command[0] == "group" else 8)


@pytest.mark.parametrize(
    ("command", "topic", "key"),
    [
        ("group", "__consumer_offsets", b"\x00\x01\x00\x04mine\x00\x01t\x00\x00\x00\x00"),
        ("txn", "__transaction_state", b"\x00\x00\x00\x04mine"),
    ],
)
def test_record_of_a_newer_broker_is_named(command: str, topic: str, key: bytes) -> None:
    with Broker({"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}) as broker:
        with Wire(broker.bootstrap_servers, "__admin_client") as wire:
            wire.find_coordinator("mine", int(command == "txn"))
            now = int(time.time() * 1000)
            written = [Record(0, now, key, b"\x00\x63newer"), Record(1, now, b"\x00\x63kind", b"\x00\x00")]
            wait_until(lambda: not wire.produce(topic, build_batch(written)).error_code, "the records are written")
        done = Tool(broker.bootstrap_servers).run(command, "log")
    said = f"oncelog: cannot decode the record of {topic}-0 at offset 0: version 99 of its value is not known here\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", said)


HOSTILE = "a\x1b[2J\nforged\x9b\u202e"
ESCAPED = r"a\u001b[2J\nforged\u009b\u202e"


def test_name_cannot_forge_lines_or_change_the_terminal() -> None:
    with Broker(topics=["orders"]) as broker:
        with Producer(broker.bootstrap_servers, transactional_id=HOSTILE) as producer, producer.transaction():
            producer.send("orders", b"x")
        with Consumer(broker.bootstrap_servers, group_id=HOSTILE) as consumer:
            consumer.assign([("orders", 0)])
            consumer.commit({("orders", 0): 1})
        tool = Tool(broker.bootstrap_servers)
        for command in ("group log", "group log --format offset-metadata", "group list", "txn log", "txn list --all"):
            lines = tool(*command.split()).split("\n")
            assert all(map(str.isprintable, lines)), command
            assert any(ESCAPED in line for line in lines), command
        (row,) = tool.json("group", "list")
        assert row["group"] == HOSTILE
        assert json.loads(tool("group", "log"))["key"]["data"]["group"] == HOSTILE
