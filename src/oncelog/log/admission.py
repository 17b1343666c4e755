"""Check batches against the state of their producers before they are written, and apply them to it afterwards.

`Admission` counts duplicates and gaps in `LogStatistics`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from oncelog.log.producer_state import (
    BatchMetadata,
    CompletedTransaction,
    Origin,
    OutOfOrderSequenceError,
    ProducerAppend,
    ProducerState,
)
from oncelog.log.txn_index import AbortedTransaction, TransactionIndex
from oncelog.log.validate import ValidBatches
from oncelog.protocol.compression import Buffer
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import BatchHeader, assign_offsets, decode_control

logger = logging.getLogger(__name__)


class AppendResult(NamedTuple):
    """The offsets of the batches. ``append_time_ms`` is -1, unless the topic stamps batches with the time of append.

    A ``duplicate`` was in the log already, so nothing was written. Its offsets and its time are those of the first
    write.
    """

    first_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool
    log_start_offset: int


class LogStatistics:
    """Counters since the log was opened, for metrics."""

    __slots__ = ("duplicate_batches", "fenced_batches", "sequence_gaps", "stale_sequences")

    def __init__(self) -> None:
        self.duplicate_batches = 0
        self.fenced_batches = 0
        self.sequence_gaps = 0
        self.stale_sequences = 0


class Admission:
    """Check the batches of one append against a partition's producers. ``name`` (topic-partition) is for messages."""

    __slots__ = ("_name", "_state", "statistics")

    def __init__(self, name: str, state: ProducerState) -> None:
        self._name = name
        self._state = state
        self.statistics = LogStatistics()

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the earlier batch that a client's batch repeats, or None.

        Raises UNKNOWN_PRODUCER_ID if the transaction of that batch has ended, so that the client aborts, and continues
        with the next epoch. If librdkafka aborts a transaction while a batch waits to be retried, its next transaction
        uses the sequences again for other records, although the partition may have the batch. Kafka loses them.
        """
        entry = self._state.entries.get(header.producer_id)
        duplicate = None if entry is None else entry.find_duplicate(header)
        if entry is None or duplicate is None:
            return None
        if header.is_transactional and not 0 <= entry.txn_start <= duplicate.first_offset:
            raise ProtocolError(
                ErrorCode.UNKNOWN_PRODUCER_ID,
                f"producer id {header.producer_id}, epoch {header.producer_epoch}: sequence {header.base_sequence} has "
                f"been used at offset {duplicate.first_offset}, in a transaction that has ended",
            )
        self.statistics.duplicate_batches += 1
        logger.debug(
            "%s: duplicate: sequences %d to %d of producer id %d, epoch %d are at offsets %d to %d already",
            *(self._name, header.base_sequence, header.last_sequence, header.producer_id, header.producer_epoch),
            *(duplicate.first_offset, duplicate.last_offset),
        )
        return duplicate

    def check(
        self,
        batches: ValidBatches,
        end_offset: int,
        origin: Origin,
        *,
        version: int = 0,
        verified: bool = True,
        guard: int | None = None,
    ) -> dict[int, ProducerAppend]:
        """Return the changes of the batches, which will begin at ``end_offset``, by producer id.

        Raises OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        TRANSACTION_COORDINATOR_FENCED.
        """
        appends: dict[int, ProducerAppend] = {}
        offset = end_offset
        position = 0
        for header in batches.headers:
            producer_id = header.producer_id
            if producer_id >= 0:
                try:
                    append = appends.get(producer_id)
                    if append is None:
                        append = appends[producer_id] = self._state.prepare(producer_id, origin)
                        if header.is_transactional and not header.is_control:
                            self._check_verified(header, verified, guard)
                    view = batches.view[position : position + header.size]
                    add_batch(append, header, view, offset, version)
                except ProtocolError as error:
                    self.count(error)
                    raise
            offset += header.last_offset_delta + 1
            position += header.size
        return appends

    def _check_verified(self, header: BatchHeader, verified: bool, guard: int | None) -> None:
        if self._state.has_open_transaction(header.producer_id, header.producer_epoch):
            return
        self._state.check_epoch(header.producer_id, header.producer_epoch)
        if not verified or (guard is not None and not self._state.is_verified(header.producer_id, guard)):
            raise ProtocolError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer id {header.producer_id} (epoch {header.producer_epoch}) has no open transaction in "
                f"{self._name}",
            )

    def count(self, error: ProtocolError) -> None:
        """Count a rejected batch."""
        if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            self.statistics.fenced_batches += 1
        elif isinstance(error, OutOfOrderSequenceError):
            if error.stale:
                self.statistics.stale_sequences += 1
            else:
                self.statistics.sequence_gaps += 1


def assign_all_offsets(batches: ValidBatches, first: int, leader_epoch: int) -> ValidBatches:
    """Give the batches their offsets and the leader epoch, in place."""
    headers = []
    position = 0
    offset = first
    for header in batches.headers:
        assign_offsets(batches.view, position, offset, leader_epoch)
        headers.append(BatchHeader._make((offset, header.batch_length, leader_epoch, *header[3:])))
        offset += header.last_offset_delta + 1
        position += header.size
    return ValidBatches(headers, batches.view)


def add_batch(append: ProducerAppend, header: BatchHeader, view: Buffer, offset: int, version: int = 0) -> None:
    """Check a data batch or a marker, and add it to the producer's append."""
    if not header.is_control:
        append.append_data(header, offset)
    elif header.count > 0:  # if compaction has emptied a marker, it has removed the transaction as well
        commit, coordinator_epoch = decode_control(view)
        append.append_marker(
            commit,
            epoch=header.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            offset=offset,
            timestamp=header.max_timestamp,
            transaction_version=version,
        )


def commit_producers(
    state: ProducerState,
    headers: list[BatchHeader],
    appends: Iterable[ProducerAppend],
    txn_index: TransactionIndex,
    now_ms: int,
) -> None:
    """Apply written batches to the producer state. ``appends`` has their producers."""
    completed: list[CompletedTransaction] = []
    for append in appends:
        state.commit(append, now_ms)
        completed += append.completed
    if len(completed) > 1:
        completed.sort(key=lambda transaction: transaction.last_offset)
    finish_transactions(state, completed, txn_index)
    for header in headers:
        if header.is_transactional:
            state.end_verification(header)


def replay(
    state: ProducerState, header: BatchHeader, view: Buffer, txn_index: TransactionIndex | None, now_ms: int
) -> None:
    """Apply a batch of the log to the producer state."""
    if header.producer_id >= 0:
        append = state.prepare(header.producer_id, Origin.REPLICATION)
        add_batch(append, header, view, header.base_offset)
        state.commit(append, now_ms)
        finish_transactions(state, append.completed, txn_index)
    state.end_offset = header.next_offset


def replay_all(state: ProducerState, batches: ValidBatches, txn_index: TransactionIndex, now_ms: int) -> None:
    """Apply appended batches to the producer state, one after the other."""
    position = 0
    for header in batches.headers:
        view = batches.view[position : position + header.size] if header.is_control else b""
        replay(state, header, view, txn_index, now_ms)
        position += header.size


def finish_transactions(
    state: ProducerState, completed: list[CompletedTransaction], txn_index: TransactionIndex | None
) -> None:
    """Complete transactions, in the order of their markers, and add the aborted ones to the index."""
    for transaction in completed:
        if transaction.aborted and txn_index is not None:
            last_stable = state.last_stable_offset_after(transaction)
            txn_index.append(
                AbortedTransaction(
                    transaction.producer_id, transaction.first_offset, transaction.last_offset, last_stable
                )
            )
        state.complete(transaction)
