"""I7: checks of a batch's epoch and sequence against the producer state: full, by epoch only, or none."""

from __future__ import annotations

import pytest

from oncelog.protocol.records import MAX_SEQUENCE
from support.servers import Server
from support.transactions import commit_offset, committed, ended, written
from support.wire import Session, Wire, batch, code, until

OUT_OF_ORDER = code("OUT_OF_ORDER_SEQUENCE_NUMBER")
INVALID_EPOCH = code("INVALID_PRODUCER_EPOCH")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_sequence_wraps_to_zero(wire: Wire, name: str, count: int) -> None:
    """aiokafka continued with a negative sequence. A batch of 3 or 4 crosses the wrap."""
    wire.create_topic(name)
    who = wire.session()
    last = wire.produce(name, batch([b"v"], who, MAX_SEQUENCE - 2))
    assert last.base_offset == 0
    straddling = batch([b"v"] * count, who, MAX_SEQUENCE - 1)
    assert wire.produce(name, straddling).base_offset == 1
    following = (MAX_SEQUENCE - 1 + count) & MAX_SEQUENCE
    assert wire.produce(name, batch([b"v"], who, following)).base_offset == 1 + count
    assert wire.produce(name, straddling).base_offset == 1, "the batch is remembered"
    for wrong in {(following + 2) & MAX_SEQUENCE, (following - 1) & MAX_SEQUENCE, (following + 5) & MAX_SEQUENCE}:
        assert wire.produce(name, batch([b"v", b"v"], who, wrong)).error_code == OUT_OF_ORDER
    assert wire.produce(name, batch([b"v"], who, (following + 1) & MAX_SEQUENCE)).base_offset == 2 + count
    assert wire.offset(name) == 3 + count


@pytest.mark.parametrize("sequence", [-1, -2, -(2**31)])
def test_negative_sequence_is_rejected(wire: Wire, name: str, sequence: int) -> None:
    wire.create_topic(name)
    who = wire.session()
    assert wire.produce(name, batch([b"v"], who, MAX_SEQUENCE)).base_offset == 0
    assert wire.produce(name, batch([b"v"], who, sequence)).error_code == code("INVALID_RECORD")
    assert wire.produce(name, batch([b"v"], who, 0)).base_offset == 1


def test_new_epoch_starts_at_sequence_zero(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    newer = Session(who.producer_id, who.epoch + 3)
    assert wire.produce(name, batch([b"v"], who, 0)).base_offset == 0
    for sequence in (1, 7, MAX_SEQUENCE):
        assert wire.produce(name, batch([b"v"], newer, sequence)).error_code == OUT_OF_ORDER
    assert wire.produce(name, batch([b"v"], who, 1)).base_offset == 1, "the rejected batch has changed nothing"
    assert wire.produce(name, batch([b"v"], newer, 0)).base_offset == 2


def test_older_epoch_is_rejected_whatever_its_sequence(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    newer = Session(who.producer_id, 5)
    assert wire.produce(name, batch([b"v"], newer, 0)).base_offset == 0
    for epoch in (0, 4):
        for sequence in (0, 1, 9):
            answer = wire.produce(name, batch([b"v"], Session(who.producer_id, epoch), sequence))
            assert answer.error_code == INVALID_EPOCH
    assert wire.offset(name) == 1


def test_largest_epoch_is_valid(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session()
    last = Session(who.producer_id, 32_767)
    assert wire.produce(name, batch([b"v"], Session(who.producer_id, 32_766), 0)).base_offset == 0
    assert wire.produce(name, batch([b"v"], last, 0)).base_offset == 1
    assert wire.produce(name, batch([b"v"], last, 1)).base_offset == 2
    assert wire.produce(name, batch([b"v"], who, 0)).error_code == INVALID_EPOCH


def test_epoch_out_of_range(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: Kafka accepts the epoch -1 of an unknown producer. oncelog rejects it, because no producer can have
    it.
    """
    wire.create_topic(name)
    who = Session(wire.session().producer_id, -1)
    answer = wire.produce(name, batch([b"v"], who, 0))
    assert answer.error_code == (code("INVALID_RECORD") if server.name == "oncelog" else 0)


def test_batches_without_a_producer_id_are_not_checked(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    for _ in range(3):
        assert not wire.produce(name, batch([b"v"])).error_code
    assert wire.offset(name) == 3


def test_group_offset_batches_are_checked_by_epoch_only(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name, 0)
    who = wire.session(name)
    assert not wire.add_offsets(name, who, name).error_code
    for offset in (1, 2, 3, 2):  # the coordinator's records have no sequences
        assert commit_offset(wire, name, who, name, name, offset) == 0
    successor = ended(wire, name, who)
    until(lambda: committed(wire, name, name)[0], lambda offset: offset == 2, "the record is committed")
    assert not wire.add_offsets(name, successor, name).error_code
    assert commit_offset(wire, name, successor, name, name, 4) == 0
    assert commit_offset(wire, name, who, name, name, 5) == INVALID_EPOCH
    ended(wire, name, successor)
    until(lambda: committed(wire, name, name)[0], lambda offset: offset == 4, "the record is committed")


def test_plain_batch_inside_a_transaction_is_rejected(wire: Wire, name: str) -> None:
    wire.create_topic(name)
    who = wire.session(name)
    written(wire, name, who, name, [b"a"])
    answer = wire.produce(name, batch([b"b"], who, 1), transactional_id=name)
    assert answer.error_code == code("INVALID_TXN_STATE")
    assert not wire.produce(name, batch([b"c"], who, 1, transactional=True), transactional_id=name).error_code
    ended(wire, name, who)
