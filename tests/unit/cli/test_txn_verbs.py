"""`oncelog txn` and `oncelog cluster feature` against a running broker, ours or Apache Kafka's."""

from __future__ import annotations

import json
import re
import uuid

import pytest

from support.command_line import Tool
from support.fixtures import module_server
from support.servers import Server
from support.transactions import LONG_AGO, ended, until_state, write_old, written
from support.wire import Wire, batch, until

__all__ = ["module_server"]

SETTINGS = {"transaction.partition.verification.enable": "false"}
"""Settings of the module's own server. Without the verification of KIP-890, a transaction can hang."""
LONG_AGO_TEXT = "2020-09-13T12:26:40+00:00"


@pytest.fixture
def name(wire: Wire) -> str:
    """Create a topic of two partitions, and return its name, also used as a transactional id."""
    made = f"cli-{uuid.uuid4().hex[:8]}"
    wire.create_topic(made, 2)
    return made


@pytest.fixture
def name_on_own_server(module_server: Server) -> str:
    """Return the same on the module's own server."""
    made = f"cli-{uuid.uuid4().hex[:8]}"
    with Wire(module_server.bootstrap) as connection:
        connection.create_topic(made, 2)
    return made


def test_list_filters(tool: Tool, wire: Wire, name: str) -> None:
    who = wire.session(name)
    written(wire, name, who, name, [b"x"])
    row = {"transactional_id": name, "coordinator": 1, "producer_id": who.producer_id, "state": "Ongoing"}
    assert row in tool.json("txn", "list", "--all")
    assert row in tool.json("txn", "list", "--state", "Ongoing", "--duration-ms", "0")
    assert tool.json("txn", "list", "--producer-id", str(who.producer_id)) == [row]
    assert tool.json("txn", "list", "--pattern", name[:-1] + ".") == [row]
    assert tool.json("txn", "list", "--pattern", name[:-1]) == []
    assert tool.json("txn", "list", "--pattern", name, "--duration-ms", "3600000") == []
    lines = tool("txn", "list", "--pattern", name).splitlines()
    assert lines[0].split() == ["TRANSACTIONAL", "ID", "COORDINATOR", "PRODUCER", "ID", "STATE"]
    assert lines[1].split() == [name, "1", str(who.producer_id), "Ongoing"]
    ended(wire, name, who)


def test_invalid_pattern_is_reported(tool: Tool) -> None:
    assert "(INVALID_REGULAR_EXPRESSION)" in tool.fails(1, "txn", "list", "--pattern", "(a")
    assert "(INVALID_REGULAR_EXPRESSION)" in tool.fails(1, "txn", "list", "--pattern", "(?=a)")


def test_describe_has_the_columns_of_kafkas_tool(tool: Tool, wire: Wire, name: str) -> None:
    who = wire.session(name, timeout_ms=50_000)
    idle = tool.json("txn", "describe", name)
    assert (idle["state"], idle["started_ms"], idle["duration_ms"], idle["partitions"]) == ("Empty", None, None, [])
    written(wire, name, who, name, [b"x"], partition=1)
    found = tool.json("txn", "describe", name)
    assert found["duration_ms"] >= 0
    assert found | {"started_ms": 0, "duration_ms": 0} == {
        "coordinator": 1,
        "transactional_id": name,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "state": "Ongoing",
        "timeout_ms": 50_000,
        "started_ms": 0,
        "duration_ms": 0,
        "partitions": [f"{name}-1"],
        "home_partition": found["home_partition"],
    }
    entries = [json.loads(line) for line in tool("txn", "log", name, "--format", "json").splitlines()]
    assert {f"__transaction_state-{entry['partition']}" for entry in entries} == {found["home_partition"]}
    shown = tool("txn", "describe", name).splitlines()[1].split()
    assert f"{name}-1" in shown
    assert any(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", text) for text in shown)
    ended(wire, name, who)


def test_producers(tool: Tool, wire: Wire, name: str) -> None:
    assert tool.json("txn", "producers", name, "-p", "0") == []
    who = wire.session(name)
    written(wire, name, who, name, [b"x", b"y"])
    (row,) = tool.json("txn", "producers", name, "-p", "0")
    assert row.pop("last_timestamp") > 0
    assert row == {
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "latest_coordinator_epoch": -1,
        "last_sequence": 1,
        "current_transaction_start_offset": 0,
    }
    assert tool.json("txn", "producers", name, "-p", "0", "--broker", "1")[0]["last_sequence"] == 1
    ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    (row,) = tool.json("txn", "producers", name, "-p", "0")
    assert (row["current_transaction_start_offset"], row["latest_coordinator_epoch"]) == (None, 0)
    assert tool("txn", "producers", name, "-p", "0").splitlines()[1].split()[-1] == "-"


def test_producers_with_their_batches(tool: Tool, wire: Wire, server: Server, name: str) -> None:
    who = wire.session()
    for sequence in (0, 2):
        wire.produce(name, batch([b"x", b"y"], who, sequence, timestamp=LONG_AGO))
    wire.produce(name, batch([b"x", b"y"], who, 2, timestamp=LONG_AGO))
    wire.produce(name, batch([b"x"], who, 9))
    if server.name != "oncelog":
        refused = tool.fails(1, "txn", "producers", name, "-p", "0", "--batches")
        assert "only oncelog's broker does" in refused
        return
    found = tool.json("txn", "producers", name, "-p", "0", "--batches")
    (row,) = found.pop("producers")
    assert found == {"duplicate_batches": 1, "sequence_gaps": 1, "stale_sequences": 0}
    assert (row["producer_id"], row["last_sequence"]) == (who.producer_id, 3)
    assert row["batches"] == [
        {
            "first_sequence": first,
            "last_sequence": first + 1,
            "first_offset": first,
            "last_offset": first + 1,
            "timestamp": LONG_AGO,
        }
        for first in (0, 2)
    ]
    shown = tool("txn", "producers", name, "-p", "0", "--batches", "--broker", "1").split("\n\n")
    assert [part.splitlines()[1].split()[0] for part in shown] == [str(who.producer_id), str(who.producer_id), "1"]
    assert shown[1].splitlines()[2].split() == [str(who.producer_id), "0", "2", "3", "2", "3", LONG_AGO_TEXT]
    assert shown[2].split() == ["DUPLICATE", "BATCHES", "SEQUENCE", "GAPS", "STALE", "SEQUENCES", "1", "1", "0"]


def test_producers_are_shown_if_a_record_has_a_time_in_no_year(
    tool: Tool, wire: Wire, server: Server, name: str
) -> None:
    topic, when = f"{name}-times", 2**62
    wire.create_topic(topic, message_timestamp_after_max_ms=str(2**63 - 1))
    wire.produce(topic, batch([b"a"], wire.session(), 0, timestamp=when))
    assert f"{when} ms" in tool("txn", "producers", topic, "-p", "0")
    if server.name == "oncelog":
        assert tool("txn", "producers", topic, "-p", "0", "--batches").count(f"{when} ms") == 2


def test_old_transaction_that_its_coordinator_knows_is_not_hanging(tool: Tool, wire: Wire, name: str) -> None:
    who = write_old(wire, name, 12)
    assert tool.json("txn", "find-hanging", "--topic", name) == []
    refused = tool.fails(2, "txn", "abort", name, "-p", "0", "--start-offset", "0")
    assert f"is not hanging: the coordinator of '{name}' knows of it, and its state is Ongoing" in refused
    ended(wire, name, who, commit=False)


def test_hanging_transaction_is_found_and_aborted(module_server: Server, name_on_own_server: str) -> None:
    tool, name = Tool(module_server.bootstrap), name_on_own_server
    with Wire(module_server.bootstrap) as wire:
        who = write_old(wire, name, 11)
        row = {
            "topic": name,
            "partition": 0,
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "coordinator_epoch": -1,
            "start_offset": 0,
            "last_timestamp": LONG_AGO,
        }
        for where in (["--topic", name], ["--topic", name, "-p", "0"], ["--broker", "1"]):
            (found,) = tool.json("txn", "find-hanging", *where)
            assert found.pop("duration_min") > 60
            assert found == row
        assert tool.json("txn", "find-hanging", "--topic", name, "-p", "1") == []
        assert tool.json("txn", "find-hanging", "--topic", name, "--max-transaction-timeout", "999999999") == []
        assert tool("txn", "find-hanging", "--topic", name).splitlines()[1].split()[:2] == [name, "0"]
        assert tool("topic", "describe", name).splitlines()[-1] == (
            f"{name}-0: read_committed consumers wait at offset 0 for a transaction of producer id "
            f"{who.producer_id}, which no coordinator shows; `oncelog txn find-hanging --topic {name}` "
            "tells whether it hangs"
        )
        assert "no open transaction that starts at offset 7" in tool.fails(
            1, "txn", "abort", name, "-p", "0", "--start-offset", "7"
        )
        done = tool.json("txn", "abort", name, "-p", "0", "--start-offset", "0")
        assert done == {
            "topic": name,
            "partition": 0,
            "producer_id": who.producer_id,
            "producer_epoch": who.epoch,
            "coordinator_epoch": 0,
            "aborted": True,
        }
        assert wire.offset(name, committed=True) == wire.offset(name) == 2
        assert tool.json("txn", "find-hanging", "--topic", name) == []


def test_abort_by_producer(module_server: Server, name_on_own_server: str) -> None:
    tool, name = Tool(module_server.bootstrap), name_on_own_server
    with Wire(module_server.bootstrap) as wire:
        wire.session(name)
        who = write_old(wire, name, 11)
        named = ("txn", "abort", name, "-p", "0", "--producer-id", str(who.producer_id), "--coordinator-epoch", "-1")
        assert "--producer-id needs --producer-epoch" in tool.fails(2, *named)
        stale = tool.fails(1, *named, "--producer-epoch", str(who.epoch - 1))
        assert "(INVALID_PRODUCER_EPOCH)" in stale
        assert tool.json(*named, "--producer-epoch", str(who.epoch))["coordinator_epoch"] == 0
        assert wire.offset(name, committed=True) == wire.offset(name)


def test_invalid_input_is_reported_in_one_sentence(tool: Tool, name: str) -> None:
    assert "give --topic or --broker to limit the search" in tool.fails(2, "txn", "find-hanging")
    assert "--partition needs --topic" in tool.fails(2, "txn", "find-hanging", "--broker", "1", "-p", "0")
    assert "broker 9 does not exist" in tool.fails(2, "txn", "find-hanging", "--broker", "9")
    assert "broker 9 does not exist" in tool.fails(2, "txn", "producers", name, "-p", "0", "--broker", "9")
    for verb in (["producers"], ["find-hanging", "--topic"]):
        assert "partitions 0 to 1, not 7" in tool.fails(1, "txn", *verb, name, "-p", "7")
        message = tool.fails(1, "txn", *verb, "no-such-topic", "-p", "0")
        assert "no-such-topic" in message
        assert message.count("\n") == 1
    assert "name the transaction by --start-offset, or by" in tool.fails(2, "txn", "abort", name, "-p", "0")
    assert "is not a whole number" in tool.fails(2, "txn", "abort", name, "-p", "x")


# -- features ----------------------------------------------------------------------------------------------------------


def test_features_are_shown_and_changed(module_server: Server) -> None:
    tool = Tool(module_server.bootstrap)

    def level() -> int:
        rows = {row["feature"]: row for row in tool.json("cluster", "feature")}
        row = rows["transaction.version"]
        assert (row["supported_min"], row["supported_max"]) == (0, 2)
        found: int = row["level"]
        return found

    assert level() == 2
    assert "without setting the upgrade type" in tool.fails(1, "cluster", "feature", "transaction.version=1")
    change = ("cluster", "feature", "transaction.version=1", "--downgrade")
    row = {"feature": "transaction.version", "level": 1}
    assert tool.json(*change, "--dry-run") == [row | {"changed": False}]
    assert level() == 2
    assert tool.json(*change) == [row | {"changed": True}]
    until(level, lambda found: found == 1, "the level is 1")
    done = tool.run("cluster", "feature", "transaction.version=1")
    assert (done.returncode, done.stdout.split()[-1]) == (0, "no")
    assert done.stderr == "oncelog: transaction.version already had level 1\n"
    assert "transaction.version=1" in tool("cluster", "describe").splitlines()[1].split()
    assert "only supports versions" in tool.fails(1, "cluster", "feature", "transaction.version=3")
    assert "a change is NAME=LEVEL" in tool.fails(2, "cluster", "feature", "transaction.version")
    assert "--downgrade and --unsafe-downgrade cannot be used together" in tool.fails(2, *change, "--unsafe-downgrade")
    assert "name a feature and its level" in tool.fails(2, "cluster", "feature", "--dry-run")


@pytest.mark.parametrize(("partitions", "has"), [(1, "only partition 0"), (2, "partitions 0 to 1")])
@pytest.mark.parametrize(
    "command", ["txn producers {} -p 5", "txn abort {} -p 5 --start-offset 0", "txn find-hanging --topic {} -p 5"]
)
def test_unknown_partition_is_not_an_unknown_topic(
    tool: Tool, wire: Wire, partitions: int, has: str, command: str
) -> None:
    topic = f"cli-{uuid.uuid4().hex[:8]}"
    wire.create_topic(topic, partitions)
    assert tool.fails(1, *command.format(topic).split()) == f"oncelog: topic '{topic}' has {has}, not 5\n"
