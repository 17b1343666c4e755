"""Decide what each request does to a transaction. A function returns the next state, or the error code of the response.

Source: `TransactionCoordinator` of Kafka 4.3.1; KIP-939 for sessions that keep a transaction. Clients rely on the order
of checks. Deliberate differences:

- InitProducerId with a stale epoch never aborts the transaction of the producer's successor;
- if the coordinator has aborted a transaction of version 2, a late commit is PRODUCER_FENCED (KAFKA-20785);
- an EndTxn of version 2 never repeats one of version 1, which had another epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

from oncelog.coordinator.transactions.metadata import (
    MAX_EPOCH,
    NO_EPOCH,
    TransactionMetadata,
    TransactionState,
    epoch_exhausted,
)
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.topics import TopicPartition

Decision = TransactionMetadata | ErrorCode
TakeProducerId = Callable[[], int]
"""Return a new producer id. Raises ProtocolError while none is available."""

_S = TransactionState


# -- InitProducerId --------------------------------------------------------------------------------------------------


def init_producer_id(
    transaction: TransactionMetadata,
    expected: tuple[int, int] | None,
    last_epoch: int,
    timeout_ms: int,
    take: TakeProducerId,
    transaction_version: int,
    now_ms: int,
) -> Decision:
    """Start a new session of a known transactional id. If the result is a prepared abort, the client must retry.

    `expected` is the (producer id, epoch) of a producer that continues after an error (KIP-360). `last_epoch` is its
    epoch before its previous request of this kind.
    """
    if transaction.prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _matches_producer(transaction, expected):
        return ErrorCode.PRODUCER_FENCED
    if transaction.state is _S.ONGOING:
        if expected not in (None, transaction.holder):
            return ErrorCode.PRODUCER_FENCED
        return fencing_abort(transaction, take, transaction_version, now_ms)
    epoch = transaction.producer_epoch
    if epoch_exhausted(epoch) and (expected is None or expected[1] == epoch):
        return transaction.with_new_producer_id(take(), timeout_ms, now_ms)
    if expected is None or expected[1] == epoch:
        return transaction.with_new_epoch(epoch + 1, timeout_ms, now_ms)
    if expected[1] == last_epoch:
        return transaction.with_new_epoch(epoch, timeout_ms, now_ms)  # a retry after a lost response
    return ErrorCode.PRODUCER_FENCED


def _matches_producer(transaction: TransactionMetadata, expected: tuple[int, int]) -> bool:
    producer_id, epoch = expected
    return producer_id == transaction.holder[0] or (
        producer_id == transaction.previous_producer_id and epoch_exhausted(epoch)
    )


def keep(
    transaction: TransactionMetadata,
    expected: tuple[int, int] | None,
    timeout_ms: int,
    take: TakeProducerId,
    now_ms: int,
) -> Decision:
    """Start a new session that keeps the open transaction, to end it (KIP-939).

    The session's producer has a later epoch, so that the former one is fenced: it can neither end the transaction nor
    add to it. `expected` is None, or the producer whose transaction the client wants to keep: the transaction's own, or
    that of the current session.
    """
    if transaction.state is not _S.ONGOING:
        return ErrorCode.INVALID_TXN_STATE
    if expected not in (None, transaction.holder, transaction.producer):
        return ErrorCode.PRODUCER_FENCED
    return transaction.keep(_next_producer(transaction.holder, take), timeout_ms, now_ms)


def epoch_before_completion(transaction: TransactionMetadata) -> int:
    """Return the epoch with which the client ended the completed transaction of version 2, or NO_EPOCH."""
    if transaction.client_version < 2 or transaction.state not in (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT):
        return NO_EPOCH
    return transaction.producer_epoch - 1 if transaction.producer_epoch > 0 else MAX_EPOCH - 1


def fencing_abort(
    transaction: TransactionMetadata, take: TakeProducerId, transaction_version: int, now_ms: int
) -> TransactionMetadata:
    """Abort an open transaction after its timeout, or for a new session."""
    version = 2 if transaction_version >= 2 else 0
    return transaction.prepare_fencing_abort(version, _successor(transaction, version, take), now_ms)


def _successor(transaction: TransactionMetadata, version: int, take: TakeProducerId) -> tuple[int, int] | None:
    """Return the producer of the transaction after this one, or None if it is the one in the markers.

    Before version 2, the end of a transaction changes no producer id. InitProducerId does.
    """
    if transaction.kept:
        return _next_producer(transaction.holder, take)
    rotates = version >= 2 and epoch_exhausted(transaction.producer_epoch)
    return (take(), NO_EPOCH) if rotates else None


def _next_producer(holder: tuple[int, int], take: TakeProducerId) -> tuple[int, int]:
    producer_id, epoch = holder
    return (take(), 0) if epoch_exhausted(epoch) else (producer_id, epoch + 1)


# -- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------------------------


def add_partitions(
    transaction: TransactionMetadata,
    producer_id: int,
    epoch: int,
    partitions: frozenset[TopicPartition],
    client_version: int,
    most_timeout_ms: int,
    now_ms: int,
) -> Decision:
    """Add partitions. Return NONE if the transaction has all of them already."""
    if transaction.prepared:
        # Check this first: a client of version 2 may already use the producer id that is valid after completion.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    error = _mapping_error(transaction, producer_id, epoch)
    if error is not ErrorCode.NONE:
        return error
    if transaction.kept:
        return ErrorCode.INVALID_TXN_STATE
    if transaction.state is _S.ONGOING and partitions <= transaction.partitions:
        return ErrorCode.NONE
    return transaction.with_partitions(partitions, client_version, most_timeout_ms, now_ms)


def verify_partitions(
    transaction: TransactionMetadata, producer_id: int, epoch: int, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Return NONE for each partition of the open transaction, and an error for each other one."""
    error = _mapping_error(transaction, producer_id, epoch)
    if error is ErrorCode.NONE and transaction.prepared:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    elif error is ErrorCode.NONE and transaction.kept:
        error = ErrorCode.INVALID_TXN_STATE
    if error is not ErrorCode.NONE:
        return dict.fromkeys(partitions, error)
    return {
        partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


def _mapping_error(transaction: TransactionMetadata, producer_id: int, epoch: int) -> ErrorCode:
    """Return NONE for the producer of the current session."""
    if (producer_id, epoch) == transaction.holder:
        return ErrorCode.NONE
    known = producer_id in (transaction.producer_id, transaction.holder[0])
    return ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_ID_MAPPING


# -- EndTxn ----------------------------------------------------------------------------------------------------------


class _Request(Enum):
    """An EndTxn of version 2: with the current epoch, or a retry with the epoch before the last EndTxn."""

    CURRENT = auto()
    RETRY = auto()


_INVALID = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED
_NONE = ErrorCode.NONE
_PREPARE = None
"""In the tables: change to the prepared state."""

_END_1: dict[tuple[TransactionState, bool], ErrorCode | None] = {
    (_S.ONGOING, True): _PREPARE,
    (_S.ONGOING, False): _PREPARE,
    (_S.EMPTY, True): _INVALID,
    (_S.EMPTY, False): _INVALID,
    (_S.COMPLETE_COMMIT, True): _NONE,
    (_S.COMPLETE_COMMIT, False): _INVALID,
    (_S.COMPLETE_ABORT, True): _INVALID,
    (_S.COMPLETE_ABORT, False): _NONE,
}
"""Versions 0 and 1, by (state, committed). A retry looks like the EndTxn of the next transaction, so it succeeds."""

_END_2: dict[tuple[TransactionState, _Request, bool], ErrorCode | None] = {
    (_S.ONGOING, _Request.CURRENT, True): _PREPARE,
    (_S.ONGOING, _Request.CURRENT, False): _PREPARE,
    (_S.EMPTY, _Request.CURRENT, True): _INVALID,
    (_S.EMPTY, _Request.CURRENT, False): _PREPARE,
    (_S.COMPLETE_COMMIT, _Request.CURRENT, True): _INVALID,
    (_S.COMPLETE_COMMIT, _Request.CURRENT, False): _PREPARE,
    (_S.COMPLETE_COMMIT, _Request.RETRY, True): _NONE,
    (_S.COMPLETE_COMMIT, _Request.RETRY, False): _INVALID,
    (_S.COMPLETE_ABORT, _Request.CURRENT, True): _INVALID,
    (_S.COMPLETE_ABORT, _Request.CURRENT, False): _PREPARE,
    (_S.COMPLETE_ABORT, _Request.RETRY, True): _FENCED,
    (_S.COMPLETE_ABORT, _Request.RETRY, False): _NONE,
}
"""Version 2, by (state, request, committed). Every other combination is PRODUCER_FENCED."""


def end_transaction_1(
    transaction: TransactionMetadata, producer_id: int, epoch: int, commit: bool, now_ms: int
) -> Decision:
    """Apply EndTxn of a client of version 0 or 1. Return NONE if the transaction has ended this way already."""
    error = _mapping_error(transaction, producer_id, epoch)
    if error is not ErrorCode.NONE:
        return error
    if transaction.prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    answer = _END_1[transaction.state, commit]
    return transaction.prepare(commit, 0, None, now_ms) if answer is _PREPARE else answer


def end_transaction_2(
    transaction: TransactionMetadata,
    producer_id: int,
    epoch: int,
    commit: bool,
    take: TakeProducerId,
    now_ms: int,
) -> Decision:
    """Apply EndTxn of a client of version 2. Return NONE if the transaction has ended this way already.

    Each EndTxn increments the epoch, which distinguishes late requests of the previous transaction (KAFKA-17754).
    """
    if transaction.prepared:
        # Check this first: the client may already use the producer id that is valid after completion.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    holder_id, holder_epoch = transaction.holder
    overflowed = transaction.previous_producer_id == producer_id and epoch == MAX_EPOCH - 1 and holder_epoch == 0
    # Before version 2, EndTxn does not change the epoch. Then the previous epoch is not one of this transaction.
    retry = transaction.client_version >= 2 and (overflowed or (holder_id, holder_epoch) == (producer_id, epoch + 1))
    if not retry:
        error = ErrorCode.PRODUCER_FENCED if overflowed else _mapping_error(transaction, producer_id, epoch)
        if error is not ErrorCode.NONE:
            return error
    request = _Request.RETRY if retry else _Request.CURRENT
    answer = _END_2.get((transaction.state, request, commit), ErrorCode.PRODUCER_FENCED)
    if answer is not _PREPARE:
        return answer
    return transaction.prepare(commit, 2, _successor(transaction, 2, take), now_ms)


# -- WriteTxnMarkers -------------------------------------------------------------------------------------------------


class MarkerResult(Enum):
    """What a partition's response to a marker means for the transaction."""

    WRITTEN = auto()
    """The partition has the marker, or needs none."""
    RETRY = auto()
    """The marker was not written and must be retried."""
    FENCED = auto()
    """The marker was not written and must not be retried: the partition knows a newer epoch, or another coordinator."""


_MARKER_RESULTS = {
    ErrorCode.NONE: MarkerResult.WRITTEN,
    # A log in such an old format has no transactional data, so there is nothing to end.
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: MarkerResult.WRITTEN,
    ErrorCode.UNSUPPORTED_VERSION: MarkerResult.WRITTEN,
    ErrorCode.INVALID_PRODUCER_EPOCH: MarkerResult.FENCED,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: MarkerResult.FENCED,
}


def marker_result(error: ErrorCode) -> MarkerResult:
    """Return what the error of a marker means (Kafka's `TransactionMarkerRequestCompletionHandler`).

    Errors that Kafka treats as impossible are retried, so that no partition is ever left without its marker.
    """
    return _MARKER_RESULTS.get(error, MarkerResult.RETRY)
