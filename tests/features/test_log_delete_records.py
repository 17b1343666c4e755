"""DeleteRecords: the start offset moves. Earlier records are out of range at once and deleted from disk later."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.client.admin.blocking import Admin
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from support.servers import Server
from support.wire import Wire, batch, code, retried, until, visible

EVERYTHING = -1


def delete(wire: Wire, topic: str, offset: int, partition: int = 0, version: int | None = None) -> tuple[int, int]:
    """Return (error code, low watermark) of one partition."""
    wanted = DeleteRecordsTopic(
        name=topic, partitions=[DeleteRecordsPartition(partition_index=partition, offset=offset)]
    )
    answer = wire.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=10_000), version).topics[0]
    assert answer.name == topic
    (found,) = answer.partitions
    assert found.partition_index == partition
    return found.error_code, found.low_watermark


def fill(wire: Wire, topic: str, count: int = 10) -> None:
    for number in range(count):
        records = batch([b"%d" % number])
        assert not retried(lambda records=records: wire.produce(topic, records)).error_code


def test_partition_starts_at_the_offset(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name)
    fill(wire, name)
    for version, offset in enumerate((2, 3, 4)):
        assert delete(wire, name, offset, version=version) == (0, offset)
    assert delete(wire, name, 1) == (0, 4)  # it never decreases, and that is not an error
    assert wire.offset(name, -2) == 4
    assert wire.offset(name) == 10
    for offset in (0, 3):
        assert wire.fetch(topic_id, offset=offset).error_code == code("OFFSET_OUT_OF_RANGE")
    found = wire.fetch(topic_id, offset=4)
    assert (found.error_code, found.log_start_offset) == (0, 4)
    assert delete(wire, name, EVERYTHING) == (0, 10)
    assert wire.offset(name, -2) == wire.offset(name) == 10
    records = batch([b"next"])
    assert wire.produce(name, records).log_start_offset == 10


def test_offset_inside_a_batch(wire: Wire, name: str) -> None:
    """The batch is sent as a whole. The consumer skips its first records."""
    topic_id = wire.create_topic(name)
    assert not retried(lambda: wire.produce(name, batch([b"0", b"1", b"2"]))).error_code
    assert delete(wire, name, 1) == (0, 1)
    assert visible(wire.fetch(topic_id, offset=1), 1) == [b"1", b"2"]
    assert wire.fetch(topic_id, offset=0).error_code == code("OFFSET_OUT_OF_RANGE")


def test_invalid_requests_are_rejected(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name)
    wire.create_topic(f"{name}-compacted", cleanup_policy="compact")
    wire.create_topic(f"{name}-both", cleanup_policy="compact,delete")
    fill(wire, name, 3)
    assert delete(wire, name, 4) == (code("OFFSET_OUT_OF_RANGE"), -1)
    assert delete(wire, name, -2) == (code("OFFSET_OUT_OF_RANGE"), -1)
    assert delete(wire, f"{name}-compacted", 0) == (code("POLICY_VIOLATION"), -1)
    assert delete(wire, f"{name}-both", 0) == (0, 0)
    assert delete(wire, f"{name}-unknown", 0) == (code("UNKNOWN_TOPIC_OR_PARTITION"), -1)
    assert delete(wire, name, 0, partition=7) == (code("UNKNOWN_TOPIC_OR_PARTITION"), -1)
    wire.session(f"{name}-txn")
    assert delete(wire, "__transaction_state", 0) == (code("INVALID_TOPIC_EXCEPTION"), -1)
    assert len(wire.values(topic_id)) == 3


def test_each_partition_has_its_own_answer(wire: Wire, name: str) -> None:
    wire.create_topic(name, partitions=2)
    fill(wire, name, 2)
    partitions = [DeleteRecordsPartition(partition_index=index, offset=1) for index in (0, 1)]
    wanted = DeleteRecordsTopic(name=name, partitions=partitions)
    answer = wire.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=10_000)).topics[0].partitions
    found = {each.partition_index: (each.error_code, each.low_watermark) for each in answer}
    assert found == {0: (0, 1), 1: (code("OFFSET_OUT_OF_RANGE"), -1)}


def test_deleted_transactions_no_longer_hold_back_readers(wire: Wire, name: str) -> None:
    """Up to the high watermark, into an open transaction: the last stable offset is not before the log start offset."""
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    for sequence in (0, 1):
        one = batch([b"%d" % sequence], who, sequence, transactional=True)
        assert not retried(lambda one=one: wire.produce(name, one, transactional_id=name)).error_code
    assert delete(wire, name, 1) == (0, 1)
    assert wire.offset(name, committed=True) == 1
    assert not wire.end(name, who, False).error_code
    until(lambda: wire.offset(name, committed=True), lambda end: end == 3, "the marker is written")
    assert visible(wire.fetch(topic_id, offset=1, committed=True), 1) == []


def test_deletion_survives_a_restart_and_producer_state_is_kept(
    start_server: Callable[[dict[str, str]], Server], name: str
) -> None:
    """KAFKA-7190, KIP-360: a producer continues although all of its records are deleted, also after a restart."""
    settings = {
        "log.flush.start.offset.checkpoint.interval.ms": "50",
        "log.flush.offset.checkpoint.interval.ms": "50",
        "log.retention.check.interval.ms": "50",
        "log.initial.task.delay.ms": "50",
    }
    server = start_server(settings)
    with Wire(server.bootstrap) as wire:
        topic_id = wire.create_topic(name, internal_segment_bytes="300", file_delete_delay_ms="0")
        who = wire.session()
        for sequence in range(10):
            records = batch([bytes(100)], who, sequence)
            assert not retried(lambda records=records: wire.produce(name, records)).error_code
        assert delete(wire, name, 7) == (0, 7)
        folder = server.partition_dir(name)
        until(
            lambda: min(path.name for path in folder.glob("*.log")),
            lambda first: int(first[:20]) >= 6,
            "files are deleted",
        )
        assert delete(wire, name, EVERYTHING) == (0, 10)
        assert wire.produce(name, batch([b"gap"], who, 11)).error_code == code("OUT_OF_ORDER_SEQUENCE_NUMBER")
        assert wire.produce(name, batch([bytes(100)], who, 9)).base_offset == 9
        assert wire.produce(name, batch([b"next"], who, 10)).base_offset == 10
        checkpoint = server.partition_dir(name).parent / "log-start-offset-checkpoint"

        def wait_until_stored() -> bool:
            """Wait until the start offset is stored: in the checkpoint, or (if Kafka omits it there) as the name of
            the first file.
            """
            first = min(path.name for path in folder.glob("*.log"))
            return f"{name} 0 10\n" in checkpoint.read_text() or int(first[:20]) == 10

        until(wait_until_stored, bool, "the start offset is stored")
    server.kill()
    server.wait_ready()
    with Wire(server.bootstrap) as wire:
        start = until(
            lambda: wire.fetch(topic_id, offset=10), lambda answer: not answer.error_code, "the directory is online"
        )
        assert start.log_start_offset == 10
        assert wire.fetch(topic_id, offset=9).error_code == code("OFFSET_OUT_OF_RANGE")
        assert wire.produce(name, batch([b"gap"], who, 12)).error_code == code("OUT_OF_ORDER_SEQUENCE_NUMBER")
        assert wire.produce(name, batch([b"next"], who, 11)).base_offset == 11
        request = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0])])
        (producer,) = wire.call(request).topics[0].partitions[0].active_producers
        assert (producer.producer_id, producer.last_sequence) == (who.producer_id, 11)


def test_our_client_sends_to_the_leaders(server: Server, wire: Wire, name: str) -> None:
    wire.create_topic(name, partitions=2)
    fill(wire, name, 5)
    with Admin(server.bootstrap) as admin:
        assert admin.delete_records({(name, 0): 2, (name, 1): EVERYTHING}) == {(name, 0): 2, (name, 1): 0}
        assert admin.offsets({(name, 0): -2}) == {(name, 0): 2}
