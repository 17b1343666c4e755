"""A consumer while one of its topics is deleted, and after it is created again. Its other topics are not disturbed."""

from __future__ import annotations

import logging
import threading

import pytest

from oncelog import Admin, Consumer, Producer, errors
from support.deleted_topics import delete, drop_and_read_again, start_again_at_new_topic, take, two_topics, write
from support.processes import wait_until
from support.servers import Server

CLASSIC = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100, "allow_auto_create_topics": False}
KINDS = {
    "range": CLASSIC,
    "cooperative": CLASSIC | {"partition_assignment_strategy": "cooperative-sticky"},
}


@pytest.mark.parametrize("pattern", [False, True], ids=["names", "pattern"])
@pytest.mark.parametrize("kind", KINDS)
def test_member_drops_a_deleted_topic_and_reads_it_when_it_is_created_again(
    server: Server, admin: Admin, name: str, kind: str, pattern: bool
) -> None:
    options = KINDS[kind] | ({"metadata_max_age_ms": 500} if pattern else {})
    drop_and_read_again(server, admin, name, f"^{name}-" if pattern else None, options)


@pytest.mark.parametrize("kind", KINDS)
def test_position_of_a_deleted_topic_is_not_used_for_the_topic_of_the_same_name(
    server: Server, admin: Admin, name: str, kind: str
) -> None:
    """The new topic has more records than were read of the old one, so the old position is in its log."""
    start_again_at_new_topic(server, admin, name, KINDS[kind])


def test_assigned_partition_of_a_deleted_topic_does_not_fail_commits(server: Server, admin: Admin, name: str) -> None:
    kept, gone = two_topics(server, admin, name)
    with Consumer(server.bootstrap, group_id=name, auto_offset_reset="earliest") as consumer:
        consumer.assign([(kept, 0), (gone, 0)])
        assert take(consumer, 4) == [b"1", b"2", b"3", b"4"]
        delete(admin, gone)
        consumer.commit(timeout=10)
        assert admin.committed(name) == {(kept, 0): 1}
        assert consumer.positions() == {(kept, 0): 1}
        assert consumer.lag() == {(kept, 0): 0}
        with pytest.raises(errors.UnknownTopicError, match=gone):
            consumer.commit({(gone, 0): 3})
        consumer.seek_to_committed()
        write(server, kept, b"5")
        assert take(consumer, 1) == [b"5"], "the other partition is read on"
        admin.create_topics(gone)
        write(server, gone, b"6")
        assert take(consumer, 1) == [b"6"]
        consumer.commit()
        assert admin.committed(name) == {(kept, 0): 2, (gone, 0): 1}


def test_deleted_and_recreated_topic_is_named_in_the_log(
    server: Server, admin: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "oncelog")
    _, gone = two_topics(server, admin, name)
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(gone, 0)])
        take(consumer, 3)
        delete(admin, gone)
        admin.create_topics(gone)
        write(server, gone, b"a", b"b", b"c", b"d")
        assert take(consumer, 4) == [b"a", b"b", b"c", b"d"]
    assert f"{gone}-0: the topic was deleted and created again" in caplog.text
    with Consumer(server.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign({(gone, 0): 4})
        consumer.poll(0.5)
        delete(admin, gone)
        admin.create_topics(gone)
        with pytest.raises(errors.OffsetOutOfRangeError, match="deleted and created again"):
            wait_until(lambda: bool(consumer.poll(0.2)), "the error is raised")
        consumer.seek(gone, 0, 0)
        write(server, gone, b"z")
        assert take(consumer, 1) == [b"z"]


def test_transaction_names_the_deleted_topic_that_it_waits_for(
    server: Server, admin: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topics([name, f"{name}-out"])
    with Producer(server.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(f"{name}-out", b"x").result(30)
        delete(admin, name)
        producer.send_offsets(name, {(name, 0): 1})
        with pytest.raises(errors.AbortableError, match="does not exist any more"):
            producer.commit_transaction()
        producer.abort_transaction()
    warnings = [record.getMessage() for record in caplog.records if "the transaction waits" in record.getMessage()]
    assert warnings
    assert warnings[0].startswith(f"the transaction waits for a topic of send_offsets, one of '{name}': ")


def test_transaction_with_results_of_a_deleted_topic_is_committed_or_can_be_repeated(
    server: Server, admin: Admin, name: str
) -> None:
    """The documented loop: an AbortableError ends in an abort, and the consumer goes back to its committed offsets."""
    kept, gone = two_topics(server, admin, name)
    admin.create_topics(f"{name}-out")
    options = KINDS["range"] | {"enable_auto_commit": False}
    with (
        Consumer(server.bootstrap, group_id=name, **options) as consumer,
        Producer(server.bootstrap, transactional_id=name, max_block_ms=30_000) as producer,
    ):
        consumer.subscribe([kept, gone])
        records = take(consumer, 4)
        delete(admin, gone)
        done = threading.Event()
        while not done.is_set():
            producer.begin_transaction()
            try:
                for value in records:
                    producer.send(f"{name}-out", value)
                producer.send_offsets(consumer)
                producer.commit_transaction()
                done.set()
            except errors.AbortableError:
                producer.abort_transaction()
                consumer.seek_to_committed()
                records = take(consumer, 1)
    assert admin.committed(name) == {(kept, 0): 1}
    with Consumer(server.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as out:
        out.assign([(f"{name}-out", 0)])
        assert b"1" in take(out, 1)
