"""New metadata on old log directories, and the export to Apache Kafka (`conformance` uses a real one)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.metadata.export_kafka import export
from oncelog.broker.metadata.import_kafka import PRODUCER_ID_GAP
from oncelog.cluster import kafka_metadata
from oncelog.cluster.kafka_metadata import BOOTSTRAP, FOLDER
from oncelog.log.disk import OsDisk
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import DecodeError
from support.broker_fixtures import NOW, live
from support.kafka_folders import A, B, directory_at, metadata_log, new_tree


def partition(topic_id: UUID, index: int, replicas: tuple[int, ...] = (1,)) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index, topic_id=topic_id, replicas=list(replicas), isr=list(replicas), leader=1, leader_epoch=4
    )


def test_records_have_kafkas_bytes() -> None:
    topic = encode_record(TopicRecord(name="t", topic_id=A), 0)
    assert topic == b"\x01\x02\x00" + b"\x02t" + A.bytes + b"\x00"
    change = encode_record(PartitionChangeRecord(partition_id=0, topic_id=A, leader=-1), 0)
    assert change == b"\x01\x05\x00" + bytes(4) + A.bytes + b"\x01\x01\x04\xff\xff\xff\xff"
    for record, version in ((partition(A, 1), 0), (ConfigRecord(resource_type=2, name="k", value=None), 0)):
        assert decode_record(encode_record(record, version)) == record
    assert decode_record(b"\x01\x1b\x00\x00") is None, "a type without data"
    for damaged in (b"\x00\x02\x00", b"\x01\x02\x09" + topic[3:], topic[:-4]):
        with pytest.raises(DecodeError):
            decode_record(damaged)


def test_image_reflects_the_records(tmp_path: Path) -> None:
    folder = metadata_log(
        tmp_path,
        TopicRecord(name="a", topic_id=A),
        partition(A, 0),
        partition(A, 1),
        ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="5"),
        ConfigRecord(resource_type=2, resource_name="a", name="flush.ms", value="5"),
        ConfigRecord(resource_type=2, resource_name="a", name="flush.ms", value=None),
        PartitionChangeRecord(partition_id=1, topic_id=A, leader=-1),
        PartitionChangeRecord(partition_id=1, topic_id=A, leader=1, isr=[1]),
        PartitionChangeRecord(partition_id=0, topic_id=A, isr=[1]),
        BeginTransactionRecord(),
        TopicRecord(name="never", topic_id=B),
        AbortTransactionRecord(),
        BeginTransactionRecord(name="b"),
        TopicRecord(name="b", topic_id=B),
        EndTransactionRecord(),
        RemoveTopicRecord(topic_id=B),
        ProducerIdsRecord(broker_id=1, next_producer_id=3000),
    )
    found = kafka_metadata.read(OsDisk(), str(folder))
    assert list(found.topics) == [A]
    assert [info.leader_epoch for info in found.topics[A].partitions] == [4, 6]
    assert found.configs == {(2, "a"): {"retention.ms": "5"}}
    assert (found.next_producer_id, found.end_offset) == (3000, 17)


def test_kafkas_topics_are_imported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    metadata_log(
        data,
        TopicRecord(name="a", topic_id=A),
        partition(A, 0),
        partition(A, 1),
        ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="5"),
        ProducerIdsRecord(broker_id=1, next_producer_id=3000),
    )
    store = new_tree()

    async def life(broker: Broker) -> None:
        topic = broker.metadata.image.topic("a")
        assert topic is not None
        assert (topic.topic_id, topic.partition_count, topic.configs) == (A, 2, {"retention.ms": "5"})
        assert broker.partitions.require("a", 1).leader_epoch == 5
        assert broker.membership.cluster_id == "kafka=s"
        assert broker.metadata.image.feature_level("transaction.version") == 0, "it had no leader"
        while not broker.producer_ids.ids.remaining:
            await asyncio.sleep(0.005)
        assert broker.producer_ids.ids.take() == 3000

    live(data, store, life)
    live(data, store)  # the second start has nothing to import


def test_unsupported_metadata_is_rejected(tmp_path: Path) -> None:
    metadata_log(tmp_path / "several", TopicRecord(name="a", topic_id=A), partition(A, 0, (1, 2)))
    with pytest.raises(ProtocolError, match=r"a-0, because its replicas are on nodes \[1, 2\]"):
        live(tmp_path / "several", new_tree())
    metadata_log(tmp_path / "other", TopicRecord(name="a", topic_id=A), partition(A, 0), node_id=7)
    store = new_tree()
    with pytest.raises(ProtocolError, match=r"Set node\.id to 7"):
        live(tmp_path / "other", store)
    assert store.children("/brokers/topics") == [], "nothing was imported before the error was found"
    folder = metadata_log(tmp_path / "torn", TopicRecord(name="a", topic_id=A))
    file = folder / f"{0:020d}.log"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ProtocolError) as caught:
        live(tmp_path / "torn", new_tree())
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_lost_metadata_is_restored_from_the_folders_only_on_request(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ids: list[UUID] = []

    async def first(broker: Broker) -> None:
        ids.append((await broker.topics.create("t", partitions=3)).topic_id)
        for index in range(3):
            batch = build_batch([Record(0, NOW, b"k", b"v")], producer_id=1700, producer_epoch=0, base_sequence=0)
            broker.partitions.require("t", index).append(memoryview(batch), now_ms=NOW)
        await broker.topics.ensure_internal("__consumer_offsets")
        broker.partitions.require("__consumer_offsets", 7).append(
            memoryview(build_batch([Record(0, NOW, b"\x00\x01", None)])), now_ms=NOW
        )

    async def second(broker: Broker) -> None:
        topic, offsets = broker.metadata.image.topic("t"), broker.metadata.image.topic("__consumer_offsets")
        assert topic is not None
        assert offsets is not None
        assert (topic.topic_id, topic.partition_count, offsets.partition_count) == (ids[0], 3, 50)
        assert broker.partitions.require("t", 2).log.log_end_offset == 1
        assert broker.partitions.require("t", 2).leader_epoch == 1
        while not broker.producer_ids.ids.remaining:
            await asyncio.sleep(0.005)
        assert broker.producer_ids.ids.take() >= 1700 + PRODUCER_ID_GAP // 2

    live(data, new_tree(), first)
    lost = new_tree()
    for _ in range(2):  # a failed attempt changes nothing
        with pytest.raises(ProtocolError, match=r"has the logs of 2 topics \(1 of users: t\)") as refused:
            live(data, lost)
        assert refused.value.code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert "`--set restore.metadata=true`" in str(refused.value)
    live(data, lost, second, restore_metadata="true")


def test_restored_topics_keep_all_records(tmp_path: Path) -> None:
    """The settings are lost, so no default may delete records that a setting had kept."""
    data = tmp_path / "data"

    async def first(broker: Broker) -> None:
        for name in ("decisions", "events"):
            await broker.topics.create(name, partitions=1)
            broker.partitions.require(name, 0).append(memoryview(build_batch([Record(0, NOW, b"k", b"v")])), now_ms=NOW)

    async def second(broker: Broker) -> None:
        configs = {topic.name: dict(topic.configs) for topic in broker.metadata.image.topics()}
        assert configs == {
            "decisions": {"cleanup.policy": "compact"},
            "events": {"retention.ms": "-1", "retention.bytes": "-1"},
        }

    live(data, new_tree(), first)
    (data / "cleaner-offset-checkpoint").write_text("0\n1\ndecisions 0 1\n")
    live(data, new_tree(), second, restore_metadata="true")


def test_kafka_that_ran_since_the_import_is_detected(tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = new_tree()
    live(data, store)
    text = (data / "meta.properties").read_text()
    metadata_log(data, TopicRecord(name="a", topic_id=A), partition(A, 0))
    (data / "meta.properties").write_text(text)
    with pytest.raises(ProtocolError, match="Apache Kafka has run on"):
        live(data, store)

    async def life(broker: Broker) -> None:
        assert broker.metadata.image.topic("a") is not None

    live(data, new_tree(), life)


def test_lost_metadata_is_not_replaced_by_an_older_import(tmp_path: Path) -> None:
    data = tmp_path / "data"
    metadata_log(data, TopicRecord(name="a", topic_id=A), partition(A, 0))

    async def first(broker: Broker) -> None:
        await broker.topics.create("since", partitions=1)
        broker.partitions.require("since", 0).append(memoryview(build_batch([Record(0, NOW, b"k", b"v")])), now_ms=NOW)

    async def second(broker: Broker) -> None:
        assert broker.partitions.require("since", 0).log.log_end_offset == 1

    live(data, new_tree(), first)
    lost = new_tree()
    with pytest.raises(ProtocolError, match=r"has the logs of 1 topics \(1 of users: since\)"):
        live(data, lost)
    live(data, lost, second, restore_metadata="true")
    live(data, lost, second)


def test_lost_metadata_without_a_folder_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    metadata_log(data, TopicRecord(name="a", topic_id=A), partition(A, 0))
    live(data, new_tree())
    with pytest.raises(ProtocolError, match="the metadata is missing"):
        live(data, new_tree())


CHANGES = (TopicRecord(name="a", topic_id=A), partition(A, 0))


def test_different_log_of_the_same_length_is_detected(tmp_path: Path) -> None:
    data, store = tmp_path / "data", new_tree()
    folder = metadata_log(data, *CHANGES)
    live(data, store)
    live(data, store)  # nothing has changed
    shutil.rmtree(folder)
    text = (data / "meta.properties").read_text()
    metadata_log(data, TopicRecord(name="b", topic_id=B), partition(B, 0))
    (data / "meta.properties").write_text(text)
    with pytest.raises(ProtocolError, match="Apache Kafka has run on"):
        live(data, store)


def test_metadata_log_is_renamed_in_place(tmp_path: Path) -> None:
    first, second, store = tmp_path / "1", tmp_path / "2", new_tree()
    log_dirs = {"log_dirs": f"{first},{second}"}
    metadata_log(first, *CHANGES)
    live(first, store, **log_dirs)
    shutil.copytree(first / FOLDER, second / FOLDER)  # Kafka would not start with one in the second directory
    done = export(store, [directory_at(first), directory_at(second)], NOW)
    # The name is that of a stray log of the metadata's topic, which Kafka skips.
    assert done.set_aside == tuple(f"{data}/{FOLDER}.{NOW}-stray" for data in (first, second))
    for data in (first, second):
        assert [path.name for path in data.glob("__cluster*")] == [f"{FOLDER}.{NOW}-stray"]
        assert list((data / f"{FOLDER}.{NOW}-stray").iterdir())
    assert not (second / BOOTSTRAP).exists()
    live(first, store, **log_dirs)  # the broker can still start after the export


def test_directory_of_a_newer_kafka_is_rejected(tmp_path: Path) -> None:
    data, store = tmp_path / "data", new_tree()
    newer = FeatureLevelRecord(name="metadata.version", feature_level=kafka_metadata.METADATA_VERSION + 1)
    folder = metadata_log(data, BeginTransactionRecord(), newer, *CHANGES, EndTransactionRecord())
    for damage in (False, True):
        if damage:  # or an unknown record
            with (folder / f"{0:020d}.log").open("ab") as file:
                file.write(build_batch([Record(0, NOW, None, b"\x01\x02\x63")], base_offset=5))
        with pytest.raises(
            ProtocolError, match=r"a newer Apache Kafka has written .*metadata\.version is 31"
        ) as caught:
            live(data, store)
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert store.children("/brokers/topics") == []


def test_interrupted_import_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, store = tmp_path / "data", new_tree()
    folder = metadata_log(data, *CHANGES)
    with monkeypatch.context() as patch:
        patch.setattr("oncelog.broker.metadata.import_kafka.note_imported", _die)
        with pytest.raises(KilledError):
            live(data, store)
    assert store.children("/brokers/topics") == ["a"]
    shutil.rmtree(folder)
    metadata_log(data, TopicRecord(name="b", topic_id=B), partition(B, 0))  # meanwhile, Kafka has replaced it

    async def life(broker: Broker) -> None:
        assert [topic.name for topic in broker.metadata.image.topics()] == ["b"]

    live(data, store, life)


class KilledError(Exception):
    """The process ends here."""


def _die(*_: object) -> None:
    raise KilledError


def test_files_are_no_partition_directories(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite-lease-broker-2").write_bytes(b"")
    (tmp_path / "notes-3").write_text("a file of the user's")
    (tmp_path / "t-0").mkdir()
    assert directory_at(tmp_path).list_partitions() == [("t", 0)]
