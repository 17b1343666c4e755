"""`oncelog topic describe --replicas` and `txn producers --broker`: what each broker knows of its own replica."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from support.command_line import Tool
from support.servers import ReplicatedCluster
from support.wire import Wire, until

RECORDS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    running = ReplicatedCluster(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def tool(cluster: ReplicatedCluster) -> Tool:
    made = Tool(cluster.bootstrap)
    made("topic", "create", "t", "-p", "1", "-r", "3")
    made("topic", "produce", "t", stdin="x\n" * RECORDS)
    return made


def replicas(tool: Tool) -> list[dict[str, Any]]:
    (topic,) = tool.json("topic", "describe", "t", "--replicas")
    (partition,) = topic["partitions"]
    rows: list[dict[str, Any]] = partition["replica_offsets"]
    assert [row["broker"] for row in rows] == [1, 2, 3]
    assert [row["broker"] for row in rows if row["role"] == "leader"] == [partition["leader"]]
    return rows


def offsets(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["hw"], row["leo"]) for row in rows]


def test_followers_have_the_offsets_of_the_leader(tool: Tool) -> None:
    # Followers learn of a new high watermark a little later.
    rows = until(lambda: replicas(tool), lambda rows: offsets(rows) == [(RECORDS, RECORDS)] * 3, "followers catch up")
    assert all(row["in_sync"] for row in rows)
    lines = tool("topic", "describe", "t", "--replicas").splitlines()
    assert lines[4].split() == ["PARTITION", "BROKER", "ROLE", "IN", "SYNC", "HW", "LEO"]
    assert sorted(line.split()[2:] for line in lines[5:]) == [
        ["follower", "yes", "3", "3"],
        ["follower", "yes", "3", "3"],
        ["leader", "yes", "3", "3"],
    ]


def test_follower_that_hangs_has_no_offsets(cluster: ReplicatedCluster, tool: Tool) -> None:
    frozen = next(row["broker"] for row in replicas(tool) if row["role"] == "follower")
    process = cluster.broker_pid(frozen)
    os.kill(process, signal.SIGSTOP)
    try:
        tool("topic", "produce", "t", "--acks", "1", "--no-idempotence", stdin="x\n")
        rows = {row["broker"]: row for row in replicas(tool)}
        assert (rows[frozen]["hw"], rows[frozen]["leo"]) == (None, None)
        (leader,) = (row for row in rows.values() if row["role"] == "leader")
        assert leader["leo"] == RECORDS + 1
    finally:
        os.kill(process, signal.SIGCONT)
    until(
        lambda: replicas(tool),
        lambda rows: offsets(rows) == [(RECORDS + 1, RECORDS + 1)] * 3,
        "the follower catches up",
    )


def test_followers_know_the_producers(tool: Tool) -> None:
    def known(broker: int) -> list[dict[str, Any]]:
        asked = ("txn", "producers", "t", "-p", "0", "--batches", "--broker", str(broker))
        producers: list[dict[str, Any]] = tool.json(*asked)["producers"]
        return producers

    def complete(producers: list[dict[str, Any]]) -> bool:
        return [row["last_sequence"] for row in producers] == [RECORDS - 1]

    found = [until(partial(known, broker), complete, f"broker {broker} has the records") for broker in (1, 2, 3)]
    assert found[0] == found[1] == found[2]


def test_only_tools_may_ask_followers_and_not_by_time(cluster: ReplicatedCluster, tool: Tool) -> None:
    """A follower may be truncated while it searches for a time."""
    follower = next(row["broker"] for row in replicas(tool) if row["role"] == "follower")
    with Admin(cluster.bootstrap) as admin:
        port = next(each.port for each in admin.describe_cluster().brokers if each.node_id == follower)
    with Wire(f"127.0.0.1:{port}") as wire:

        def code(replica_id: int, timestamp: int) -> ErrorCode:
            asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(timestamp=timestamp)])
            answer = wire.call(ListOffsetsRequest(replica_id=replica_id, topics=[asked]))
            return ErrorCode(answer.topics[0].partitions[0].error_code)

        assert [code(-2, timestamp) for timestamp in (-1, -2, -4)] == [ErrorCode.NONE] * 3
        refused = [code(-2, 0), code(-2, -3), code(-1, -1), code(follower, -1)]
        assert refused == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 4
