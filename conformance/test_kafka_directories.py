"""A data directory goes from Apache Kafka to oncelog and back, or the other way, and nobody's work is lost or doubled.

Whoever takes over has the same topics, ids and settings, both isolation levels read the same, groups and transactional
ids go on, sequences are remembered, and no producer id is given out twice.
"""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from support.apache_kafka import ApacheKafka
from support.servers import OncelogCluster, Server
from support.wire import NOBODY, Session, Wire, batch, settled, until

PARTITIONS = 3
GROUP = "readers"
TXN_ID = "writer"
TOPIC = 2


@dataclass
class Work:
    """What was done on the directory so far, by whomever."""

    topic_id: UUID
    values: list[list[bytes | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    committed: list[list[bytes | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    idempotent: Session = NOBODY
    sequence: int = 0
    transactional: Session = NOBODY
    ids: set[int] = field(default_factory=set)
    offset: int = 0
    turn: int = 0


def begin(wire: Wire) -> Work:
    topic_id = wire.create_topic("t", PARTITIONS, segment_bytes=str(1 << 20), max_message_bytes="700000")
    wire.leaders_serve("t", PARTITIONS)
    work = Work(topic_id)
    work.idempotent = wire.session()
    return work


def go_on(wire: Wire, work: Work) -> None:
    """One more turn: idempotent batches, a transaction that commits, one that aborts, an offset of a group."""
    work.turn += 1
    wire.leaders_serve("t", PARTITIONS)
    for _ in range(3):
        value = b"plain %d" % work.sequence
        found = wire.produce("t", batch([value], work.idempotent, work.sequence))
        assert not found.error_code, found
        work.sequence += 1
        work.values[0].append(value)
        work.committed[0].append(value)
    who = wire.session(TXN_ID)
    if work.transactional.producer_id >= 0:
        assert who.producer_id == work.transactional.producer_id
        assert who.epoch > work.transactional.epoch
    for sequence, commit in enumerate((True, False)):
        value = b"turn %d %s" % (work.turn, b"committed" if commit else b"aborted")
        assert wire.add_partitions(TXN_ID, who, "t", [1, 2]) == [0, 0]
        for partition in (1, 2):
            records = batch([value], who, sequence, transactional=True)
            found = wire.produce("t", records, partition=partition, transactional_id=TXN_ID)
            assert not found.error_code, found
            work.values[partition].append(value)
            work.committed[partition] += [value] if commit else []
        assert not wire.end(TXN_ID, who, commit).error_code
    work.transactional = who
    for _ in range(3):
        number = wire.session().producer_id
        assert number not in work.ids | {work.idempotent.producer_id, who.producer_id}
        work.ids.add(number)
    work.offset += 10
    commit_offset(wire, work.offset)


def commit_offset(wire: Wire, offset: int) -> None:
    wire.find_coordinator(GROUP, 0)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    request = OffsetCommitRequest(group_id=GROUP, topics=topics)
    answer = settled(lambda: wire.call(request, 8), lambda found: found.topics[0].partitions[0].error_code)
    assert not answer.topics[0].partitions[0].error_code, answer


def committed_offset(wire: Wire) -> int:
    wire.find_coordinator(GROUP, 0)
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])
    answer = settled(lambda: wire.call(request, 8), lambda found: found.groups[0].error_code)
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


def check(wire: Wire, work: Work) -> None:
    """All that was done is there, and nothing else."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    topic = until(lambda: wire.call(request, 12).topics[0], lambda found: not found.error_code, "t is known")
    assert (topic.topic_id, len(topic.partitions)) == (work.topic_id, PARTITIONS)
    wire.leaders_serve("t", PARTITIONS)
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t")
    entries = wire.call(DescribeConfigsRequest(resources=[resource])).results[0].configs
    assert {entry.name: entry.value for entry in entries if entry.name in ("segment.bytes", "max.message.bytes")} == {
        "segment.bytes": str(1 << 20),
        "max.message.bytes": "700000",
    }

    def stable(partition: int) -> bool:
        return wire.offset("t", partition=partition, committed=True) == wire.offset("t", partition=partition)

    for partition in range(PARTITIONS):
        until(lambda partition=partition: stable(partition), bool, "no transaction is open")
        assert wire.values(work.topic_id, partition) == work.values[partition]
        assert wire.values(work.topic_id, partition, committed=True) == work.committed[partition]
    assert committed_offset(wire) == work.offset
    # The last batch of the idempotent producer is still known: sent again, it is no second one.
    again = batch([work.values[0][-1] or b""], work.idempotent, work.sequence - 1)
    found = wire.produce("t", again)
    assert (found.error_code, found.base_offset) == (0, len(work.values[0]) - 1)
    found = wire.produce("t", batch([b"gap"], work.idempotent, work.sequence + 5))
    assert found.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


def kafka_on(folder: Path, number: int, *, formatted: bool) -> ApacheKafka:
    return ApacheKafka(folder / f"kafka-{number}", settings={"log.dirs": str(folder / "data")}, formatted=formatted)


def oncelog_on(folder: Path, number: int) -> OncelogCluster:
    return OncelogCluster(folder / f"oncelog-{number}", settings={"log.dirs": str(folder / "data")})


def export(folder: Path, cluster: OncelogCluster) -> None:
    program = Path(sys.executable).with_name("oncelog")
    command = [program, "export", "--data", cluster.data, "--set", f"log.dirs={folder / 'data'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "wrote" in done.stdout
    assert f"log.dirs={folder / 'data'}" in done.stdout


def use(server: Server, work: Work | None) -> Work:
    """Checks what is there, does a turn, and stops the server cleanly."""
    try:
        with Wire(server.bootstrap) as wire:
            if work is None:
                work = begin(wire)
            else:
                check(wire, work)
            go_on(wire, work)
            check(wire, work)
    finally:
        server.stop()
    return work


def test_from_apache_kafka_to_oncelog_and_back(folder: Path) -> None:
    work = use(kafka_on(folder, 0, formatted=False), None)
    shutil.copytree(folder / "data", folder / "copy" / "data")
    without_metadata(folder / "copy", copy.deepcopy(work))
    cluster = oncelog_on(folder, 0)
    work = use(cluster, work)
    cluster.start()
    work = use(cluster, work)  # the topics are its own now
    export(folder, cluster)
    use(kafka_on(folder, 1, formatted=True), work)


def without_metadata(folder: Path, work: Work) -> None:
    """Where Kafka's metadata is lost, the folders tell nearly all; the settings of topics are gone."""
    shutil.rmtree(folder / "data" / "__cluster_metadata-0")
    cluster = oncelog_on(folder, 0)
    try:
        with Wire(cluster.bootstrap) as wire:
            wire.leaders_serve("t", PARTITIONS)
            for partition in range(PARTITIONS):
                assert wire.values(work.topic_id, partition, committed=True) == work.committed[partition]
            assert committed_offset(wire) == work.offset
            go_on(wire, work)
    finally:
        cluster.stop()


def test_from_oncelog_to_apache_kafka_and_back(folder: Path) -> None:
    cluster = oncelog_on(folder, 0)
    work = use(cluster, None)
    export(folder, cluster)
    work = use(kafka_on(folder, 0, formatted=True), work)
    with pytest.raises(AssertionError, match="Apache Kafka has run on"):
        cluster.start()
    use(oncelog_on(folder, 1), work)
