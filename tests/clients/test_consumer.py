"""Reading with our consumer: positions, pauses, large records, wake-ups, and requests about offsets."""

from __future__ import annotations

import threading
import time

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.client.types import ConsumerRecord
from support.processes import wait_until
from support.servers import Server

EARLIEST = {"auto_offset_reset": "earliest"}


def test_nothing_is_lost_or_duplicated_over_pauses_and_seeks(server: Server, admin: Admin, name: str) -> None:
    """Fetches run ahead of polls. When their records arrive, these must match the consumer's position at that time."""
    admin.create_topics(name, 3)
    with Producer(server.bootstrap) as producer:
        for number in range(3_000):
            producer.send(name, b"%d" % number, partition=number % 3)
    partitions = [(name, index) for index in range(3)]
    # Small answers: one arrives while the previous one is polled.
    with Consumer(server.bootstrap, max_partition_fetch_bytes=2_000, fetch_max_wait_ms=10, **EARLIEST) as consumer:
        consumer.assign(partitions)
        expected = dict.fromkeys(range(3), 0)
        turn = 0
        while sum(expected.values()) < 3_000:
            turn += 1
            for record in consumer.poll(0.05, max_records=7):
                assert record.offset == expected[record.partition]
                expected[record.partition] += 1
            if turn % 5 == 1:
                consumer.resume()
                consumer.pause([partitions[turn % 3]])
                assert consumer.paused() == [partitions[turn % 3]]
            if turn % 11 == 10:
                part = turn % 3
                expected[part] = max(expected[part] - 3, 0)
                consumer.seek(name, part, expected[part])
            if turn % 40 == 39:
                consumer.assign(partitions[:2])
                consumer.assign(partitions)  # the third partition starts at its beginning
                consumer.seek(name, 2, expected[2])
        assert consumer.lag() == dict.fromkeys(partitions, 0)


def test_record_larger_than_the_fetch_size_is_returned(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        for size in (10, 300_000, 20):
            producer.send(name, b"x" * size).result(30)
    sizes = {"max_partition_fetch_bytes": 1_000, "fetch_max_bytes": 2_000}
    with Consumer(server.bootstrap, **sizes, **EARLIEST) as consumer:
        consumer.assign([(name, 0)])
        found: list[int] = []
        while len(found) < 3:
            found += [len(record.value or b"") for record in consumer.poll(30)]
    assert found == [10, 300_000, 20]


def test_committed_offsets_keep_metadata_and_epochs(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 2)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"1", partition=0)
    with Consumer(server.bootstrap, group_id=name, **EARLIEST) as consumer:
        consumer.assign([(name, 0)])
        assert len(consumer.poll(30)) == 1
        consumer.commit()
        (committed,) = consumer.committed([(name, 0), (name, 1)]).values()
        assert (committed, committed.leader_epoch, committed.metadata) == (1, 0, "")
        consumer.commit_async({(name, 0): OffsetAndMetadata(0, metadata="again"), (name, 1): 7}).result(30)
        found = consumer.committed()
        assert found == {(name, 0): 0, (name, 1): 7}
        assert found[name, 0].metadata == "again"


def test_assignment_with_offsets_begins_there(server: Server, admin: Admin, name: str) -> None:
    """Committed offsets do not count, and partitions of the former assignment move, too."""
    admin.create_topics(name, 3)
    with Producer(server.bootstrap) as producer:
        for number in range(30):
            producer.send(name, b"%d" % (number // 3), partition=number % 3)
    with Consumer(server.bootstrap, group_id=name, **EARLIEST) as consumer:
        consumer.commit({(name, 0): 2, (name, 1): 2})
        consumer.assign([(name, 0)])
        assert consumer.poll(30)[0].offset == 2
        consumer.assign({(name, 0): 5, (name, 1): OffsetAndMetadata(9, leader_epoch=0), (name, 2): 10})
        assert consumer.assignment() == [(name, 0), (name, 1), (name, 2)]
        assert consumer.positions() == {(name, 0): 5, (name, 1): 9, (name, 2): 10}
        found: list[tuple[int, int]] = []
        while len(found) < 6:
            found += [(record.partition, record.offset) for record in consumer.poll(30)]
        assert sorted(found) == [(0, offset) for offset in range(5, 10)] + [(1, 9)]
        with pytest.raises(errors.UsageError, match="must not be negative"):
            consumer.assign({(name, 0): -1})
        assert len(consumer.assignment()) == 3, "unchanged"


def test_records_have_timestamp_type_and_leader_epoch(server: Server, admin: Admin, name: str) -> None:
    """0 is create time and 1 log append time, as in the column timestampType of `tables`."""
    admin.create_topics(name)
    before = time.time_ns() // 1_000_000
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"created", timestamp=1_000).result(30)
        admin.alter_topic_configs(name, {"message.timestamp.type": "LogAppendTime"})
        producer.send(name, b"appended", timestamp=1_000).result(30)
    with Consumer(server.bootstrap) as consumer:
        epoch = consumer.partitions_for(name)[0].leader_epoch
        consumer.assign({(name, 0): 0})
        found: list[ConsumerRecord] = []
        while len(found) < 2:
            found += consumer.poll(30)
    assert [(record.value, record.timestamp_type) for record in found] == [(b"created", 0), (b"appended", 1)]
    assert found[0].timestamp == 1_000 < before <= found[1].timestamp
    assert [record.leader_epoch for record in found] == [epoch, epoch]


def test_topics_partitions_and_offsets_are_listed(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 2)
    with Producer(server.bootstrap) as producer:
        for number in range(5):
            producer.send(name, b"x", partition=0, timestamp=1_000 + number)
    with Consumer(server.bootstrap) as consumer:
        both = [(name, 0), (name, 1)]
        assert consumer.list_topics()[name] == 2
        assert {number: found.leader for number, found in consumer.partitions_for(name).items()} == {0: 1, 1: 1}
        assert consumer.beginning_offsets(both) == {(name, 0): 0, (name, 1): 0}
        assert consumer.end_offsets(both) == {(name, 0): 5, (name, 1): 0}
        found = consumer.offsets_for_times({(name, 0): 1_003, (name, 1): 0})
        assert found == {(name, 0): (3, 1_003, 0), (name, 1): None}
        assert consumer.offsets_for_times({(name, 0): 2_000}) == {(name, 0): None}
        with pytest.raises(errors.UnknownTopicError, match="Create the topic"):
            consumer.partitions_for(f"{name}-missing", timeout=0.5)


def test_reset_by_duration(server: Server, admin: Admin, name: str) -> None:
    """KIP-1106: start at the first record that is not older."""
    admin.create_topics(name, 2)
    now = time.time_ns() // 1_000_000
    with Producer(server.bootstrap) as producer:
        for age in (7_200_000, 1_800_000, 0):
            producer.send(name, b"%d" % age, partition=0, timestamp=now - age)
        producer.send(name, b"old", partition=1, timestamp=now - 7_200_000)
    with Consumer(server.bootstrap, auto_offset_reset="by_duration:PT1H") as consumer:
        consumer.assign([(name, 0), (name, 1)])
        assert [record.value for record in consumer.poll(30)] == [b"1800000", b"0"]
        assert consumer.position(name, 1) == 1, "no record is that new: the end"


def test_wakeup_ends_a_poll(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Consumer(server.bootstrap, group_id=name, **EARLIEST) as consumer:
        consumer.subscribe([name])
        consumer.wakeup()
        with pytest.raises(errors.WakeupError):
            consumer.poll(60)
        polling = threading.Event()

        def wake() -> None:
            polling.wait()
            consumer.wakeup()

        waker = threading.Thread(target=wake)
        waker.start()
        polling.set()
        with pytest.raises(errors.WakeupError):
            for _ in consumer.tables():
                pass
        waker.join()
        with Producer(server.bootstrap) as producer:
            producer.send(name, b"still there")
        assert [record.value for record in consumer.poll(30)] == [b"still there"]


def test_lag_equals_that_of_kafkas_tools(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        for _ in range(10):
            producer.send(name, b"x")
    with Consumer(server.bootstrap, group_id=name, **EARLIEST) as consumer:
        consumer.subscribe([name])
        assert len(consumer.poll(30, max_records=4)) == 4
        consumer.commit()
        assert consumer.lag() == consumer.cached_lag() == {(name, 0): 6}
        ends = consumer.end_offsets([(name, 0)])
        assert {tp: ends[tp] - offset for tp, offset in admin.committed(name).items()} == consumer.lag()


def test_broker_assigns_partitions(server: Server, admin: Admin, name: str) -> None:
    """The consumer protocol (KIP-848). Several members: conformance/test_consumer_protocol.py."""
    admin.create_topics(name, 2)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"1", partition=1)
    with Consumer(server.bootstrap, group_id=name, group_protocol="consumer", **EARLIEST) as consumer:
        consumer.subscribe([name])
        found: list[bytes | None] = []
        wait_until(lambda: found.extend(record.value for record in consumer.poll(0.1)) or found, "a record")
        assert (found, consumer.assignment()) == ([b"1"], [(name, 0), (name, 1)])
        consumer.commit()
    assert admin.committed(name)[name, 1] == 1


def test_consumer_survives_a_broker_restart(own_server: Server) -> None:
    """The leader epoch changes on Apache Kafka.

    The consumer validates its position, which is still correct (KIP-320).
    """
    with Admin(own_server.bootstrap) as admin:
        admin.create_topics("t")
    with (
        Producer(own_server.bootstrap) as producer,
        Consumer(own_server.bootstrap, auto_offset_reset="none", retry_backoff_ms=50) as consumer,
    ):
        producer.send("t", b"before").result(30)
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 0)
        assert [record.value for record in consumer.poll(30)] == [b"before"]
        own_server.kill()
        own_server.wait_ready()
        producer.send("t", b"after").result(60)
        assert [record.value for record in consumer.poll(60)] == [b"after"]


def test_missing_topic_is_created_if_allowed(server: Server, admin: Admin, name: str) -> None:
    with Consumer(server.bootstrap, group_id=name, allow_auto_create_topics=True, **EARLIEST) as consumer:
        consumer.subscribe([name])
        wait_until(lambda: not consumer.poll(0.1) and consumer.assignment() == [(name, 0)], "the topic exists")


def test_misuse_errors_say_what_to_do(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Consumer(server.bootstrap) as consumer:
        for call, words in (
            (lambda: consumer.poll(0), "before poll"),
            (lambda: consumer.subscribe([name]), "group_id"),
            (lambda: consumer.commit({(name, 0): 1}), "group_id"),
            (lambda: consumer.seek(name, 0, 1), "not assigned"),
        ):
            with pytest.raises(errors.UsageError, match=words):
                call()
    with Consumer(server.bootstrap, group_id=name) as consumer:
        for topics, words in (("^(", "regular expression"), ([], "needs at least one topic")):
            with pytest.raises(errors.UsageError, match=words):
                consumer.subscribe(topics)
        consumer.assign([(name, 0)])
        with pytest.raises(errors.UsageError, match=r"unsubscribe\(\) first"):
            consumer.subscribe([name])
        with pytest.raises(errors.UsageError, match="cannot seek to offset -1"):
            consumer.seek(name, 0, -1)
        with pytest.raises(errors.UsageError, match="must not be negative"):
            consumer.commit({(name, 0): -1})
    with pytest.raises(errors.UsageError, match="closed"):
        consumer.poll(0)
