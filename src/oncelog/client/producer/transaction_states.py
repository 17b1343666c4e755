"""The states of a transactional producer, and their legal changes.

    UNINITIALIZED -> INITIALIZING -> READY -> IN_TRANSACTION -> COMMITTING -> READY
                                                  |     \\          |
                                                  |      \\         v
                                                  |       -> ABORTABLE_ERROR
                                                  v               |
                                     READY <- ABORTING <----------+         (any) -> FATAL_ERROR

PREPARED is between IN_TRANSACTION and the end: no record can be added, and any process with the handle may end the
transaction. A producer that keeps the former producer's transaction (KIP-939) is PREPARED after INITIALIZING.
"""

from __future__ import annotations

from enum import Enum


class ManagerState(Enum):
    """The states of a transactional producer (Kafka's TransactionManager.State)."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


LEGAL: dict[ManagerState, frozenset[ManagerState]] = {
    ManagerState.UNINITIALIZED: frozenset({ManagerState.INITIALIZING}),
    ManagerState.INITIALIZING: frozenset({ManagerState.READY, ManagerState.PREPARED, ManagerState.ABORTABLE_ERROR}),
    ManagerState.READY: frozenset({ManagerState.IN_TRANSACTION}),
    ManagerState.IN_TRANSACTION: frozenset(
        {ManagerState.PREPARED, ManagerState.COMMITTING, ManagerState.ABORTING, ManagerState.ABORTABLE_ERROR}
    ),
    ManagerState.PREPARED: frozenset({ManagerState.COMMITTING, ManagerState.ABORTING, ManagerState.ABORTABLE_ERROR}),
    ManagerState.COMMITTING: frozenset({ManagerState.READY, ManagerState.INITIALIZING, ManagerState.ABORTABLE_ERROR}),
    ManagerState.ABORTING: frozenset({ManagerState.READY, ManagerState.INITIALIZING}),
    ManagerState.ABORTABLE_ERROR: frozenset({ManagerState.ABORTING, ManagerState.ABORTABLE_ERROR}),
    ManagerState.FATAL_ERROR: frozenset(),
}
"""Every state may change to FATAL_ERROR, too."""

CURES: dict[ManagerState, str] = {
    ManagerState.PREPARED: "call commit_transaction() or abort_transaction() before you begin another one",
    ManagerState.COMMITTING: "call commit_transaction() again",
    ManagerState.ABORTING: "call abort_transaction() again",
}
"""What to do if the state does not allow a call."""

OPEN = frozenset({ManagerState.IN_TRANSACTION, ManagerState.PREPARED, ManagerState.COMMITTING})
"""States in which the transaction may still be committed."""
