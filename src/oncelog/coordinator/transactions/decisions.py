"""What each request makes of a transaction: the next transaction, or the error code of the answer.

Written after Kafka 4.3.1 (`TransactionCoordinator`), whose order of checks clients rely on. Deliberate differences:

- InitProducerId with a stale epoch never aborts the transaction of the producer that has taken over;
- a commit under version 2 that lost against the coordinator's abort is PRODUCER_FENCED (KAFKA-20785);
- an ending under version 2 is no repetition of one under version 1, which had another epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, auto

from oncelog.coordinator.transactions.states import TransactionState
from oncelog.coordinator.transactions.transaction import (
    MAX_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Partition,
    Transaction,
    epoch_exhausted,
)
from oncelog.protocol.errors import ErrorCode

Decision = Transaction | ErrorCode
TakeProducerId = Callable[[], int]
"""Gives a new producer id; raises ProtocolError while there is none."""

_S = TransactionState


# -- InitProducerId --------------------------------------------------------------------------------------------------


def init_producer_id(
    transaction: Transaction,
    expected: tuple[int, int] | None,
    last_epoch: int,
    timeout_ms: int,
    take: TakeProducerId,
    transaction_version: int,
    now_ms: int,
) -> Decision:
    """A new session of a known transactional id; a prepared abort means that the client must come again.

    `expected` is the (producer id, epoch) of a producer that goes on after an error (KIP-360), `last_epoch` the epoch
    before its last such request.
    """
    if transaction.prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _is_or_was(transaction, expected):
        return ErrorCode.PRODUCER_FENCED
    if transaction.state is _S.ONGOING:
        if expected is not None and expected != (transaction.producer_id, transaction.producer_epoch):
            return ErrorCode.PRODUCER_FENCED
        return fencing_abort(transaction, take, transaction_version, now_ms)
    epoch = transaction.producer_epoch
    if epoch_exhausted(epoch) and (expected is None or expected[1] == epoch):
        return transaction.with_new_producer_id(take(), timeout_ms, now_ms)
    if expected is None or expected[1] == epoch:
        return transaction.with_new_epoch(epoch + 1, timeout_ms, now_ms)
    if expected[1] == last_epoch:
        return transaction.with_new_epoch(epoch, timeout_ms, now_ms)  # a retry: the answer was lost
    return ErrorCode.PRODUCER_FENCED


def _is_or_was(transaction: Transaction, expected: tuple[int, int]) -> bool:
    producer_id, epoch = expected
    return producer_id == transaction.producer_id or (
        producer_id == transaction.previous_producer_id and epoch_exhausted(epoch)
    )


def epoch_before_completion(transaction: Transaction) -> int:
    """The epoch that the client had when it ended, under version 2, the transaction that is now completed."""
    if transaction.client_version < 2 or transaction.state not in (_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT):
        return NO_EPOCH
    return transaction.producer_epoch - 1 if transaction.producer_epoch > 0 else MAX_EPOCH - 1


def fencing_abort(transaction: Transaction, take: TakeProducerId, transaction_version: int, now_ms: int) -> Transaction:
    """The coordinator aborts an open transaction, on a time-out or for a successor."""
    if transaction_version < 2:
        return transaction.prepare_fencing_abort(0, NO_PRODUCER_ID, now_ms)
    return transaction.prepare_fencing_abort(2, _successor(transaction, take), now_ms)


def _successor(transaction: Transaction, take: TakeProducerId) -> int:
    return take() if epoch_exhausted(transaction.producer_epoch) else NO_PRODUCER_ID


# -- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------------------------


def add_partitions(
    transaction: Transaction,
    producer_id: int,
    epoch: int,
    partitions: frozenset[Partition],
    client_version: int,
    now_ms: int,
) -> Decision:
    """NONE when they are all in it already."""
    if transaction.prepared:
        # First of all: a client of version 2 may use a producer id already that takes over at completion.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.producer_epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    if transaction.state is _S.ONGOING and partitions <= transaction.partitions:
        return ErrorCode.NONE
    return transaction.with_partitions(partitions, client_version, now_ms)


def verify_partitions(
    transaction: Transaction, producer_id: int, epoch: int, partitions: Collection[Partition]
) -> dict[Partition, ErrorCode]:
    """Whether each partition is in the open transaction, in the order asked."""
    error = ErrorCode.NONE
    if transaction.producer_id != producer_id:
        error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif transaction.producer_epoch != epoch:
        error = ErrorCode.PRODUCER_FENCED
    elif transaction.prepared:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    if error is not ErrorCode.NONE:
        return dict.fromkeys(partitions, error)
    return {
        partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
        for partition in partitions
    }


# -- EndTxn ----------------------------------------------------------------------------------------------------------


class _Request(Enum):
    """An EndTxn of version 2: under the epoch of now, or again under the one that the former ending raised."""

    CURRENT = auto()
    RETRY = auto()


_INVALID = ErrorCode.INVALID_TXN_STATE
_FENCED = ErrorCode.PRODUCER_FENCED
_NONE = ErrorCode.NONE
_PREPARE = None
"""In the tables: go on to the prepared state."""

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
"""Versions 0 and 1, by (state, committed): a repeated ending cannot be told from the next one, and is a success."""

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
"""Version 2, by (state, request, committed); what is not here is PRODUCER_FENCED."""


def end_transaction_1(transaction: Transaction, producer_id: int, epoch: int, commit: bool, now_ms: int) -> Decision:
    """EndTxn of a client of version 0 or 1; NONE when it has happened already."""
    if transaction.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.producer_epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    if transaction.prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    error = _END_1[transaction.state, commit]
    return transaction.prepare(commit, 0, NO_PRODUCER_ID, now_ms) if error is _PREPARE else error


def end_transaction_2(
    transaction: Transaction,
    producer_id: int,
    epoch: int,
    commit: bool,
    take: TakeProducerId,
    now_ms: int,
) -> Decision:
    """EndTxn of a client of version 2; NONE when it has happened already.

    Every ending raises the epoch, so a late request of a former transaction is told from one of this (KAFKA-17754).
    """
    if transaction.prepared:
        # First of all: the client may use a producer id already that takes over at completion.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    overflowed = (
        transaction.previous_producer_id == producer_id and epoch == MAX_EPOCH - 1 and transaction.producer_epoch == 0
    )
    if transaction.producer_id != producer_id and not overflowed:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    # An ending of before version 2 left the epoch alone: the epoch before is then not that of this transaction.
    retry = transaction.client_version >= 2 and (overflowed or transaction.producer_epoch == epoch + 1)
    if not retry and transaction.producer_epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    request = _Request.RETRY if retry else _Request.CURRENT
    error = _END_2.get((transaction.state, request, commit), ErrorCode.PRODUCER_FENCED)
    if error is not _PREPARE:
        return error
    return transaction.prepare(commit, 2, _successor(transaction, take), now_ms)
