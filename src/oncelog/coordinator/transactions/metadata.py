"""The coordinator's state of one transactional id, and the steps that change it (Kafka's `TransactionMetadata`).

A `TransactionMetadata` is a value. Each step returns a new one, which becomes the state when its record is replayed.

```
Empty ---------> Ongoing ---> PrepareCommit ---> CompleteCommit
  |                 |                               |
  |                 +-------> PrepareAbort ----> CompleteAbort
  +--(version 2)--------------^   ^---(version 2)---+ from either Complete state
```

A completed transaction becomes Empty (InitProducerId) or Ongoing (the next transaction). A new session may keep an open
transaction (KIP-939): it stays Ongoing, and only the new session can end it. Dead and PrepareEpochFence are
Kafka's transient states. Tools know them, but no record has them, and oncelog's coordinators never enter them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from oncelog.protocol.messages.init_producer_id import NO_TIMEOUT_MS
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


class IllegalTransitionError(RuntimeError):
    """A record that no step produces: a bug in the coordinator."""


def epoch_exhausted(epoch: int) -> bool:
    """Return whether no client may get an epoch after this one."""
    return epoch >= MAX_EPOCH - 1


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The state of one transactional id. Times are in ms.

    `start_ms` is -1 until the first partition is added. `client_version` is the client's transaction.version.
    `previous_producer_id` is the producer id before the last step. In a prepared or completed transaction, it is that
    of the session that ended it.

    `next_producer_id` and `next_producer_epoch` are, in Ongoing, the producer of the session that has kept the
    transaction. In a prepared state, they are the producer of the next transaction. The id is -1 if it stays the same.
    An id without an epoch begins at epoch 0, as in Kafka's records. The markers carry the transaction's own producer.
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
    next_producer_epoch: int = NO_EPOCH

    @property
    def kept(self) -> bool:
        """Return whether a later session than the transaction's own has kept it, and has to end it."""
        return self.state is TransactionState.ONGOING and self.has_next_epoch

    @property
    def has_next_epoch(self) -> bool:
        """Return whether a session has kept the open transaction, or had kept it when its outcome was decided."""
        return self.next_producer_epoch != NO_EPOCH

    @property
    def producer(self) -> tuple[int, int]:
        """Return the (producer id, epoch) of the transaction itself."""
        return self.producer_id, self.producer_epoch

    @property
    def holder(self) -> tuple[int, int]:
        """Return the (producer id, epoch) of the current session. Only this producer may end the transaction."""
        if self.kept:
            return self.next_producer_id, self.next_producer_epoch
        return self.producer

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
        self, added: frozenset[TopicPartition], client_version: int, most_timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """Add partitions. The first one starts the transaction and its timeout.

        A session may have no timeout because it has kept a transaction that has none. If it may begin no such
        transaction itself, `most_timeout_ms` applies.
        """
        starts = self.state is not TransactionState.ONGOING
        return self._next(
            timeout_ms=most_timeout_ms if starts and self.timeout_ms == NO_TIMEOUT_MS else self.timeout_ms,
            state=TransactionState.ONGOING,
            partitions=self.partitions | added,
            start_ms=now_ms if starts else self.start_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def keep(self, holder: tuple[int, int], timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """Apply InitProducerId that keeps the open transaction. `holder` is the new session's producer.

        The longer of the two timeouts applies, because a shorter one would abort the transaction.
        """
        return self._next(
            next_producer_id=holder[0],
            next_producer_epoch=holder[1],
            timeout_ms=max(self.timeout_ms, timeout_ms),
            last_update_ms=now_ms,
        )

    def prepare(
        self, commit: bool, client_version: int, successor: tuple[int, int] | None, now_ms: int
    ) -> TransactionMetadata:
        """Decide the outcome of a transaction. In version 2, an abort is legal without an open transaction.

        Version 2 increments the epoch, so that no late request of this transaction reaches the next one. `MAX_EPOCH`,
        which no client has, stays as it is, and the abort succeeds. `successor` is the (next producer id, next epoch),
        None to leave them as they are.
        """
        epoch = self.producer_epoch
        if client_version >= 2:
            epoch = min(epoch + 1, MAX_EPOCH)
        next_producer_id, next_epoch = successor or (self.next_producer_id, self.next_producer_epoch)
        return replace(
            self,
            state=PREPARE_FOR[commit],
            producer_epoch=epoch,
            # EndTxn recognizes a retry by the producer id of the session that has ended the transaction.
            previous_producer_id=self.holder[0],
            next_producer_id=next_producer_id,
            next_producer_epoch=next_epoch,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            last_update_ms=now_ms,
            client_version=client_version,
        )

    def prepare_fencing_abort(
        self, client_version: int, successor: tuple[int, int] | None, now_ms: int
    ) -> TransactionMetadata:
        """Decide the coordinator's own abort. It increments the epoch in each version, which fences the producer."""
        epoch = min(self.producer_epoch + 1, MAX_EPOCH)
        return replace(self.prepare(False, client_version, successor, now_ms), producer_epoch=epoch)

    def complete(self, now_ms: int) -> TransactionMetadata:
        """Complete the prepared transaction, after all its markers were written."""
        producer_id, epoch = self.producer
        unknown = self.previous_producer_id == NO_PRODUCER_ID
        if self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, max(self.next_producer_epoch, 0)
        return replace(
            self,
            state=COMPLETE_FOR[self.commits],
            producer_id=producer_id,
            producer_epoch=epoch,
            # Apache Kafka's prepared records may lack it.
            previous_producer_id=self.producer_id if unknown else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_EPOCH,
            partitions=frozenset(),
            last_update_ms=now_ms,
        )

    def _next(self, **changes: object) -> TransactionMetadata:
        return replace(self, previous_producer_id=self.producer_id, **changes)  # type: ignore[arg-type]


def check_transition(old: TransactionMetadata, new: TransactionMetadata) -> None:
    """Raise IllegalTransitionError unless one step leads from `old` to `new` (Kafka's `completeTransitionTo`)."""
    for holds, rule in (
        (old.state in PREVIOUS_STATES[new.state], "no transition leads to this state"),
        (
            new.previous_producer_id in (old.producer_id, old.holder[0], old.previous_producer_id, NO_PRODUCER_ID),
            "the previous producer id is wrong",
        ),
        (_epoch_follows(old, new), "the epoch is not the expected one"),
        (_partitions_follow(old, new), "the partitions are not the expected ones"),
        (_timeout_follows(old, new), "the timeout changed"),
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
        if old.has_next_epoch:
            return new.holder == (old.next_producer_id, old.next_producer_epoch)
        return (same_id and bump == 0) or (rotated and new.producer_id == old.next_producer_id)
    if new.state in PREPARED:
        broken = old.producer_epoch == MAX_EPOCH and bump == 0
        return same_id and (bump == 1 or (bump == 0 and (new.client_version < 2 or broken)))
    return same_id and bump == 0 and (new.holder == old.holder or _is_next(old.holder, new.holder))


def _is_next(old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Return whether a session with the producer `new` may follow one with `old`."""
    return new == (old[0], old[1] + 1) or (new[0] != old[0] and new[1] == 0)


def _partitions_follow(old: TransactionMetadata, new: TransactionMetadata) -> bool:
    if new.state is TransactionState.ONGOING:
        return new.partitions == old.partitions if new.kept else new.partitions >= old.partitions
    return new.partitions == (old.partitions if new.state in PREPARED else frozenset())


def _timeout_follows(old: TransactionMetadata, new: TransactionMetadata) -> bool:
    if new.state is TransactionState.EMPTY or new.timeout_ms == old.timeout_ms:
        return True
    begins = new.state is TransactionState.ONGOING and old.state is not TransactionState.ONGOING
    return new.timeout_ms > old.timeout_ms if new.kept else begins and old.timeout_ms == NO_TIMEOUT_MS
