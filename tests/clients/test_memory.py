"""Growth of a broker's memory: rejected requests, clients that do not read, requests that wait."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.headers import RequestHeader, encode_request_header
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from oncelog.protocol.schema import Message
from support.groups import describe
from support.processes import wait_until
from support.servers import OncelogCluster
from support.wire import Wire, batch, retried

MB = 1 << 20
LIMIT_MB = 100
"""The broker may grow by this much in any test."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OncelogCluster]:
    made = OncelogCluster(tmp_path)
    yield made
    assert made.stop() == 0, made.process.output()


@pytest.fixture
def grown_mb(cluster: OncelogCluster) -> Callable[[], float]:
    """Return by how many MB the broker's memory has grown since the test began, without mapped files."""

    def memory() -> int:
        found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{cluster.broker_pid()}/status").read_text())
        assert found is not None
        return int(found[1])

    before = memory()
    return lambda: (memory() - before) / 1024


def sent(cluster: OncelogCluster, request: Message, version: int) -> socket.socket:
    """Open a connection with a small receive buffer that sends one request and reads nothing."""
    host, _, port = cluster.bootstrap.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    connection.connect((host, int(port)))
    payload = encode_request_header(RequestHeader(request.API_KEY, version, 1, "slow")) + request.encode(version)
    connection.sendall(struct.pack(">i", len(payload)) + payload)
    return connection


def test_rejected_requests_leak_no_memory(cluster: OncelogCluster, grown_mb: Callable[[], float]) -> None:
    """Before, each request kept its memory until a full garbage collection."""
    too_large = batch([bytes(9 * MB)])
    assignments = [SyncGroupRequestAssignment(member_id="m", assignment=bytes(9 * MB))]
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=assignments)
    with Wire(cluster.bootstrap) as wire:
        wire.create_topic("t")
        for _ in range(40):
            assert wire.produce("t", too_large).error_code == ErrorCode.MESSAGE_TOO_LARGE
        wire.find_coordinator("g", 0)
        assert retried(lambda: wire.call(sync, 3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        for _ in range(20):
            wire.call(sync, 3)
    assert grown_mb() < LIMIT_MB


def test_unread_responses_stay_within_the_budget(cluster: OncelogCluster, grown_mb: Callable[[], float]) -> None:
    """A client that reads gets all requested records."""
    partitions = 250
    with Wire(cluster.bootstrap) as wire:
        topic_id = wire.create_topic("t", partitions)
        for index in range(partitions):
            assert not wire.produce("t", batch([bytes(60_000)]), partition=index).error_code
        wanted = [FetchPartition(partition=index, partition_max_bytes=MB) for index in range(partitions)]
        topics = [FetchTopic(topic_id=topic_id, partitions=wanted)]
        everything = FetchRequest(max_wait_ms=60_000, min_bytes=MB, max_bytes=50 * MB, session_epoch=-1, topics=topics)
        slow = [sent(cluster, everything, 16) for _ in range(25)]
        for connection in slow:
            assert connection.recv(1), "the answer has started"
        missing = set(range(partitions))
        while missing:
            topics[0].partitions = [wanted[index] for index in sorted(missing)]
            everything.min_bytes = min(MB, 60_000 * len(missing))
            answer = wire.call(everything, 16)
            brought = {each.partition_index for each in answer.responses[0].partitions if each.records}
            assert brought, "an answer without data"
            missing -= brought
        assert grown_mb() < LIMIT_MB
        for connection in slow:
            connection.close()


def test_waiting_requests_hold_no_read_buffer(cluster: OncelogCluster, grown_mb: Callable[[], float]) -> None:
    """Before, each request held a read buffer of 256 KiB."""
    protocols = [JoinGroupRequestProtocol(name="range", metadata=bytes(5000))]
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    count = 600
    with Wire(cluster.bootstrap) as wire:
        wire.find_coordinator("g", 0)
        assert not retried(lambda: wire.call(request, 3)).error_code  # this member leads, and the others wait for it
        waiting = [sent(cluster, request, 3) for _ in range(count)]
        wait_until(lambda: len(describe(wire, "g").members) == count + 1, "all members are in the group")
        assert grown_mb() < LIMIT_MB / 2
        for connection in waiting:
            connection.close()
