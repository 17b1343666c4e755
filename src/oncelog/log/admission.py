"""Whether batches may follow what is in the log, by what is known of their producers.

The producers' state is only looked at: it changes once the batches are written. What is found is counted in
`LogStatistics`, and gaps are logged.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from oncelog.log.producer_state import (
    BatchMetadata,
    Origin,
    OutOfOrderSequenceError,
    ProducerAppend,
    ProducerState,
)
from oncelog.log.recovery import add_batch
from oncelog.log.validate import ValidBatches
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import BatchHeader, assign_offsets

logger = logging.getLogger(__name__)


class AppendResult(NamedTuple):
    """Where the batches are; ``append_time_ms`` is -1 unless the topic stamps them with the time of append.

    A ``duplicate`` was in the log already: the offsets are those of then, ``append_time_ms`` its timestamp, and
    nothing was written.
    """

    first_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool
    log_start_offset: int


class LogStatistics:
    """Counters since the log was opened, for metrics."""

    __slots__ = ("duplicate_batches", "sequence_gaps", "stale_sequences")

    def __init__(self) -> None:
        self.duplicate_batches = 0
        self.sequence_gaps = 0
        self.stale_sequences = 0


class Admission:
    """Checks the batches of one append against a partition's producers. ``name`` is the partition's, for messages."""

    __slots__ = ("_name", "_state", "statistics")

    def __init__(self, name: str, state: ProducerState) -> None:
        self._name = name
        self._state = state
        self.statistics = LogStatistics()

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the remembered batch that a client's batch repeats."""
        entry = self._state.entries.get(header.producer_id)
        duplicate = None if entry is None else entry.find_duplicate(header)
        if duplicate is not None:
            self.statistics.duplicate_batches += 1
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
        """Return what the batches, which will begin at ``end_offset``, change for each producer id.

        Raises OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        TRANSACTION_COORDINATOR_FENCED.
        """
        appends: dict[int, ProducerAppend] = {}
        offset = end_offset
        position = 0
        for header in batches.headers:
            producer_id = header.producer_id
            if origin == Origin.REPLICATION:
                offset = header.base_offset
            if producer_id >= 0:
                append = appends.get(producer_id)
                if append is None:
                    append = appends[producer_id] = self._state.prepare(producer_id, origin)
                    if header.is_transactional and origin != Origin.REPLICATION and not header.is_control:
                        self._check_verified(header, verified, guard)
                view = batches.view[position : position + header.size]
                try:
                    add_batch(append, header, view, offset, version)
                except OutOfOrderSequenceError as error:
                    self._count(error)
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
                f"producer {header.producer_id}, epoch {header.producer_epoch}, has no open transaction in "
                f"{self._name}",
            )

    def _count(self, error: OutOfOrderSequenceError) -> None:
        if error.stale:
            self.statistics.stale_sequences += 1
        else:
            self.statistics.sequence_gaps += 1
        logger.info("%s: %s", self._name, error)


def check_offsets(headers: list[BatchHeader], end_offset: int) -> int:
    """Return the first offset of batches that bring their own; they must not lie before the end of the log."""
    expected = end_offset
    for header in headers:
        if header.base_offset < expected:
            raise ProtocolError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"a replicated batch has the offset {header.base_offset} where {expected} is next",
            )
        expected = header.next_offset
    return headers[0].base_offset


def number(batches: ValidBatches, first: int, leader_epoch: int) -> ValidBatches:
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
