"""Every command of the command line against either server: its `--format json` output, and its errors."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oncelog import Consumer, Producer
from oncelog.log.producer_state import BatchMetadata, ProducerEntry
from oncelog.log.snapshot import encode_snapshot
from support.command_line import ONCELOG, Tool
from support.processes import wait_until
from support.servers import OncelogCluster, Server


def consumed(tool: Tool, topic: str, *options: str) -> list[str]:
    return tool("topic", "consume", topic, "-e", *options).split()


# -- topics ---------------------------------------------------------------------------------------------------


def test_topics(tool: Tool, name: str) -> None:
    made = tool.json("topic", "create", name, "-p", "2", "-r", "1", "-c", "flush.ms=7")
    assert made == {"name": name, "created": True, "partitions": 2, "replication_factor": 1}
    assert tool.json("topic", "create", name, "--if-not-exists") == {"name": name, "created": False}
    assert {"name": name, "partitions": 2, "replication_factor": 1, "internal": False} in tool.json("topic", "list")
    (found,) = tool.json("topic", "describe", name)
    assert (found["configs"], len(found["partitions"])) == ({"flush.ms": "7"}, 2)
    done = tool.json("topic", "alter", name, "-p", "3", "--config", "flush.ms=8", "--dry-run")
    assert (done["partitions"], done["altered"]) == (3, False)
    assert tool.json("topic", "alter", name, "--config", "flush.ms=8", "--unset", "retention.ms")["altered"]
    missing = tool.fails(1, "topic", "delete", name, f"{name}-missing", "--yes")
    assert f"topic '{name}-missing' does not exist; `oncelog topic list`" in missing
    wait_until(lambda: name not in {item["name"] for item in tool.json("topic", "list")}, "the other topic is deleted")


def test_unset_rejects_unknown_settings(tool: Tool, name: str) -> None:
    tool("topic", "create", name)
    said = tool.fails(1, "topic", "alter", name, "--unset", "retention.mss")
    assert said == f"oncelog: --unset retention.mss: topic '{name}' has no such setting; did you mean retention.ms?\n"
    assert "--unset nosuch: a broker has no such setting" in tool.fails(1, "cluster", "alter", "--unset", "nosuch")


def test_records_are_deleted(tool: Tool, name: str) -> None:
    tool("topic", "create", name, "-p", "2")
    tool("topic", "produce", name, "-p", "0", stdin="1\n2\n3\n")
    gone = tool.json("topic", "delete-records", name, "-p", "0", "--before", "2", "--yes")
    assert gone == [{"topic": name, "partition": 0, "start": 2}]
    assert consumed(tool, name) == ["3"]
    assert [item["start"] for item in tool.json("topic", "delete-records", name, "--all", "--yes")] == [3, 0]
    assert "give either --before OFFSET or --all" in tool.fails(2, "topic", "delete-records", name)
    assert "(OFFSET_OUT_OF_RANGE)" in tool.fails(
        1, "topic", "delete-records", name, "-p", "0", "--before", "9", "--yes"
    )
    assert "partitions 0 to 1, not 7" in tool.fails(1, "topic", "delete-records", name, "-p", "7", "--all", "--yes")


# -- produce and consume --------------------------------------------------------------------------------------


def test_auto_created_and_missing_topics_are_reported(tool: Tool, name: str) -> None:
    done = tool.run("topic", "produce", name, stdin="1\n")
    assert (done.returncode, done.stderr) == (0, f"oncelog: topic '{name}' did not exist; the broker has created it\n")
    assert tool.run("topic", "produce", name, stdin="2\n").stderr == ""
    for group in ([], ["--group", name]):
        said = tool.fails(1, "topic", "consume", f"{name}-x", *group, "-e")
        assert said.startswith(f"oncelog: topic '{name}-x'")
        assert said.count("\n") == 1


def test_bad_line_in_a_file_prevents_sending_the_others(tool: Tool, name: str, tmp_path: Path) -> None:
    tool("topic", "create", name)
    lines = tmp_path / "lines"
    lines.write_text("a:1\nb:2\nbroken\n")
    with lines.open() as file:
        command = [str(ONCELOG), "topic", "produce", name, "-K", ":"]
        done = subprocess.run(
            command, stdin=file, capture_output=True, text=True, env=tool.env, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "oncelog: line 3 has no key delimiter ':'; nothing was sent\n")
    assert consumed(tool, name) == []
    said = tool.fails(1, "topic", "produce", name, "-K", ":", stdin=lines.read_text())  # a pipe
    assert said == (
        "oncelog: line 3 has no key delimiter ':'; the 2 lines before it were sent; to send all or none, use "
        "--transactional-id\n"
    )
    assert consumed(tool, name) == ["1", "2"]


def test_all_formats_of_start_and_end_offsets(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name)
    with Producer(server.bootstrap) as producer:
        for number in range(6):
            producer.send(name, b"%d" % number, timestamp=1000 + number)
    everything = list("012345")
    assert consumed(tool, name) == consumed(tool, name, "-o", "beginning") == consumed(tool, name, "-o", "s@0")
    assert consumed(tool, name, "-o", "-2") == consumed(tool, name, "-o", "4") == ["4", "5"]
    assert consumed(tool, name, "-o", "s@1001", "-o", "e@1004") == ["1", "2", "3"]
    assert tool("topic", "consume", name, "-o", "e@1002").split() == ["0", "1"]  # -o with an end stops there
    assert consumed(tool, name, "-o", "e@9999") == everything
    assert consumed(tool, name, "-o", "6") == consumed(tool, name, "-o", "end") == []
    said = tool.fails(1, "topic", "consume", name, "-o", "9999", "-e")
    assert f"offset 9999 does not exist yet: {name}-0 ends at 6 (OFFSET_OUT_OF_RANGE)" in said
    for wrong in (["-o", "s@-1"], ["-o", "1", "-o", "2"], ["-o", "stored"], ["--group", "g", "-o", "e@1"]):
        assert "Error: " in tool.fails(2, "topic", "consume", name, *wrong)


def test_group_has_no_lag_after_a_transaction(tool: Tool, name: str) -> None:
    tool("topic", "create", name)
    tool("topic", "produce", name, "--transactional-id", name, stdin="1\n2\n")
    assert consumed(tool, name, "--group", name, "-o", "stored") == ["1", "2"]
    (offset,) = tool.json("group", "describe", name)["offsets"]
    assert (offset["committed"], offset["end"], offset["lag"]) == (3, 3, 0)


# -- groups ---------------------------------------------------------------------------------------------------


def test_groups(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name)
    tool("topic", "produce", name, stdin="1\n2\n3\n")
    assert consumed(tool, name, "--group", name, "-c", "2") == ["1", "2"]
    row = {"group": name, "coordinator": 1, "type": "Classic", "protocol": "consumer", "state": "Empty"}
    assert row in tool.json("group", "list", "--state", "empty", "--type", "classic")
    assert row not in tool.json("group", "list", "--state", "Stable")
    assert "unknown group state 'Bogus'" in tool.fails(2, "group", "list", "--state", "Bogus")
    assert "did you mean Classic?" in tool.fails(2, "group", "list", "--type", "Clasic")
    shown = tool.json("group", "describe", name)
    assert {key: shown[key] for key in ("type", "state", "members")} == {
        "type": "Classic",
        "state": "Empty",
        "members": [],
    }
    (step,) = tool.json("group", "seek", name, "--to-earliest", "--execute")
    assert (step["committed"], step["target"]) == (2, 0)
    last = json.loads(tool("group", "log", name).splitlines()[-1])
    assert last["value"]["data"]["offset"] == 0
    assert tool.json("group", "delete", name, "--yes") == [{"group": name, "deleted": "all"}]
    for words in (["describe"], ["log"], ["log", "--groups"]):
        said = tool.fails(1, "group", *words, f"{name}-missing")
        assert re.search(f"'{name}-missing'.*; `oncelog group list` lists all groups", said)


def test_consume_to_the_end_stops_if_other_members_have_all_partitions(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name)
    with Consumer(server.bootstrap, group_id=name, client_id="a") as member, ThreadPoolExecutor(1) as pool:
        member.subscribe([name])
        wait_until(lambda: member.poll(0.1) is not None and member.assignment(), "the first member has the partition")
        failing = pool.submit(tool.run, "topic", "consume", name, "-e", "--group", name)
        wait_until(lambda: member.poll(0.1) is not None and failing.done(), "the command ends", timeout=50)
    done = failing.result()
    assert f"group '{name}' has assigned no partition to this command" in done.stderr
    assert done.returncode == 1


def test_members_are_removed(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name)
    options = {"group_id": name, "group_instance_id": f"{name}-i", "session_timeout_ms": 30_000}
    with Consumer(server.bootstrap, **options) as consumer:
        consumer.subscribe([name])
        wait_until(lambda: consumer.poll(0.1) is not None and consumer.assignment(), "the consumer is a member")
        (member,) = tool.json("group", "describe", name)["members"]
        assert (member["group_instance_id"], member["partitions"]) == (f"{name}-i", [f"{name}-0"])
        assert "(UNKNOWN_MEMBER_ID)" in tool.fails(1, "group", "remove-members", name, "-i", "stranger")
    removed = tool.json("group", "remove-members", name, "-i", f"{name}-i")
    assert removed == [{"group": name, "removed": f"{name}-i"}]
    assert tool.json("group", "remove-members", name, "--all") == []
    assert "give either --instance ID or --all" in tool.fails(2, "group", "remove-members", name)


# -- transactions ---------------------------------------------------------------------------------------------


def test_ongoing_transaction_is_not_reported_as_hanging(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name)
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"x")
        producer.flush()
        (row,) = tool.json("txn", "list", "--pattern", name)
        (info,) = tool.json("txn", "producers", name, "-p", "0")
        assert (row["state"], info["current_transaction_start_offset"]) == ("Ongoing", 0)
        said = tool.fails(2, "txn", "abort", name, "-p", "0", "--start-offset", "0")
        assert f"the coordinator of '{name}' knows of it, and its state is Ongoing. " in said
        assert f"run `oncelog txn terminate {name}`" in said
        numbers = [str(info[key]) for key in ("producer_id", "producer_epoch", "latest_coordinator_epoch")]
        named = dict(zip(("--producer-id", "--producer-epoch", "--coordinator-epoch"), numbers, strict=True))
        assert "is not hanging" in tool.fails(
            2, "txn", "abort", name, "-p", "0", *(word for pair in named.items() for word in pair)
        )
        assert tool.json("txn", "describe", name)["state"] == "Ongoing"
        assert "add --yes" in tool.fails(2, "txn", "terminate", name)
        done = tool.json("txn", "terminate", name, "--yes")
        assert done == {"transactional_id": name, "producer_id": row["producer_id"], "terminated": True}
        wait_until(
            lambda: tool.json("txn", "describe", name)["state"] in ("CompleteAbort", "Empty"),
            "the transaction was aborted",
        )
        again = tool.run("txn", "terminate", name, "--yes")
        assert (again.returncode, again.stdout.split()[-1]) == (0, "no")
        assert f"oncelog: '{name}' had no open transaction (state " in again.stderr
        producer.detach()
    assert consumed(tool, name, "--read-committed") == []


def test_log_of_a_transaction_shows_each_state(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name)
    with Producer(server.bootstrap, transactional_id=name) as producer:
        with producer.transaction():
            producer.send(name, b"x")
        producer.begin_transaction()
        producer.send(name, b"y")
        producer.flush()
        producer.abort_transaction()
    (row,) = [row for row in tool.json("txn", "list", "--all") if row["transactional_id"] == name]
    rows = [json.loads(line) for line in tool("txn", "log", name, "--format", "json").splitlines()]
    assert {(row["partition"], row["key"]["data"]["transactionalId"]) for row in rows} == {(rows[0]["partition"], name)}
    committed = ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    aborted = ["Ongoing", "PrepareAbort", "CompleteAbort"]
    values = [row["value"]["data"] for row in rows]
    assert [value["transactionStatusName"] for value in values] == [*committed, *aborted]
    assert [value["transactionStatus"] for value in values] == [0, 1, 2, 4, 1, 3, 5]
    assert {value["producerId"] for value in values} == {row["producer_id"]}
    assert values[1]["transactionPartitions"] == [{"topic": name, "partitionIds": [0]}]
    lines = tool("txn", "log", name).splitlines()
    assert [line.split()[5:7] for line in lines] == [[name, state] for state in (*committed, *aborted)]
    assert lines[1].endswith(f" {name}-0")
    assert set(lines) <= set(tool("txn", "log").splitlines())
    said = tool.fails(1, "txn", "log", f"{name}-missing")
    assert f"'{name}-missing'; `oncelog txn list --all` lists all transactional ids" in said


def test_open_transactions_are_listed_first_and_completed_ones_only_with_all(
    tool: Tool, server: Server, name: str
) -> None:
    tool("topic", "create", name)
    first, last = f"{name}-z", f"{name}-a"
    with Producer(server.bootstrap, transactional_id=last) as producer, producer.transaction():
        producer.send(name, b"x")
    with Producer(server.bootstrap, transactional_id=first) as producer:
        producer.begin_transaction()
        producer.send(name, b"x")
        producer.flush()
        listed = tool.run("txn", "list", "--format", "json")
        shown = [row["transactional_id"] for row in json.loads(listed.stdout)]
        assert first in shown
        assert last not in shown
        said = listed.stderr
        assert re.fullmatch(
            r"\d+ transactional ids without an open transaction are not shown; use --all to list them\n", said
        ), said
        everything = [row["transactional_id"] for row in tool.json("txn", "list", "--all")]
        assert everything.index(first) < everything.index(last)
        assert [row["transactional_id"] for row in tool.json("txn", "list", "--pattern", f"{name}.*")] == [first, last]
        producer.abort_transaction()


def test_transaction_that_holds_back_a_partition_is_described(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name, "-p", "2")
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"x", partition=1)
        producer.flush()
        (row,) = tool.json("txn", "list", "--pattern", name)
        (found,) = tool.json("topic", "describe", name)
        started = tool.json("txn", "describe", name)["started_ms"]
        assert [each["held_by"] for each in found["partitions"]] == [
            None,
            {"transactional_id": name, "producer_id": row["producer_id"], "state": "Ongoing", "since_ms": started},
        ]
        line = tool("topic", "describe", name).splitlines()[-1]
        since = datetime.fromtimestamp(started / 1000, UTC).isoformat(timespec="seconds")
        assert line == (
            f"{name}-1: read_committed consumers wait at offset 0 for the transaction of '{name}' "
            f"(producer id {row['producer_id']}, Ongoing since {since}); see `oncelog txn describe {name}`"
        )
        producer.abort_transaction()
    wait_until(
        lambda: tool.json("topic", "describe", name)[0]["partitions"][1]["held_by"] is None, "the marker is written"
    )


def test_commands_point_to_the_sink_whose_task_has_the_id(tool: Tool, server: Server, name: str) -> None:
    tool("topic", "create", name)
    with Producer(server.bootstrap, transactional_id=f"{name}/0/1/0.3") as producer:
        producer.begin_transaction()
        producer.send(name, b"x", partition=0)
        producer.flush()
        line = tool("topic", "describe", name).splitlines()[-1]
        assert line.endswith(f"If the Spark query has died, run `oncelog sink settle {name}`")
        said = tool.fails(2, "txn", "terminate", f"{name}/0/1/0.3")
        assert f"`oncelog sink settle {name}` commits such a batch" in said
        producer.abort_transaction()


def test_unknown_transactional_ids(tool: Tool) -> None:
    for words in (["describe"], ["terminate", "--yes"]):
        said = tool.fails(1, "txn", *words, "nope")
        assert said == (
            "oncelog: transactional id 'nope' does not exist (TRANSACTIONAL_ID_NOT_FOUND); `oncelog txn list --all` "
            "lists all transactional ids\n"
        )
    said = tool.fails(1, "txn", "list", "--pattern", "(")
    assert said.startswith("oncelog: '(' is not a regular expression in RE2's syntax (INVALID_REGULAR_EXPRESSION)")


# -- cluster --------------------------------------------------------------------------------------------------


def test_cluster(tool: Tool, name: str) -> None:
    tool("topic", "create", name)
    found = tool.json("cluster", "describe")
    assert [(item["id"], item["controller"]) for item in found["brokers"]] == [(1, True)]
    there = ("cluster", "log-dirs", "--broker", "1", "-t", name)
    wait_until(lambda: tool.json(*there)[0]["partitions"], "Kafka has created its folder")
    (directory,) = tool.json(*there)
    assert directory["online"]
    assert [(item["topic"], item["partition"]) for item in directory["partitions"]] == [(name, 0)]
    assert "PATH" in tool("cluster", "log-dirs")
    assert "transaction.version" in {item["feature"] for item in tool.json("cluster", "feature")}
    (change,) = tool.json("cluster", "feature", "transaction.version=1", "--downgrade", "--dry-run")
    assert change == {"feature": "transaction.version", "level": 1, "changed": False}


def test_partitions_under_min_isr_are_described(tool: Tool, name: str) -> None:
    tool("topic", "create", name, "-p", "25", "-r", "1", "-c", "min.insync.replicas=2")
    tool("topic", "create", f"{name}-healthy", "-r", "1")
    rows = tool.json("topic", "describe", "--under-min-isr-partitions", name, f"{name}-healthy")
    assert [row["partition"] for row in rows] == list(range(25))
    assert rows[7] == {
        "topic": name,
        "partition": 7,
        "leader": 1,
        "replicas": [1],
        "isr": [1],
        "min_isr": 2,
        "problems": ["under-min-isr"],
    }
    assert [row for row in tool.json("topic", "describe", "--under-min-isr") if row["topic"] == name] == rows
    assert tool.json("topic", "describe", "--under-replicated-partitions", "--unavailable-partitions", name) == []
    assert f"topic '{name}-x' does not exist" in tool.fails(1, "topic", "describe", "--unavailable", f"{name}-x")
    found = tool.json("cluster", "describe")
    assert found["partitions"]["total"] >= 26
    assert found["partitions"]["under_min_isr"] >= 25
    assert len(found["problems"]) == 20
    assert found["missing_brokers"] == []
    lines = tool("cluster", "describe").splitlines()
    assert lines[-22].startswith("TOPIC")
    assert f"and {found['partitions']['with_problems'] - 20} more; `oncelog topic describe --under-min-isr" in lines[-1]
    tool("topic", "delete", name, "--yes")


@pytest.mark.parametrize(
    "words",
    [["cluster", "alter", "--config", "x=1"], ["cluster", "log-dirs"], ["txn", "producers", "t", "-p", "0"]],
    ids=" ".join,
)
def test_unknown_broker_is_reported_at_once(tool: Tool, words: list[str]) -> None:
    done = tool.run(*words, "--broker", "7")
    assert done.returncode in (1, 2)
    assert "broker 7 does not exist" in done.stderr


# -- a restarting broker ----------------------------------------------------------------------------------------------


def test_command_waits_for_a_restarting_broker(new_cluster: Callable[..., OncelogCluster]) -> None:
    cluster = new_cluster(arguments=("--topic", "there"))
    tool = Tool(cluster.bootstrap)
    cluster.kill()
    assert [item["name"] for item in tool.json("topic", "list")] == ["there"]
    cluster.kill()
    assert consumed(tool, "there") == []


# -- files ---------------------------------------------------------------------------------------------------


def test_files_of_a_partition_are_dumped(tool: Tool, server: Server, name: str, tmp_path: Path) -> None:
    tool("topic", "create", name)
    tool("topic", "produce", name, "-K", ":", "-z", "gzip", stdin="k:1\n:2\n")
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(name, b"\xff")
        producer.flush()
        producer.abort_transaction()
    wait_until(lambda: tool.json("topic", "describe", name)[0]["partitions"][0]["lso"] == 4, "the marker is written")
    segment = server.partition_dir(name) / f"{0:020}.log"
    ((first, second, marker),) = (item["entries"] for item in tool.json("log", "dump", str(segment), "--records"))
    assert (first["base_offset"], first["count"], first["codec"], first["valid"]) == (0, 2, "gzip", True)
    assert [(item["key"], item["value"]) for item in first["records"]] == [("k", "1"), ("", "2")]
    assert (second["transactional"], second["records"][0]["value"]) == (True, {"base64": "/w=="})
    assert (marker["control"], marker["marker"], marker["position"]) == (True, "ABORT", first["size"] + second["size"])
    assert "marker=ABORT" in tool("log", "dump", str(segment), "--records")
    assert "ABORT" in tool("log", "dump", str(segment))
    data = segment.read_bytes()
    torn = tmp_path / segment.name
    torn.write_bytes(data[:-1])
    assert f"{torn} has no valid batch at position {marker['position']}" in tool.fails(1, "log", "dump", str(torn))
    torn.write_bytes(data[:70] + bytes([data[70] ^ 1]) + data[71:])
    (shown,) = tool.json("log", "dump", str(torn))
    assert [item["valid"] for item in shown["entries"]] == [False, True, True]
    assert ".timeindex" in tool.fails(2, "log", "dump", __file__)


@pytest.mark.parametrize(
    ("suffix", "content", "entries"),
    [
        (".index", struct.pack(">IIII", 3, 100, 0, 0), [{"offset": 8, "position": 100}]),
        (".timeindex", struct.pack(">qI", 1000, 3), [{"timestamp": 1000, "offset": 8}]),
        (
            ".txnindex",
            struct.pack(">hqqqq", 0, 7, 5, 6, 7),
            [{"version": 0, "producer_id": 7, "first_offset": 5, "last_offset": 6, "last_stable_offset": 7}],
        ),
        (
            ".snapshot",
            encode_snapshot([ProducerEntry(7, 1, 2, 99, 5, (BatchMetadata(4, 9, 0, 99),))]),
            [
                {
                    "producer_id": 7,
                    "producer_epoch": 1,
                    "coordinator_epoch": 2,
                    "first_sequence": 4,
                    "last_sequence": 4,
                    "last_offset": 9,
                    "offset_delta": 0,
                    "timestamp": 99,
                    "transaction_start": 5,
                    "last_timestamp": 99,
                }
            ],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_files_are_dumped(tmp_path: Path, suffix: str, content: bytes, entries: list[dict[str, int]]) -> None:
    tool = Tool("nowhere:1")
    path = tmp_path / f"{5:020}{suffix}"
    path.write_bytes(content)
    assert tool.json("log", "dump", str(path)) == [{"file": str(path), "entries": entries}]
    path.write_bytes(content[:-1])
    assert str(path) in tool.fails(1, "log", "dump", str(path))


# -- Python ---------------------------------------------------------------------------------------------------


def test_package_lists_its_contents() -> None:
    import oncelog

    assert {"Admin", "Consumer", "Producer", "Transaction"} <= set(dir(oncelog))
