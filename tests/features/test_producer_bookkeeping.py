"""I2: our producer's bookkeeping, as visible in its batches: id, epoch and sequences; and the states of a
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from oncelog import Producer, errors
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.producer.transaction_states import LEGAL, ManagerState
from oncelog.protocol.records import MAX_SEQUENCE, BatchHeader, iter_batches
from support.servers import Server
from support.wire import Wire, code


def batches(wire: Wire, topic: UUID, partition: int = 0) -> list[BatchHeader]:
    """Return the headers of the partition's data batches."""
    found = wire.fetch(topic, partition)
    assert not found.error_code, found
    return [header for header, _ in iter_batches(found.records or b"") if not header.is_control]


def check_sequences(headers: list[BatchHeader]) -> None:
    """Check that each batch follows the previous one."""
    expected = 0
    for header in headers:
        assert header.base_sequence == expected
        expected = (header.last_sequence + 1) & MAX_SEQUENCE


def test_sequences_of_each_partition_start_at_zero_without_gaps(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name, 3)
    with Producer(server.bootstrap, batch_size=200) as producer:
        for number in range(300):
            producer.send(name, b"%d" % number, partition=number % 3)
            if number % 50 == 0:
                producer.flush()
        producer.flush()
        who = (producer.producer_id, producer.producer_epoch)
    for partition in range(3):
        headers = batches(wire, topic, partition)
        assert len(headers) > 6
        assert {(header.producer_id, header.producer_epoch) for header in headers} == {who}
        check_sequences(headers)
        assert wire.values(topic, partition) == [b"%d" % number for number in range(partition, 300, 3)]


def test_each_producer_has_its_own_id_and_sequences(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name)
    with Producer(server.bootstrap) as one, Producer(server.bootstrap) as two:
        for _ in range(3):
            for producer in (one, two):
                producer.send(name, b"v").result(30)
        ids = (one.producer_id, two.producer_id)
    assert len(set(ids)) == 2
    for producer_id in ids:
        check_sequences([header for header in batches(wire, topic) if header.producer_id == producer_id])


def test_last_acknowledged_sequence_and_offset_are_tracked(wire: Wire, server: Server, name: str) -> None:
    wire.create_topic(name)
    with Producer(server.bootstrap) as producer:
        assert producer.send(name, b"v").result(30).offset == 0
        producer.send(name, b"v").result(30)
        manager = producer._core.manager
        assert manager is not None
        assert manager.sequences._of((name, 0)).last_acked == 1
        assert manager.sequences.last_acked_offset((name, 0)) == 1
        assert manager.sequences.in_flight((name, 0)) == []


def test_sequence_continues_at_zero_after_the_largest(wire: Wire, server: Server, name: str) -> None:
    """aiokafka continued with negative ones. The broker accepts any first sequence, so the test starts near the end."""
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, linger_ms=60_000) as producer:
        producer.send(name, b"-")
        producer.flush()
        manager = producer._core.manager
        assert manager is not None
        with producer._core.lock.lock:  # another, unknown producer, which starts near the largest sequence
            manager.sequences.set_producer(producer.producer_id + 500_000, 0)
            partition = manager.sequences._of((name, 0))
            partition.next, partition.last_acked = MAX_SEQUENCE - 3, MAX_SEQUENCE - 4
        for size in (2, 4, 3):
            for _ in range(size):
                producer.send(name, b"v")
            producer.flush()
    found = [(header.base_sequence, header.last_sequence) for header in batches(wire, topic)[1:]]
    assert found == [(MAX_SEQUENCE - 3, MAX_SEQUENCE - 2), (MAX_SEQUENCE - 1, 1), (2, 4)]


def test_transactions_continue_their_sequences_within_an_epoch(wire: Wire, server: Server, name: str) -> None:
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, transactional_id=name) as producer:
        for turn in range(3):
            with producer.transaction():
                producer.send(name, b"%d" % turn)
                producer.flush()
                producer.send(name, b"%d" % turn)
    headers = batches(wire, topic)
    assert all(header.is_transactional for header in headers)
    assert len({header.producer_id for header in headers}) == 1
    by_epoch = {epoch: [each for each in headers if each.producer_epoch == epoch] for epoch in range(10)}
    used = [epoch for epoch, found in by_epoch.items() if found]
    assert used == [0, 1, 2], "transaction.version 2: a new epoch for each transaction"
    for epoch in used:
        check_sequences(by_epoch[epoch])


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def producer(server: Server, name: str, wire: Wire) -> Iterator[Producer]:
    """Return a transactional producer that is ready."""
    wire.create_topic(name)
    with Producer(server.bootstrap, transactional_id=name) as made:
        yield made


ILLEGAL: dict[str, tuple[Callable[[Producer, str], object], str]] = {
    "send outside": (lambda producer, name: producer.send(name, b"v"), "only in a transaction"),
    "commit outside": (lambda producer, name: producer.commit_transaction(), "begin"),
    "abort outside": (lambda producer, name: producer.abort_transaction(), "begin"),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_calls_that_are_illegal_outside_a_transaction(producer: Producer, name: str, what: str) -> None:
    act, words = ILLEGAL[what]
    with pytest.raises(errors.UsageError, match=words):
        act(producer, name)
    with producer.transaction():
        producer.send(name, b"v")
    with pytest.raises(errors.UsageError, match=words):
        act(producer, name)


def test_transactions_cannot_be_nested(producer: Producer, name: str) -> None:
    producer.begin_transaction()
    with pytest.raises(errors.UsageError, match="in progress"):
        producer.begin_transaction()
    producer.send(name, b"v").result(30)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.abort_transaction()


def test_transactions_need_a_transactional_id(server: Server) -> None:
    with Producer(server.bootstrap) as producer, pytest.raises(errors.UsageError, match="transactional_id"):
        producer.begin_transaction()


def test_fenced_producer_stays_in_its_error(producer: Producer, server: Server, name: str) -> None:
    producer.begin_transaction()
    producer.send(name, b"lost").result(30)
    with Producer(server.bootstrap, transactional_id=name) as successor:
        with pytest.raises(errors.KafkaError):
            producer.commit_transaction()
        for act in (producer.abort_transaction, producer.commit_transaction, producer.begin_transaction):
            with pytest.raises(errors.FencedError) as caught:
                act()
            assert caught.value.code == code("PRODUCER_FENCED")
        with successor.transaction():
            successor.send(name, b"kept")


def test_only_the_transitions_of_the_table_are_legal() -> None:
    for before in ManagerState:
        for after in ManagerState:
            manager = TransactionManager("id")
            manager.state = before
            if after in LEGAL[before] or after is ManagerState.FATAL_ERROR:
                manager.to(after)
                assert manager.state is after
            else:
                with pytest.raises(errors.UsageError):
                    manager.to(after)
                assert manager.state is before
