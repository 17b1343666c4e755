"""Log directories at the protocol level: places of partitions, and a disk that fails under a running broker (KIP-112,
113, 827).

To simulate the failure, the test limits the file size of the broker's process. A write beyond the limit fails as on a
full disk, also for root and without any privilege.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oncelog import Admin
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from oncelog.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from oncelog.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.servers import OncelogCluster, Server
from support.wire import Wire, batch, until

STORAGE = ErrorCode.KAFKA_STORAGE_ERROR
LIMIT = 16 << 20
"""In bytes. Kafka preallocates 10 MiB for its index files."""
BATCH = 900_000


def pid_of(server: Server) -> int:
    """Return the broker's process id."""
    return server.broker_pid() if isinstance(server, OncelogCluster) else server.process.pid  # type: ignore[attr-defined]


def describe(wire: Wire, topics: dict[str, list[int]] | None) -> list[Any]:
    asked = None
    if topics is not None:
        asked = [DescribableLogDirTopic(topic=name, partitions=found) for name, found in topics.items()]
    results: list[Any] = wire.call(DescribeLogDirsRequest(topics=asked)).results
    return results


def partition_of(wire: Wire, topic: str, partition: int) -> Any:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    return wire.call(request, 12).topics[0].partitions[partition]


def test_log_dirs_are_described(wire: Wire, name: str) -> None:
    wire.create_topic(name, 2)
    wire.leaders_serve(name, 2)
    records = batch([b"x" * 100])
    assert not wire.produce(name, records).error_code
    (only,) = describe(wire, {name: [0, 1, 7], "no-such-topic": [0]})
    assert not only.error_code
    assert Path(only.log_dir).is_absolute()
    assert 0 < only.usable_bytes <= only.total_bytes
    (topic,) = only.topics
    assert topic.name == name
    found = {each.partition_index: each for each in topic.partitions}
    assert {index: each.partition_size for index, each in found.items()} == {0: len(records), 1: 0}
    assert {(each.offset_lag, each.is_future_key) for each in found.values()} == {(0, False)}
    (every,) = describe(wire, None)
    assert name in {topic.name for topic in every.topics}
    assert describe(wire, {})[0].topics == []


def test_admin_describes_log_dirs(server: Server, wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.leaders_serve(name)
    with Admin(server.bootstrap) as admin:
        (found,) = admin.describe_log_dirs(partitions=[(name, 0)])
    assert found.online
    assert list(found.replicas) == [(name, 0)]
    assert found.replicas[name, 0] == (0, 0)


def test_failed_disk_takes_only_its_own_partitions_offline(
    start_server: Callable[[dict[str, str]], Server], tmp_path: Path, name: str
) -> None:
    directories = [tmp_path / "server-0" / "data" / "broker-1", tmp_path / "second"]
    server = start_server({"log.dirs": ",".join(map(str, directories))})
    with Wire(server.bootstrap) as wire:
        topic_id = wire.create_topic(name, 2)
        wire.leaders_serve(name, 2)
        for partition in range(2):
            assert not wire.produce(name, batch([b"first"]), partition=partition).error_code
        # The first directory contains Kafka's own metadata. Without it, Kafka would stop.
        second = next(each for each in describe(wire, {name: [0, 1]}) if each.log_dir == str(directories[1]))
        bad = second.topics[0].partitions[0].partition_index
        good = 1 - bad
        _, hard = resource.prlimit(pid_of(server), resource.RLIMIT_FSIZE)
        resource.prlimit(pid_of(server), resource.RLIMIT_FSIZE, (LIMIT, hard))
        values: list[bytes | None] = [b"first"]
        while True:
            value = b"%d" % len(values)
            found = wire.produce(name, batch([value.ljust(BATCH, b".")]), partition=bad)
            if found.error_code:
                break
            values.append(value)
            assert len(values) * BATCH < LIMIT + 2 * BATCH, "the limit has no effect"
        assert found.error_code == STORAGE
        resource.prlimit(pid_of(server), resource.RLIMIT_FSIZE, (hard, hard))

        # The disk works again, but the directory stays offline, because the outcome of the last write is unknown.
        shown = until(
            lambda: partition_of(wire, name, bad), lambda each: each.leader_id == -1, "the partition has no leader"
        )
        assert (shown.error_code, shown.offline_replicas) == (ErrorCode.LEADER_NOT_AVAILABLE, [1])
        assert (shown.replica_nodes, shown.isr_nodes) == ([1], [])
        asked = [TopicRequest(name=name)]
        described = wire.call(DescribeTopicPartitionsRequest(topics=asked)).topics[0].partitions[bad]
        assert (described.error_code, described.leader_id, described.isr_nodes) == (0, -1, [])
        assert (described.eligible_leader_replicas, described.offline_replicas) == ([1], [1])
        assert wire.produce(name, batch([b"late"]), partition=bad).error_code == STORAGE
        assert wire.fetch(topic_id, bad).error_code == STORAGE
        ends = [ListOffsetsPartition(partition_index=bad, timestamp=-1)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=ends)])
        assert wire.call(request, 7).topics[0].partitions[0].error_code == STORAGE
        codes = {each.log_dir: each.error_code for each in describe(wire, None)}
        assert codes == {str(directories[0]): 0, str(directories[1]): STORAGE}

        assert not wire.produce(name, batch([b"second"]), partition=good).error_code
        assert wire.values(topic_id, good) == [b"first", b"second"]
        shown = partition_of(wire, name, good)
        assert (shown.error_code, shown.leader_id, shown.offline_replicas) == (0, 1, [])
    server.kill()
    server.wait_ready()
    with Wire(server.bootstrap) as wire:
        wire.leaders_serve(name, 2)
        seen = [(value or b"").rstrip(b".") for value in wire.values(topic_id, bad)]
        assert seen[: len(values)] == values
        assert wire.values(topic_id, good) == [b"first", b"second"]
