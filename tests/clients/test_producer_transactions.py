"""Transactions of our own producer, with consumers and their offsets: the same tests for both servers."""

from __future__ import annotations

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.response_errors import raise_for_error
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.end_txn import EndTxnRequest
from support.processes import wait_until
from support.reading import read
from support.servers import Server

COMMITTED = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}


def fail_inside(producer: Producer, topic: str) -> None:
    with producer.transaction() as txn:
        txn.send(topic, b"aborted", partition=0)
        producer.flush()
        raise KeyError


def test_commit_abort_and_empty_transaction(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 2)
    with Producer(server.bootstrap, transactional_id=name) as producer:
        with producer.transaction() as txn:
            txn.send(name, b"1", partition=0)
            txn.send(name, b"2", partition=1)
        with pytest.raises(KeyError):
            fail_inside(producer, name)
        with producer.transaction():
            pass
        with producer.transaction() as txn:
            txn.send(name, b"3", partition=0)
    assert read(server.bootstrap, name, 2) == [b"1", b"3", b"2"]
    assert read(server.bootstrap, name, 2, committed=False) == [b"1", b"aborted", b"3", b"2"]


def test_successor_fences_the_producer_and_aborts(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    old = Producer(server.bootstrap, transactional_id=name)
    old.begin_transaction()
    old.send(name, b"left open").result(30)
    with Producer(server.bootstrap, transactional_id=name) as new:
        with new.transaction() as txn:
            txn.send(name, b"new")
        with pytest.raises(errors.KafkaError) as caught:
            old.send(name, b"late").result(30)
        assert caught.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
        with pytest.raises(errors.FencedError):
            old.abort_transaction()
        with pytest.raises(errors.FencedError):
            old.begin_transaction()
        committing = Producer(server.bootstrap, transactional_id=f"{name}-2")
        committing.begin_transaction()
        committing.send(name, b"never committed").result(30)
        Producer(server.bootstrap, transactional_id=f"{name}-2").close()
        with pytest.raises(errors.FencedError):
            committing.commit_transaction()
        committing.close()
    old.close()
    assert read(server.bootstrap, name) == [b"new"]


def test_misuse_errors_say_what_to_do(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer, pytest.raises(errors.UsageError, match="transactional_id"):
        producer.begin_transaction()
    with Producer(server.bootstrap, transactional_id=name) as producer:
        with pytest.raises(errors.UsageError, match="only in a transaction"):
            producer.send(name, b"x")
        with pytest.raises(errors.UsageError, match="no transaction to commit"):
            producer.commit_transaction()
        with producer.transaction(), pytest.raises(errors.UsageError, match="already in progress"):
            producer.begin_transaction()
    with pytest.raises(errors.KafkaError, match=r"transaction\.max\.timeout\.ms"):
        Producer(server.bootstrap, transactional_id=name, transaction_timeout_ms=2**31 - 1)


def test_producer_recovers_from_a_transaction_timeout(server: Server, admin: Admin, name: str) -> None:
    """The coordinator has aborted: the commit is rejected, and the same producer continues with its next
    transaction.
    """
    admin.create_topics(name)
    with Producer(server.bootstrap, transactional_id=name, transaction_timeout_ms=1_000) as producer:
        producer.begin_transaction()
        producer.send(name, b"too slow").result(30)
        wait_until(
            lambda: admin.describe_transaction(name).state == "CompleteAbort",
            "the transaction is aborted after its timeout",
        )
        with pytest.raises(errors.AbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction() as txn:
            txn.send(name, b"in time")
    assert read(server.bootstrap, name) == [b"in time"]


def test_detached_transaction_is_ended_by_another_process(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name, 2)
    producer = Producer(server.bootstrap, transactional_id=name)
    producer.begin_transaction()
    for index in range(2):
        producer.send(name, b"%d" % index, partition=index)
    producer.detach()
    assert producer.first_offsets == {(name, 0): 0, (name, 1): 0}
    assert admin.describe_transaction(name).state == "Ongoing"
    assert admin.describe_producers(name, 0)[0].transaction_start == 0
    assert admin.describe_topics(name)[0].partitions[0][5:9] == (0, 1, 0, 1)
    with BlockingCluster(server.bootstrap) as cluster:
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )
        for _ in range(2):
            raise_for_error(cluster.call_coordinator("transaction", name, request))
    assert read(server.bootstrap, name, 2) == [b"0", b"1"]


def test_read_process_write(server: Server, admin: Admin, name: str) -> None:
    """Aborts do not change the result: every record is processed once in the committed output."""
    source, sink = f"{name}-in", f"{name}-out"
    admin.create_topics([source, sink], 2)
    with Producer(server.bootstrap) as producer:
        for i in range(400):
            producer.send(source, b"%d" % i, partition=i % 2)
    with Producer(server.bootstrap, transactional_id=name) as producer:
        turn = done = 0
        while done < 400:
            with Consumer(server.bootstrap, group_id=name, enable_auto_commit=False, **COMMITTED) as consumer:
                consumer.subscribe([source])
                for _ in range(3):
                    records = consumer.poll(5, max_records=60)
                    turn += 1
                    producer.begin_transaction()
                    for record in records:
                        producer.send(sink, record.value, partition=record.partition)
                    producer.send_offsets(consumer)
                    if turn % 4 == 3:
                        producer.abort_transaction()
                        break
                    producer.commit_transaction()
                    done += len(records)
    # Apache Kafka answers EndTxn before the offsets are visible
    wait_until(lambda: admin.committed(name) == {(source, 0): 200, (source, 1): 200}, "the offsets are committed")
    assert [int(value or b"") for value in read(server.bootstrap, sink, 2)] == [*range(0, 400, 2), *range(1, 400, 2)]


def test_offsets_of_a_zombie_consumer_are_rejected(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"x")
    with Producer(server.bootstrap, transactional_id=name) as producer:
        with Consumer(server.bootstrap, group_id=name, enable_auto_commit=False, **COMMITTED) as zombie:
            zombie.subscribe([name])
            assert len(zombie.poll(30)) == 1
            stale = zombie.group_metadata()
        producer.begin_transaction()
        producer.send_offsets(stale, {(name, 0): 1})
        with pytest.raises(errors.AbortableError) as caught:
            producer.commit_transaction()
        assert isinstance(caught.value.__cause__, errors.GroupError)
        producer.abort_transaction()
        with producer.transaction() as txn:
            txn.send_offsets(name, {(name, 0): 1})
    wait_until(lambda: admin.committed(name) == {(name, 0): 1}, "the offset is committed")


def test_commit_that_the_group_rejects_leaves_nothing_to_abort(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with (
        Consumer(server.bootstrap, group_id=name) as consumer,
        Producer(server.bootstrap, transactional_id=name) as producer,
    ):
        consumer.subscribe([name])
        wait_until(lambda: consumer.poll(0.1) or consumer.assignment(), "the member has its assignment")
        former = consumer.group_metadata()._replace(generation_id=99)
        for early in (False, True):  # whether the rejection arrives before the commit
            with pytest.raises(errors.AbortableError), producer.transaction() as txn:  # noqa: PT012
                txn.send(name, b"refused")
                txn.send_offsets(former, {(name, 0): 1})
                if early:
                    wait_until(lambda: producer._core.manager.error, "the commit is rejected")  # type: ignore[union-attr]
            with producer.transaction() as txn:
                txn.send(name, b"after it")
    assert read(server.bootstrap, name, 1) == [b"after it", b"after it"]


def test_records_of_revoked_partitions_are_not_committed_without_their_offsets(
    server: Server, admin: Admin, name: str
) -> None:
    admin.create_topics(name, 2)
    with Producer(server.bootstrap) as producer:
        for partition in (0, 1):
            producer.send(name, b"x", partition=partition)
    options: dict[str, object] = {"group_id": name, "heartbeat_interval_ms": 100} | COMMITTED
    with (
        Producer(server.bootstrap, transactional_id=name) as producer,
        Consumer(server.bootstrap, **options) as first,
        Consumer(server.bootstrap, **options) as second,
    ):
        first.subscribe([name])
        taken: list[object] = []
        while len(taken) < 2:
            taken += first.poll(30)
        producer.begin_transaction()
        second.subscribe([name])
        while len(first.assignment()) == 2:  # after both have joined, the first gives up one partition
            second.poll(0.1)
            first.poll(0.1)
        with pytest.raises(errors.AbortableError):
            producer.send_offsets(first)
        producer.abort_transaction()
    assert admin.committed(name) == {}


def test_offsets_cannot_be_committed_both_ways(server: Server, name: str) -> None:
    with (
        Producer(server.bootstrap, transactional_id=name) as producer,
        Consumer(server.bootstrap, group_id=name, enable_auto_commit=True) as consumer,
    ):
        producer.begin_transaction()
        with pytest.raises(errors.UsageError, match="enable_auto_commit"):
            producer.send_offsets(consumer)
        producer.abort_transaction()


def test_auto_commit_without_a_subscription(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"x")
    with Consumer(server.bootstrap, group_id=name, enable_auto_commit=True, **COMMITTED) as consumer:
        consumer.assign([(name, 0)])
        assert len(consumer.poll(30)) == 1
    assert admin.committed(name) == {(name, 0): 1}
