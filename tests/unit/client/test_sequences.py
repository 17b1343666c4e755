"""Sequence numbers: the wrap, holding back, unresolved batches, a new epoch, the last epoch."""

from __future__ import annotations

from oncelog.client.producer.batch import Batch
from oncelog.client.producer.sequences import KNOWN_MS, MAX_EPOCH, Sequences
from oncelog.protocol.records import MAX_SEQUENCE, decode_records, parse_header

TP = ("t", 0)


class NoDelivery:
    ready = False


def batch(count: int = 2) -> Batch:
    made = Batch(TP, NoDelivery(), 0)  # type: ignore[arg-type]
    for index in range(count):
        made.append(None, b"%d" % index, 1_000 + index, ())
    return made


def started(first: int = 0) -> Sequences:
    """Return sequences of a partition that has acknowledged one batch of two records."""
    sequences = Sequences()
    sequences.set_producer(7, 0)
    one = batch()
    sequences.assign(one, transactional=False)
    sequences.delivered(one, 0)
    if first:
        sequences._of(TP).next = first
        sequences._of(TP).last_acked = (first - 1) & MAX_SEQUENCE
    return sequences


def test_batch_keeps_its_sequence_on_a_retry() -> None:
    sequences = started()
    one = batch()
    sequences.assign(one, transactional=True)
    wire = bytes(one.wire())
    one.in_retry = True
    sequences.assign(one, transactional=True)
    assert bytes(one.wire()) == wire
    header = parse_header(wire)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (7, 0, 2, 2)
    assert header.is_transactional
    assert [record.value for record in decode_records(wire)] == [b"0", b"1"]


def test_sequence_wraps_to_zero() -> None:
    sequences = started(MAX_SEQUENCE)
    straddling, following = batch(), batch()
    sequences.assign(straddling, transactional=False)
    sequences.assign(following, transactional=False)
    assert (straddling.base_sequence, straddling.last_sequence) == (MAX_SEQUENCE, 0)
    assert following.base_sequence == 1
    sequences.delivered(straddling, 10)
    assert sequences.is_next(following)


def test_first_batch_to_a_leader_is_sent_alone_until_acknowledged() -> None:
    sequences = Sequences()
    sequences.set_producer(7, 0)
    one, two = batch(), batch()
    assert not sequences.holds_back(one)
    sequences.assign(one, transactional=False)
    assert sequences.holds_back(two)
    sequences.delivered(one, 0)
    assert not sequences.holds_back(two)


def test_first_batch_after_a_long_pause_is_sent_alone() -> None:
    sequences = started()
    early, one, two = batch(), batch(), batch()
    early.created_ms = KNOWN_MS
    one.created_ms = two.created_ms = KNOWN_MS + 1
    assert not sequences.holds_back(one)
    sequences.assign(one, transactional=False)
    assert sequences.holds_back(two), (
        "if the broker has no producer state and rejects the first, it would accept this one"
    )
    assert not sequences.holds_back(early)
    sequences.delivered(one, 2)
    sequences.assign(two, transactional=False)
    assert not sequences.holds_back(batch())


def test_batches_are_sent_in_order_one_at_a_time_during_a_retry() -> None:
    sequences = started()
    one, two, three = batch(), batch(), batch()
    sequences.assign(one, transactional=False)
    sequences.assign(two, transactional=False)
    one.in_retry = two.in_retry = True
    assert not sequences.holds_back(one)
    assert sequences.holds_back(two)
    assert sequences.holds_back(three)
    sequences.delivered(one, 2)
    assert not sequences.holds_back(two)


def test_expired_batch_is_resolved_by_a_later_acknowledgement_or_stays_unresolved() -> None:
    for follower_arrives, lost in ((True, []), (False, [TP])):
        sequences = started()
        one, two = batch(), batch()
        sequences.assign(one, transactional=False)
        sequences.assign(two, transactional=False)
        sequences.remove(one)
        sequences.mark_unresolved(one)
        assert sequences.holds_back(batch())
        assert sequences.resolve() == [], "an answer may still arrive"
        if follower_arrives:
            sequences.delivered(two, 4)
        else:
            sequences.remove(two)
        assert sequences.resolve() == lost


def test_epoch_bump_renumbers_batches_in_flight() -> None:
    sequences = started()
    one, two = batch(), batch()
    sequences.assign(one, transactional=False)
    sequences.assign(two, transactional=False)
    sequences.request_bump(TP, "a test")
    assert sequences.bump_if_requested() == []
    assert sequences.epoch == 0, "both are in flight: an answer may still say that they are in the log"
    assert sequences.holds_back(batch())
    one.in_retry = two.in_retry = True
    assert sequences.bump_if_requested() == []
    assert sequences.epoch == 1
    assert [(b.producer_epoch, b.base_sequence) for b in (one, two)] == [(1, 0), (1, 2)]
    assert parse_header(one.wire()).producer_epoch == 1
    assert sequences.bump_if_requested() == []
    assert sequences.epoch == 1


def test_batch_in_doubt_is_never_renumbered() -> None:
    for epoch in (0, MAX_EPOCH):
        sequences = started()
        sequences.epoch = sequences._of(TP).epoch = epoch
        one, two = batch(), batch()
        for each in (one, two):
            sequences.assign(each, transactional=False)
            each.in_retry = True
        one.in_doubt = True
        sequences.request_bump(TP, "a test")
        assert sequences.bump_if_requested() == [one]
        if epoch == MAX_EPOCH:
            assert (sequences.producer_id, two.base_sequence) == (-1, -1)
        else:
            assert (two.producer_epoch, two.base_sequence) == (1, 0)
        assert (one.producer_epoch, one.base_sequence) == (epoch, 2)


def test_new_producer_id_is_needed_after_the_last_epoch() -> None:
    sequences = started()
    sequences.epoch = MAX_EPOCH
    one = batch()
    sequences.assign(one, transactional=False)
    sequences.request_bump(TP, "a test")
    assert sequences.bump_if_requested() == []
    assert sequences.producer_id == 7, "it is in flight"
    one.in_retry = True
    assert sequences.bump_if_requested() == []
    assert sequences.producer_id == -1
    assert one.base_sequence == -1
    sequences.set_producer(8, 0)
    sequences.assign(one, transactional=False)
    assert (one.producer_id, one.producer_epoch, one.base_sequence) == (8, 0, 0)
