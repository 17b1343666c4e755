"""The coordinator's state of one transactional id, and the steps that change it (Kafka's `TransactionMetadata`).

A `TransactionMetadata` is a value. Each step returns a new one, which becomes the state when its record is replayed.

```
Empty ---------> Ongoing ---> PrepareCommit ---> CompleteCommit
  |                 |                               |
  |                 +-------> PrepareAbort ----> CompleteAbort
  +--(version 2)--------------^   ^---(version 2)---+ from either Complete state
```

A completed transaction becomes Empty (InitProducerId) or Ongoing (the next transaction). Dead and PrepareEpochFence are
Kafka's transient states. Tools know them, but no record has them, and oncelog's coordinators never enter them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from oncelog.protocol.topics import TopicPartition


class TransactionState(IntEnum):
    """The state of a transaction, with its number in the log's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """Return the name in tools and in responses: `PrepareCommit`."""
        return self.name.title().replace("_", "")


STATES_BY_TEXT = {state.text: state for state in TransactionState}

_S = TransactionState

PREVIOUS_STATES: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset(),
}
"""The legal predecessors of each state."""

PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The outcome is decided. Until the transaction completes, it accepts no other change."""

COMPLETED = frozenset({_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})

EXPIRABLE = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""States in which an idle transactional id may expire."""

PREPARE_FOR = {True: _S.PREPARE_COMMIT, False: _S.PREPARE_ABORT}
"""The prepared state by "committed"."""

COMPLETE_FOR = {True: _S.COMPLETE_COMMIT, False: _S.COMPLETE_ABORT}
"""The completed state by "committed"."""

NO_PRODUCER_ID = -1
NO_EPOCH = -1
MAX_EPOCH = 2**15 - 1
"""The last epoch. No client gets it, because it is reserved for fencing."""

NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a two-phase-commit transaction, which has none (KIP-939)."""


class IllegalTransitionError(RuntimeError):
    """A record that no step produces: a bug in the coordinator."""


def epoch_exhausted(epoch: int) -> bool:
    """Return whether no client may get an epoch after this one."""
    return epoch >= MAX_EPOCH - 1


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The state of one transactional id. Times are in ms.

    `start_ms` is -1 until the first partition is added. `client_version` is the client's transaction.version.
    `previous_producer_id` is the producer id before the last step. If the epochs of a producer id are used up,
    `next_producer_id` replaces it when the prepared transaction completes; otherwise it is -1.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    start_ms: int
    last_update_ms: int
    client_version: int = 0
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID

    @property
    def prepared(self) -> bool:
        """Return whether the outcome is decided, and markers are being written."""
        return self.state in PREPARED

    @property
    def commits(self) -> bool:
        """Return whether a prepared or completed transaction commits."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def timeout_due_ms(self) -> int | None:
        """Return when an open transaction times out, or None."""
        if self.state is not TransactionState.ONGOING or self.timeout_ms == NO_TIMEOUT_MS:
            return None
        return self.start_ms + self.timeout_ms + 1

    def expiry_due_ms(self, expiration_ms: int) -> int | None:
        """Return when an idle transactional id expires, or None if it is in use."""
        return self.last_update_ms + expiration_ms if self.state in EXPIRABLE else None

    def indexes_by_topic(self) -> dict[str, list[int]]:
        """Return the partitions in order. Sorting thousands of tuples would take much longer."""
        found: dict[str, list[int]] = {}
        for topic, index in self.partitions:
            found.setdefault(topic, []).append(index)
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    # -- steps --------------------------------------------------------------------------------------------------------

    def with_new_epoch(self, epoch: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """Apply InitProducerId: no transaction is open yet under `epoch`."""
        return self._next(
            state=TransactionState.EMPTY,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=now_ms,
        )

    def with_new_producer_id(self, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """Apply InitProducerId when the epochs are used up: another producer id, with epoch 0."""
        return replace(self.with_new_epoch(0, timeout_ms, now_ms), producer_id=producer_id)

    def with_partitions(
        self, added: frozenset[TopicPartition], client_version: int, now_ms: int
    ) -> TransactionMetadata:
        """Add partitions. The first one starts the transaction and its timeout."""
        return self._next(
            state=TransactionState.ONGOING,
            partitions=self.partitions | added,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare(self, commit: bool, client_version: int, next_producer_id: int, now_ms: int) -> TransactionMetadata:
        """Decide the outcome of a transaction. In version 2, an abort is legal without an open transaction.

        Version 2 increments the epoch, so that no late request of this transaction reaches the next one. `MAX_EPOCH`,
        which no client has, stays as it is, and the abort succeeds.
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

    def prepare_fencing_abort(self, client_version: int, next_producer_id: int, now_ms: int) -> TransactionMetadata:
        """Decide the coordinator's own abort. It increments the epoch in each version, which fences the producer."""
        epoch = min(self.producer_epoch + 1, MAX_EPOCH)
        return replace(self.prepare(False, client_version, next_producer_id, now_ms), producer_epoch=epoch)

    def complete(self, now_ms: int) -> TransactionMetadata:
        """Complete the prepared transaction, after all its markers were written."""
        rotate = self.client_version >= 2 and self.next_producer_id != NO_PRODUCER_ID
        return self._next(
            state=COMPLETE_FOR[self.commits],
            producer_id=self.next_producer_id if rotate else self.producer_id,
            producer_epoch=0 if rotate else self.producer_epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    def _next(self, **changes: object) -> TransactionMetadata:
        return replace(self, previous_producer_id=self.producer_id, **changes)  # type: ignore[arg-type]


def check_transition(old: TransactionMetadata, new: TransactionMetadata) -> None:
    """Raise IllegalTransitionError unless one step leads from `old` to `new` (Kafka's `completeTransitionTo`)."""
    for holds, rule in (
        (old.state in PREVIOUS_STATES[new.state], "no transition leads to this state"),
        (new.previous_producer_id in (old.producer_id, NO_PRODUCER_ID), "the previous producer id is wrong"),
        (_epoch_follows(old, new), "the epoch is not the expected one"),
        (_partitions_follow(old, new), "the partitions are not the expected ones"),
        (new.state is TransactionState.EMPTY or new.timeout_ms == old.timeout_ms, "the timeout changed"),
        ((new.start_ms == -1) is (new.state is TransactionState.EMPTY), "the start time is missing or wrong"),
    ):
        if not holds:
            raise IllegalTransitionError(f"{rule}: {old} -> {new}")


def _epoch_follows(old: TransactionMetadata, new: TransactionMetadata) -> bool:
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


def _partitions_follow(old: TransactionMetadata, new: TransactionMetadata) -> bool:
    if new.state is TransactionState.ONGOING:
        return new.partitions >= old.partitions
    return new.partitions == (old.partitions if new.state in PREPARED else frozenset())
