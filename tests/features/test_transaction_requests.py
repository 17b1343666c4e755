"""T3: the requests of a transaction in both protocol versions, and their errors."""

from __future__ import annotations

import pytest

from oncelog.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from support.transactions import (
    commit_offset,
    committed,
    describe,
    end_once,
    ended,
    logged,
    markers,
    state,
    until_state,
    verify,
    write,
    written,
)
from support.wire import Session, Wire, batch, code, until

MAPPING = code("INVALID_PRODUCER_ID_MAPPING")
FENCED = code("PRODUCER_FENCED")


def test_transaction_over_partitions_topics_and_a_group(wire: Wire, name: str) -> None:
    """All markers, including those for the group's offsets, have one producer and one epoch."""
    ids = [wire.create_topic(f"{name}-{topic}", 2) for topic in "ab"]
    wire.find_coordinator(name, 0)
    who = wire.session(name)
    for topic in "ab":
        for partition in (0, 1):
            written(wire, name, who, f"{name}-{topic}", [b"x"], partition=partition)
    assert commit_offset(wire, name, who, name, f"{name}-a", 3) == 0
    found = describe(wire, name)
    named = {(each.topic, partition) for each in found.topics for partition in each.partitions}
    assert len(named) == 5
    assert {topic for topic, _ in named} == {f"{name}-a", f"{name}-b", "__consumer_offsets"}
    after = ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    for topic_id in ids:
        for partition in (0, 1):
            assert markers(wire, topic_id, partition) == [(who.producer_id, after.epoch, "COMMIT")]
    assert committed(wire, name, f"{name}-a") == (3, 0)
    assert describe(wire, name).topics == []


def test_begin_sends_nothing_and_the_first_partition_starts_the_timeout(wire: Wire, name: str) -> None:
    wire.create_topic(name, 2)
    who = wire.session(name)
    assert describe(wire, name).transaction_start_time_ms == -1
    assert wire.add_partitions(name, who, name, [0]) == [0]
    started = describe(wire, name).transaction_start_time_ms
    assert started > 0
    assert wire.add_partitions(name, who, name, [1]) == [0]
    assert describe(wire, name).transaction_start_time_ms == started


def test_every_request_can_be_repeated(wire: Wire, name: str) -> None:
    """A retry after a lost answer gets the same answer, and nothing happens twice."""
    topic_id = wire.create_topic(name)
    wire.find_coordinator(name, 0)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == wire.add_partitions(name, who, name) == [0]
    records = len(logged(wire, name))
    assert wire.add_partitions(name, who, name) == [0]
    assert len(logged(wire, name)) == records
    answers = [write(wire, name, who, name, [b"a", b"b"]) for _ in range(2)]
    assert [(each.error_code, each.base_offset) for each in answers] == [(0, 0)] * 2
    assert [commit_offset(wire, name, who, name, name, 2) for _ in range(2)] == [0, 0]
    assert [wire.add_offsets(name, who, name).error_code for _ in range(2)] == [0, 0]
    after = ended(wire, name, who)
    assert ended(wire, name, who) == after
    until_state(wire, name, "CompleteCommit")
    assert wire.values(topic_id, committed=True) == [b"a", b"b"]
    assert len(markers(wire, topic_id)) == 1
    assert committed(wire, name, name) == (2, 0)


@pytest.mark.parametrize("commit", [True, False])
def test_end_txn_before_version_5_can_be_repeated(wire: Wire, name: str, commit: bool) -> None:
    topic_id = wire.create_topic(name)
    who = wire.session(name)
    assert wire.add_partitions(name, who, name) == [0]
    assert [wire.end(name, who, commit, version=4).error_code for _ in range(3)] == [0] * 3
    assert end_once(wire, name, who, not commit, version=4).error_code == code("INVALID_TXN_STATE")
    assert len(markers(wire, topic_id)) == 1


def test_only_the_current_producer_may_add_partitions_and_end(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    other = Session(who.producer_id + 1_000_000, who.epoch)
    older, newer = Session(who.producer_id, who.epoch - 1), Session(who.producer_id, who.epoch + 1)
    assert wire.add_partitions(name, other, name) == [MAPPING]
    assert wire.add_partitions(f"{name}-unknown", who, name) == [MAPPING]
    assert wire.add_partitions(name, older, name) == wire.add_partitions(name, newer, name) == [FENCED]
    assert wire.add_partitions("", who, name) == [code("INVALID_REQUEST")]
    assert wire.add_offsets(name, other, name).error_code == MAPPING
    assert wire.add_offsets(name, newer, name).error_code == FENCED
    assert wire.add_partitions(name, who, name) == [0]
    for version in (3, 5):
        assert end_once(wire, name, other, version=version).error_code == MAPPING
        assert end_once(wire, f"{name}-unknown", who, version=version).error_code == MAPPING
        assert end_once(wire, name, newer, version=version).error_code == FENCED, "KAFKA-9600"
        assert end_once(wire, name, older, version=version).error_code == FENCED
    assert end_once(wire, name, newer, version=1).error_code == code("INVALID_PRODUCER_EPOCH")
    assert state(wire, name) == "Ongoing"


def test_partitions_are_added_all_or_none(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=[0, 5]),
            AddPartitionsToTxnTopic(name=f"{name}-missing", partitions=[0]),
        ],
    )
    results = wire.call(request, 3).results_by_topic_v3_and_below
    codes = {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in results
        for each in topic.results_by_partition
    }
    unknown = code("UNKNOWN_TOPIC_OR_PARTITION")
    assert codes == {
        (name, 0): code("OPERATION_NOT_ATTEMPTED"),
        (name, 5): unknown,
        (f"{name}-missing", 0): unknown,
    }
    assert state(wire, name) == "Empty"


def test_brokers_add_and_verify_for_many_transactions_in_one_request(wire: Wire, name: str) -> None:
    wire.create_topic(name, 2)
    first, second = wire.session(f"{name}-1"), wire.session(f"{name}-2")
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=f"{name}-{number}",
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                topics=[AddPartitionsToTxnTopic(name=name, partitions=[0])],
            )
            for number, who in ((1, first), (2, second))
        ]
    )
    results = wire.call(request, 5).results_by_transaction
    assert {each.transactional_id for each in results} == {f"{name}-1", f"{name}-2"}
    assert {each.topic_results[0].results_by_partition[0].partition_error_code for each in results} == {0}
    abortable = code("TRANSACTION_ABORTABLE")
    assert verify(wire, f"{name}-1", first, name, [0, 1]) == [0, abortable]
    assert verify(wire, f"{name}-1", second, name) == [MAPPING]
    assert verify(wire, f"{name}-1", Session(first.producer_id, first.epoch + 1), name) == [FENCED]


def test_kafka_18401_end_txn_of_an_empty_transaction(wire: Wire, name: str) -> None:
    """Clients do not send it. If one does, a commit returns an error, and an abort only bumps the epoch."""
    wire.create_topic(name)
    who = wire.session(name)
    for version in (4, 5):
        assert end_once(wire, name, who, version=version).error_code == code("INVALID_TXN_STATE")
    assert end_once(wire, name, who, commit=False, version=4).error_code == code("INVALID_TXN_STATE")
    after = ended(wire, name, who, commit=False)
    assert after == Session(who.producer_id, who.epoch + 1)
    until_state(wire, name, "CompleteAbort")
    assert ended(wire, name, who, commit=False) == after, "a retry"
    assert end_once(wire, name, after).error_code == code("INVALID_TXN_STATE")
    written(wire, name, after, name, [b"x"])
    ended(wire, name, after)


def test_transaction_log_records_name_their_producer(wire: Wire, name: str) -> None:
    """While the transaction is open, records outside it are rejected."""
    wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"a"])
    answer = wire.produce(name, batch([b"b"], who, 1))
    assert answer.error_code == code("INVALID_TXN_STATE")
    ended(wire, name, who)


def test_kafka_17507_offsets_are_visible_when_the_commit_completes(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name, 0)
    who = wire.session(name)
    for offset in range(1, 6):
        assert commit_offset(wire, name, who, name, name, offset) == 0
        who = ended(wire, name, who)
        until_state(wire, name, "CompleteCommit")
        assert committed(wire, name, name) == (offset, 0)


def test_topic_deleted_during_a_transaction_does_not_block_its_end(wire: Wire, name: str) -> None:
    """The deleted topic's markers are skipped. The other partitions get theirs."""
    from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    kept = wire.create_topic(name)
    wire.create_topic(f"{name}-doomed")
    who = wire.session(name)
    written(wire, name, who, f"{name}-doomed", [b"x"])
    written(wire, name, who, name, [b"y"])
    doomed = DeleteTopicsRequest(topics=[DeleteTopicState(name=f"{name}-doomed")], timeout_ms=10_000)
    assert not wire.call(doomed, 6).responses[0].error_code
    ended(wire, name, who)
    until_state(wire, name, "CompleteCommit")
    assert until(lambda: wire.values(kept, committed=True), bool, "the other topic's records") == [b"y"]
