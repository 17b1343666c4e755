"""The rules of the idempotent producer in the broker (rows I6-I11 of the design), without a disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oncelog.log.producer_state import (
    BatchMetadata,
    Origin,
    OutOfOrderSequenceError,
    ProducerAppend,
    ProducerEntry,
    ProducerState,
)
from oncelog.log.snapshot import decode_snapshot, encode_snapshot
from oncelog.log.verification import is_before
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import MAX_SEQUENCE, BatchHeader, build_control_batch, parse_header
from support.logs import NOW, of_producer

PID = 7
DAY = 24 * 60 * 60 * 1000


class Book:
    """A producer state and the log's end, as a log uses them."""

    def __init__(self) -> None:
        self.state = ProducerState(DAY)
        self.end = 0

    def header(
        self, sequence: int, count: int = 1, *, epoch: int = 0, txn: bool = False, time: int = NOW
    ) -> BatchHeader:
        return parse_header(of_producer(PID, sequence, count, epoch=epoch, txn=txn, timestamp=time))

    def write(
        self,
        sequence: int,
        count: int = 1,
        *,
        epoch: int = 0,
        txn: bool = False,
        origin: Origin = Origin.CLIENT,
        time: int = NOW,
    ) -> int:
        header = self.header(sequence, count, epoch=epoch, txn=txn, time=time)
        append = self.state.prepare(PID, origin)
        append.append_data(header, self.end)
        self.state.commit(append, time)
        if txn:
            self.state.end_verification(header)
        first, self.end = self.end, self.end + count
        return first

    def mark(
        self,
        *,
        commit: bool = True,
        epoch: int = 0,
        coordinator: int = 0,
        version: int = 0,
        origin: Origin = Origin.COORDINATOR,
        time: int = NOW,
    ) -> ProducerAppend:
        append = self.state.prepare(PID, origin)
        append.append_marker(
            commit,
            epoch=epoch,
            coordinator_epoch=coordinator,
            offset=self.end,
            timestamp=time,
            transaction_version=version,
        )
        self.state.commit(append, time)
        for completed in append.completed:
            self.state.complete(completed)
        self.end += 1
        return append

    @property
    def entry(self) -> ProducerEntry:
        return self.state.entries[PID]


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        call()
    return caught.value.code


def test_last_five_batches_are_remembered() -> None:
    book = Book()
    for sequence in range(0, 14, 2):
        book.write(sequence, 2)
    assert [batch.first_sequence for batch in book.entry.batches] == [4, 6, 8, 10, 12]
    assert [batch.first_offset for batch in book.entry.batches] == [4, 6, 8, 10, 12]
    assert book.entry.last_sequence == 13


def test_new_epoch_clears_the_five_batches() -> None:
    book = Book()
    book.write(0)
    book.write(1)
    book.write(0, epoch=1)
    assert [batch.last_sequence for batch in book.entry.batches] == [0]
    assert book.entry.epoch == 1


def test_empty_entry_has_epoch_minus_one() -> None:
    entry = ProducerEntry(PID)
    assert (entry.epoch, entry.last_sequence, entry.txn_start) == (-1, -1, -1)


def test_first_sequence_of_a_remembered_batch_wraps() -> None:
    assert BatchMetadata(1, 100, 3, 0).first_sequence == MAX_SEQUENCE - 1


def test_sequences_wrap_to_zero_also_inside_a_batch() -> None:
    book = Book()
    book.write(MAX_SEQUENCE - 1, 4)
    assert book.entry.last_sequence == 1
    book.write(2)
    book = Book()
    book.write(MAX_SEQUENCE)
    book.write(0)
    assert code_of(lambda: book.write(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_new_epoch_must_start_at_zero() -> None:
    book = Book()
    book.write(0)
    assert code_of(lambda: book.write(1, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    book.write(0, epoch=1)


def test_older_epoch_is_rejected() -> None:
    book = Book()
    book.write(0, epoch=5)
    assert code_of(lambda: book.write(1, epoch=4)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_coordinators_records_are_checked_by_epoch_only() -> None:
    book = Book()
    book.write(40, epoch=1, origin=Origin.COORDINATOR)
    book.write(12, epoch=1, origin=Origin.COORDINATOR)
    assert code_of(lambda: book.write(13, epoch=0, origin=Origin.COORDINATOR)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_replicated_batches_are_not_checked() -> None:
    book = Book()
    book.write(40, epoch=1, origin=Origin.REPLICATION)
    book.write(12, epoch=0, origin=Origin.REPLICATION)
    assert book.entry.epoch == 0


@pytest.mark.parametrize(("sequence", "count", "found"), [(2, 2, 2), (8, 2, 8), (4, 2, 4), (0, 2, None)])
def test_remembered_batch_is_a_duplicate_with_its_own_offset(sequence: int, count: int, found: int | None) -> None:
    book = Book()
    for first in range(0, 12, 2):
        book.write(first, 2)
    duplicate = book.entry.find_duplicate(book.header(sequence, count))
    assert (duplicate and duplicate.first_offset) == found


@pytest.mark.parametrize(("sequence", "count", "epoch"), [(2, 1, 0), (2, 3, 0), (3, 2, 0), (3, 1, 0), (2, 2, 1)])
def test_partial_overlap_or_another_epoch_is_not_a_duplicate(sequence: int, count: int, epoch: int) -> None:
    book = Book()
    book.write(0, 2)
    book.write(2, 2)
    assert book.entry.find_duplicate(book.header(sequence, count, epoch=epoch)) is None


def test_batch_older_than_the_five_is_out_of_order() -> None:
    book = Book()
    for sequence in range(6):
        book.write(sequence)
    assert book.entry.find_duplicate(book.header(0)) is None
    with pytest.raises(OutOfOrderSequenceError) as caught:
        book.write(0)
    assert caught.value.stale


def test_gap_and_stale_sequence_are_distinguished() -> None:
    book = Book()
    book.write(10, 5)
    with pytest.raises(OutOfOrderSequenceError, match=r"sequence 16, expected 15.*gap") as gap:
        book.write(16)
    with pytest.raises(OutOfOrderSequenceError, match=r"sequence 14, expected 15.*stale") as stale:
        book.write(14)
    assert (gap.value.stale, gap.value.expected, gap.value.sequence) == (False, 15, 16)
    assert (stale.value.stale, stale.value.expected, stale.value.sequence) == (True, 15, 14)
    assert gap.value.code == stale.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("sequence", "expected", "before"),
    [(4, 5, True), (6, 5, False), (MAX_SEQUENCE, 0, True), (0, MAX_SEQUENCE, False), (5, MAX_SEQUENCE - 5, False)],
)
def test_sequence_order_wraps_around(sequence: int, expected: int, before: bool) -> None:
    assert is_before(sequence, expected) is before


def test_messages_name_producer_epoch_and_sequences() -> None:
    book = Book()
    book.write(0, epoch=3)
    with pytest.raises(ProtocolError, match=r"producer id 7, epoch 3, offset 1: sequence 9, expected 1"):
        book.write(9, epoch=3)
    with pytest.raises(ProtocolError, match=r"epoch 2 of producer id 7 is older than its current epoch 3"):
        book.write(0, epoch=2)


def test_without_producer_state_any_first_sequence_is_accepted() -> None:
    book = Book()
    book.write(41)
    book.write(42)
    assert code_of(lambda: book.write(44)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_expire_by_their_last_timestamp_including_markers() -> None:
    book = Book()
    book.write(0, time=NOW)
    assert book.state.expire(NOW + DAY - 1) == 0
    book.mark(time=NOW + 5)
    assert book.state.expire(NOW + DAY) == 0
    assert book.state.expire(NOW + DAY + 5) == 1
    assert book.state.infos() == []


def test_old_record_timestamps_do_not_expire_the_producer() -> None:
    """Record timestamps may be old, although the producer writes now."""
    book = Book()
    append = book.state.prepare(PID, Origin.CLIENT)
    append.append_data(book.header(0, time=5), 0)
    book.state.commit(append, NOW)
    assert book.state.expire(NOW + DAY - 1) == 0
    (entry,) = decode_snapshot(encode_snapshot(book.state.entries.values()))
    book.state.load([entry], 1, NOW + DAY - 1)
    assert len(book.state.entries) == 1
    assert book.state.expire(NOW + DAY) == 1


def test_producer_with_an_open_transaction_does_not_expire() -> None:
    book = Book()
    book.write(0, txn=True)
    assert book.state.expire(NOW + 2 * DAY) == 0


def test_deleting_records_drops_no_producer() -> None:
    """KIP-360, KAFKA-7190."""
    book = Book()
    book.write(0)
    book.state.advance_log_start(1)
    assert code_of(lambda: book.write(5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    book.write(1)


def test_failed_check_changes_nothing() -> None:
    """KAFKA-14920: after a rejected batch, the expected one is still accepted."""
    book = Book()
    book.write(0)
    append = book.state.prepare(PID, Origin.CLIENT)
    append.append_data(book.header(1), 1)
    assert code_of(lambda: append.append_data(book.header(7), 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert book.entry.last_sequence == 0
    book.write(1)


def test_one_append_may_hold_several_batches_of_a_producer() -> None:
    book = Book()
    append = book.state.prepare(PID, Origin.CLIENT)
    append.append_data(book.header(0, 3), 0)
    append.append_data(book.header(3), 3)
    append.append_data(book.header(0, epoch=1), 4)
    append.append_data(book.header(1, epoch=1), 5)
    book.state.commit(append, NOW)
    assert [batch.last_offset for batch in book.entry.batches] == [4, 5]


# --- transactions ---


def test_transaction_starts_with_its_first_batch_and_ends_with_its_marker() -> None:
    book = Book()
    book.write(0)
    book.write(1, 3, txn=True)
    book.write(4, txn=True)
    assert book.state.has_open_transaction(PID, 0)
    assert not book.state.has_open_transaction(PID, 1)
    assert book.state.first_unstable_offset == 1
    append = book.mark(commit=False)
    assert [tuple(done) for done in append.completed] == [(PID, 1, 5, True)]
    assert not book.state.has_open_transaction(PID, 0)


def test_decided_transaction_is_unstable_until_the_high_watermark_passes_its_marker() -> None:
    book = Book()
    book.write(0, txn=True)
    book.mark()
    assert book.state.first_undecided_offset is None
    book.state.advance_high_watermark(1)
    assert book.state.first_unstable_offset == 0
    book.state.advance_high_watermark(2)
    assert book.state.first_unstable_offset is None


def test_plain_batch_inside_a_transaction_is_rejected() -> None:
    book = Book()
    book.write(0, txn=True)
    assert code_of(lambda: book.write(1)) == ErrorCode.INVALID_TXN_STATE


def test_marker_without_a_transaction_completes_none() -> None:
    book = Book()
    assert book.mark(epoch=4).completed == []
    assert book.entry.epoch == 4


def test_coordinator_epoch_never_decreases() -> None:
    book = Book()
    book.mark(coordinator=5)
    assert code_of(lambda: book.mark(coordinator=4)) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    book.mark(coordinator=5)
    book.mark(coordinator=4, origin=Origin.REPLICATION)


def test_old_protocol_markers_have_the_epoch_of_the_transaction_or_a_later_one() -> None:
    book = Book()
    book.write(0, epoch=2, txn=True)
    assert code_of(lambda: book.mark(epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    book.mark(epoch=2)
    book.write(1, epoch=2, txn=True)
    book.mark(epoch=3)


def test_kip_890_markers_have_a_higher_epoch() -> None:
    book = Book()
    book.write(0, epoch=2, txn=True)
    assert code_of(lambda: book.mark(epoch=2, version=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(lambda: book.mark(epoch=1, version=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    book.mark(epoch=3, version=2)
    book.write(0, epoch=3, txn=True)


def test_kip_1228_late_marker_of_the_same_epoch_does_not_end_the_next_transaction() -> None:
    book = Book()
    book.write(0, epoch=2, txn=True)
    book.mark(epoch=3, version=2)
    book.write(0, epoch=3, txn=True)
    assert code_of(lambda: book.mark(epoch=3, version=2, commit=False)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert book.state.has_open_transaction(PID, 3)


def test_repeated_marker_is_accepted_while_no_transaction_is_open() -> None:
    """KAFKA-19999."""
    book = Book()
    book.write(0, epoch=2, txn=True)
    book.mark(epoch=3, version=2)
    assert book.mark(epoch=3, version=2).completed == []


def test_last_epoch_may_mark_its_own_transaction() -> None:
    book = Book()
    book.write(0, epoch=32767, txn=True)
    assert len(book.mark(epoch=32767, version=2).completed) == 1


def test_last_stable_offset_after_a_marker_is_the_next_open_transaction() -> None:
    book = Book()
    book.write(0, txn=True)
    other = book.state.prepare(8, Origin.CLIENT)
    other.append_data(parse_header(of_producer(8, 0, txn=True)), 1)
    book.state.commit(other, NOW)
    book.end = 2
    append = book.state.prepare(PID, Origin.COORDINATOR)
    append.append_marker(True, epoch=0, coordinator_epoch=0, offset=2, timestamp=NOW)
    assert book.state.last_stable_offset_after(append.completed[0]) == 1


# --- verification (KIP-890, part 1) ---


def verify(book: Book, sequence: int = 0, *, epoch: int = 0, strict: bool = False) -> int | None:
    return book.state.start_verification(PID, epoch, sequence, strict=strict, now_ms=NOW)


def test_open_transaction_needs_no_verification() -> None:
    book = Book()
    book.write(0, txn=True)
    assert verify(book) is None
    assert verify(book, epoch=1) is not None


def test_marker_invalidates_the_guard() -> None:
    book = Book()
    guard = verify(book)
    assert guard is not None
    assert book.state.is_verified(PID, guard)
    append = book.mark(commit=False)
    assert append.verification is not None
    book.state.end_verification(book.header(0, txn=True))
    assert not book.state.is_verified(PID, guard)
    assert verify(book) != guard


def test_verification_is_rejected_for_a_stale_epoch() -> None:
    book = Book()
    book.write(0, epoch=2)
    assert code_of(lambda: verify(book, epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_no_later_sequence_overtakes_one_that_failed_its_verification() -> None:
    """KAFKA-14920."""
    book = Book()
    verify(book, 5)
    verify(book, 3)
    assert code_of(lambda: book.write(5, txn=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    book.write(3, txn=True)
    book.write(4, txn=True)


def test_verification_order_wraps_around() -> None:
    """A batch after the wrap arrives first. The one before it is verified next, and is recognized as earlier."""
    book = Book()
    book.write(MAX_SEQUENCE - 2)
    verify(book, 0)
    assert code_of(lambda: book.write(0, txn=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    verify(book, MAX_SEQUENCE - 1)
    assert code_of(lambda: book.write(0, txn=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    book.write(MAX_SEQUENCE - 1, 2, txn=True)
    book.write(0, txn=True)


def test_unknown_producer_starts_with_zero_at_transaction_version_2() -> None:
    book = Book()
    verify(book, 3, strict=True)
    assert code_of(lambda: book.write(3, txn=True)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    verify(book, 0, strict=True)
    book.write(0, txn=True)


def test_verifications_expire() -> None:
    book = Book()
    guard = verify(book)
    assert guard is not None
    book.state.expire(NOW + DAY)
    assert not book.state.is_verified(PID, guard)


def test_marker_of_the_previous_transaction_does_not_affect_the_next_ones_verification() -> None:
    """In version 2, the marker has the epoch of the next transaction."""
    book = Book()
    book.write(0, txn=True)
    guard = verify(book, epoch=1, strict=True)
    assert guard is not None
    book.mark(epoch=1, version=2)
    marker = build_control_batch(True, producer_id=PID, producer_epoch=1, coordinator_epoch=0, timestamp=NOW)
    book.state.end_verification(parse_header(marker))
    assert book.state.is_verified(PID, guard)
    book.write(0, epoch=1, txn=True)
    assert not book.state.is_verified(PID, guard)
