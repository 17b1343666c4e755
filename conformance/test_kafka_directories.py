"""Move a data directory from Apache Kafka to oncelog and back, and the other way. Nothing is lost or duplicated.

The new server has the same topics, ids and settings, and both isolation levels read the same records. Groups and
transactional ids continue, producer sequences are known, and no producer id is assigned twice.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
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
from support.consumer_groups import NewMember, settle
from support.servers import OncelogCluster, Server
from support.wire import NO_SESSION, Session, Wire, batch, retried, until

PARTITIONS = 3
GROUP = "readers"
MEMBERS = "members"
TXN_ID = "writer"
TOPIC = 2
BROKER = 4
DIRECTORIES = ("data", "data-2")
METADATA = "__cluster_metadata-0"


@dataclass
class Work:
    """The records and offsets that were written to the directory so far."""

    topic_id: UUID
    values: list[list[bytes | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    committed: list[list[bytes | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    idempotent: Session = NO_SESSION
    sequence: int = 0
    transactional: Session = NO_SESSION
    ids: set[int] = field(default_factory=set)
    members: list[NewMember] = field(default_factory=list)
    """The members of a group of the consumer protocol. They do not notice the move."""
    offset: int = 0
    turn: int = 0


def begin(wire: Wire) -> Work:
    topic_id = wire.create_topic("t", PARTITIONS, segment_bytes=str(1 << 20), max_message_bytes="700000")
    wire.leaders_serve("t", PARTITIONS)
    work = Work(topic_id)
    work.idempotent = wire.session()
    wire.find_coordinator(MEMBERS, 0)
    work.members = [NewMember(wire, MEMBERS, member_id, instance_id=member_id) for member_id in ("one", "two")]
    for member in work.members:
        assert not member.join("t", subscribed_topic_regex="no-.*").error_code
    settle(*work.members)
    return work


def write_round(wire: Wire, work: Work) -> None:
    """Write another round: idempotent batches, a committed and an aborted transaction, an offset of a group."""
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
    answer = retried(lambda: wire.call(request, 8), lambda found: found.topics[0].partitions[0].error_code)
    assert not answer.topics[0].partitions[0].error_code, answer


def committed_offset(wire: Wire) -> int:
    wire.find_coordinator(GROUP, 0)
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=topics)])
    answer = retried(lambda: wire.call(request, 8), lambda found: found.groups[0].error_code)
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


def check(wire: Wire, work: Work) -> None:
    """Check that everything written is present, and nothing else."""
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
    wire.find_coordinator(MEMBERS, 0)
    before = [(member.epoch, member.owned) for member in work.members]
    for member in work.members:
        member.wire = wire
        assert not member.report().error_code
    settle(*work.members)
    assert [owned for _, owned in before] == [member.owned for member in work.members]
    assert sorted(p for _, owned in before for p in owned[work.topic_id]) == list(range(PARTITIONS))
    # The state of the idempotent producer is kept: its last batch, sent again, is a duplicate.
    again = batch([work.values[0][-1] or b""], work.idempotent, work.sequence - 1)
    found = wire.produce("t", again)
    assert (found.error_code, found.base_offset) == (0, len(work.values[0]) - 1)
    found = wire.produce("t", batch([b"gap"], work.idempotent, work.sequence + 5))
    assert found.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for name in DIRECTORIES:
        shutil.rmtree(tmp_path / name, ignore_errors=True)


def log_dirs(folder: Path) -> str:
    return ",".join(str(folder / name) for name in DIRECTORIES)


def kafka_on(folder: Path, number: int, *, formatted: bool) -> ApacheKafka:
    return ApacheKafka(folder / f"kafka-{number}", settings={"log.dirs": log_dirs(folder)}, formatted=formatted)


def oncelog_on(folder: Path, number: int) -> OncelogCluster:
    return OncelogCluster(folder / f"oncelog-{number}", settings={"log.dirs": log_dirs(folder)})


def run_export(folder: Path, cluster: OncelogCluster) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("oncelog")
    command = [program, "export", "--data", cluster.data, "--set", f"log.dirs={log_dirs(folder)}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def export(folder: Path, cluster: OncelogCluster) -> None:
    done = run_export(folder, cluster)
    assert (done.returncode, done.stderr) == (0, "")
    assert "wrote" in done.stdout
    assert f"log.dirs={log_dirs(folder)}" in done.stdout


def refuses(folder: Path, cluster: OncelogCluster, reason: str) -> None:
    """Check that neither export nor oncelog accepts the directory."""
    done = run_export(folder, cluster)
    assert done.returncode == 1
    assert re.match(f"oncelog: .*{reason}", done.stderr), done.stderr
    with pytest.raises(AssertionError, match=reason):
        cluster.start()


@dataclass
class Stops:
    """The changes of administrators: at each stop, a topic and a value of each setting."""

    topics: list[tuple[UUID, list[list[bytes | None]]]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def check(self, wire: Wire) -> None:
        for number, (topic_id, values) in enumerate(self.topics):
            request = MetadataRequest(topics=[MetadataRequestTopic(name=f"stop-{number}")])
            found = until(lambda request=request: wire.call(request, 12).topics[0], lambda t: not t.error_code, "known")
            assert (found.topic_id, len(found.partitions)) == (topic_id, len(values))
            wire.leaders_serve(f"stop-{number}", len(values))
            assert [wire.values(topic_id, partition) for partition in range(len(values))] == values
        of_all = {name: value for name, value in self.settings.items() if name.startswith("log.")}
        for resource_name, expected in (("", of_all), ("1", self.settings)):
            resource = DescribeConfigsResource(resource_type=BROKER, resource_name=resource_name)

            def known(resource: DescribeConfigsResource = resource) -> dict[str, str]:
                entries = wire.call(DescribeConfigsRequest(resources=[resource])).results[0].configs
                return {each.name: each.value for each in entries if each.name in self.settings}

            until(known, lambda found, right=expected: found == right, f"the settings of broker {resource_name!r}")

    def write_round(self, wire: Wire) -> None:
        number = len(self.topics)
        topic_id = wire.create_topic(f"stop-{number}")
        self.topics.append((topic_id, [[]]))
        if number:  # the topic of the previous stop gets another partition
            grown = CreatePartitionsTopic(name=f"stop-{number - 1}", count=2, assignments=None)
            answer = wire.call(CreatePartitionsRequest(topics=[grown], timeout_ms=10_000)).results[0]
            assert not answer.error_code, answer
            wire.leaders_serve(f"stop-{number - 1}", 2)
            self.topics[-2][1].append([])
        for index, (_, values) in enumerate(self.topics):
            for partition, known in enumerate(values):
                known.append(b"stop %d" % number)
                found = wire.produce(f"stop-{index}", batch([known[-1]]), partition=partition)
                assert not found.error_code, found
        self.settings = {"log.retention.ms": str(10**9 + number), "max.connections": str(1000 + number)}
        for resource_name, name in (("", "log.retention.ms"), ("1", "max.connections")):
            setting = AlterableConfig(name=name, value=self.settings[name])
            resource = AlterConfigsResource(resource_type=BROKER, resource_name=resource_name, configs=[setting])
            answer = wire.call(IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
            assert not answer.error_code, answer


def use(server: Server, work: Work | None, stops: Stops) -> Work:
    """Check the existing data, write another round, and stop the server cleanly."""
    try:
        with Wire(server.bootstrap) as wire:
            if work is None:
                work = begin(wire)
            else:
                check(wire, work)
                stops.check(wire)
            write_round(wire, work)
            stops.write_round(wire)
            check(wire, work)
            stops.check(wire)
    finally:
        server.stop()
    return work


def test_from_apache_kafka_to_oncelog_and_back(folder: Path) -> None:
    stops = Stops()
    work = use(kafka_on(folder, 0, formatted=False), None, stops)
    for name in DIRECTORIES:
        shutil.copytree(folder / name, folder / "copy" / name)
    without_metadata(folder / "copy", copy.deepcopy(replace(work, members=[])))
    cluster = oncelog_on(folder, 0)
    use(cluster, work, stops)
    cluster.start()
    use(cluster, work, stops)  # the test now owns the topics
    export(folder, cluster)
    use(kafka_on(folder, 1, formatted=True), work, stops)


def without_metadata(folder: Path, work: Work) -> None:
    """If Kafka's metadata is lost, the folders restore almost everything except the settings of topics."""
    shutil.rmtree(folder / "data" / METADATA)
    cluster = oncelog_on(folder, 0)
    try:
        with Wire(cluster.bootstrap) as wire:
            wire.leaders_serve("t", PARTITIONS)
            for partition in range(PARTITIONS):
                assert wire.values(work.topic_id, partition, committed=True) == work.committed[partition]
            assert committed_offset(wire) == work.offset
            write_round(wire, work)
    finally:
        cluster.stop()


def test_from_oncelog_to_apache_kafka_and_back_twice(folder: Path) -> None:
    """Each stop has topics, partitions and settings that the previous one did not have."""
    cluster = oncelog_on(folder, 0)
    stops = Stops()
    work = use(cluster, None, stops)
    for turn in range(2):
        if turn:  # Kafka does not start with one in any directory but the first
            shutil.copytree(folder / "data" / METADATA, folder / "data-2" / METADATA)
        export(folder, cluster)
        export(folder, cluster)  # a repeated export has the same result
        kafka = kafka_on(folder, turn, formatted=True)
        try:
            refuses(folder, cluster, "in use by Apache Kafka")
        except BaseException:
            kafka.stop()
            raise
        use(kafka, work, stops)
        refuses(folder, cluster, "Apache Kafka has run on")
        (cluster.data / "metadata.sqlite").rename(folder / f"metadata-{turn}.sqlite")  # as the message says
        cluster.start()
        use(cluster, work, stops)
    for name in DIRECTORIES:  # the renamed log is still there: Kafka has skipped it
        assert [any(aside.iterdir()) for aside in (folder / name).glob(f"{METADATA}.*-stray")] == [True]
