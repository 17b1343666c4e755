"""What the coordinator knows of one transactional id, and what each step makes of it (Kafka's `TransactionMetadata`).

A `Transaction` is a value: each step gives a new one, which becomes the state when its record is replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oncelog.coordinator.transactions.states import (
    COMPLETE_FOR,
    COMPLETED,
    EXPIRABLE,
    PREPARE_FOR,
    PREPARED,
    PREVIOUS_STATES,
    TransactionState,
)

NO_PRODUCER_ID = -1
NO_EPOCH = -1
MAX_EPOCH = 2**15 - 1
"""Never given to a client: the last one is kept for fencing."""

NO_TIMEOUT_MS = 2**31 - 1
"""The time-out of a two-phase-commit transaction, which has none (KIP-939)."""

Partition = tuple[str, int]
"""(topic, index)."""


class IllegalTransitionError(RuntimeError):
    """A record that no step can have made: a fault of the coordinator."""


def epoch_exhausted(epoch: int) -> bool:
    """Whether clients may not get an epoch after this one."""
    return epoch >= MAX_EPOCH - 1


@dataclass(frozen=True, slots=True)
class Transaction:
    """Times are in ms; `start_ms` is -1 until the first partition; `client_version` is the client's
    transaction.version.

    `previous_producer_id` is the producer id before the last step, `next_producer_id` the one that takes over when the
    prepared transaction completes (its epoch is used up), else -1.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[Partition]
    start_ms: int
    last_update_ms: int
    client_version: int = 0
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID

    @property
    def prepared(self) -> bool:
        """Whether the outcome is decided and being carried out."""
        return self.state in PREPARED

    @property
    def commits(self) -> bool:
        """Whether a prepared or completed transaction's outcome is to commit."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def timeout_due_ms(self) -> int | None:
        """When an open transaction is to be aborted."""
        if self.state is not TransactionState.ONGOING or self.timeout_ms == NO_TIMEOUT_MS:
            return None
        return self.start_ms + self.timeout_ms + 1

    def expiry_due_ms(self, expiration_ms: int) -> int | None:
        """When an idle transactional id is to be forgotten."""
        return self.last_update_ms + expiration_ms if self.state in EXPIRABLE else None

    def indexes_by_topic(self) -> dict[str, list[int]]:
        """Return the partitions in order. Sorting thousands of tuples would take much longer."""
        found: dict[str, list[int]] = {}
        for topic, index in self.partitions:
            found.setdefault(topic, []).append(index)
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    # -- steps --------------------------------------------------------------------------------------------------------

    def with_new_epoch(self, epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
        """InitProducerId: ready for a first transaction under `epoch`."""
        return self._next(
            state=TransactionState.EMPTY,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=now_ms,
        )

    def with_new_producer_id(self, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """InitProducerId when the epochs are used up: another producer id, from epoch 0."""
        return replace(self.with_new_epoch(0, timeout_ms, now_ms), producer_id=producer_id)

    def with_partitions(self, added: frozenset[Partition], client_version: int, now_ms: int) -> Transaction:
        """A partition more; the first one starts the transaction and its time-out."""
        return self._next(
            state=TransactionState.ONGOING,
            partitions=self.partitions | added,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare(self, commit: bool, client_version: int, next_producer_id: int, now_ms: int) -> Transaction:
        """The decision, at the end of a transaction or (version 2) an abort without one.

        Version 2 raises the epoch, so that nothing of this transaction can reach the next. An epoch that is at its end
        already, which no client ever saw, stays where it is and lets the abort go through.
        """
        epoch = self.producer_epoch
        if client_version >= 2:
            epoch = min(epoch + 1, MAX_EPOCH)
        return self._next(
            state=PREPARE_FOR[commit],
            producer_epoch=epoch,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare_fencing_abort(self, client_version: int, next_producer_id: int, now_ms: int) -> Transaction:
        """The coordinator's own abort: the epoch rises whatever the version, which fences the producer."""
        epoch = min(self.producer_epoch + 1, MAX_EPOCH)
        return replace(self.prepare(False, client_version, next_producer_id, now_ms), producer_epoch=epoch)

    def complete(self, now_ms: int) -> Transaction:
        """All markers are written."""
        rotate = self.client_version >= 2 and self.next_producer_id != NO_PRODUCER_ID
        return self._next(
            state=COMPLETE_FOR[self.commits],
            producer_id=self.next_producer_id if rotate else self.producer_id,
            producer_epoch=0 if rotate else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    def _next(self, **changes: object) -> Transaction:
        return replace(self, previous_producer_id=self.producer_id, **changes)  # type: ignore[arg-type]


def check_transition(old: Transaction, new: Transaction) -> None:
    """Raises IllegalTransitionError unless one step leads from `old` to `new` (Kafka's `completeTransitionTo`)."""
    for holds, rule in (
        (old.state in PREVIOUS_STATES[new.state], "no such transition"),
        (new.previous_producer_id in (old.producer_id, NO_PRODUCER_ID), "another producer id came before"),
        (_epoch_follows(old, new), "the epoch does not follow"),
        (_partitions_follow(old, new), "the partitions do not follow"),
        (new.state is TransactionState.EMPTY or new.timeout_ms == old.timeout_ms, "the time-out changed"),
        ((new.start_ms == -1) is (new.state is TransactionState.EMPTY), "no or a wrong start time"),
    ):
        if not holds:
            raise IllegalTransitionError(f"{rule}: {old} -> {new}")


def _epoch_follows(old: Transaction, new: Transaction) -> bool:
    same_id = new.producer_id == old.producer_id
    bump = new.producer_epoch - old.producer_epoch
    rotated = not same_id and new.producer_epoch == 0
    if new.state is TransactionState.EMPTY:
        return (same_id and bump in (0, 1)) or rotated
    if new.state in COMPLETED:
        return (same_id and bump == 0) or (rotated and new.producer_id == old.next_producer_id)
    if new.state in PREPARED:
        broken = old.producer_epoch == MAX_EPOCH and bump == 0
        return same_id and (bump == 1 or (bump == 0 and (new.client_version < 2 or broken)))
    return same_id and bump == 0


def _partitions_follow(old: Transaction, new: Transaction) -> bool:
    if new.state is TransactionState.ONGOING:
        return new.partitions >= old.partitions
    return new.partitions == (old.partitions if new.state in PREPARED else frozenset())
