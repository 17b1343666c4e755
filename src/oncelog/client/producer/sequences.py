"""Sequence numbers: one count a partition and producer epoch, and which batches of it are under way.

A batch gets its numbers when it is drained and keeps them for every retry. If they cannot be trusted any more (a
batch expired without an answer, the broker lost its state), an idempotent producer raises its epoch and numbers that
partition's batches anew from 0; other partitions keep the old epoch until nothing of theirs is under way. Java's
producer renumbers a batch of which an unanswered copy may still arrive, and doubles it then. Here the new epoch waits
for the answers that can still come, and what is in doubt after that is given up.
"""

from __future__ import annotations

from oncelog.client.producer.batch import Batch
from oncelog.client.types import TopicPartition
from oncelog.protocol.records import next_sequence

MAX_EPOCH = 32_767
KNOWN_MS = 60_000
"""How long after an acknowledgement a broker is taken to know a producer; `producer.id.expiration.ms` may be any."""
NONE = -1


class _Partition:
    __slots__ = ("epoch", "in_flight", "last_acked", "last_offset", "next", "producer_id")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.next = 0
        self.last_acked = NONE
        self.last_offset = NONE
        self.in_flight: list[Batch] = []
        """Sent and unanswered, or waiting to be sent again; by sequence."""

    def renew(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.next = 0
        self.last_acked = NONE


class Sequences:
    """Producer id, epoch, and the counts of all partitions."""

    def __init__(self) -> None:
        self.producer_id = self.epoch = NONE
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._unresolved: dict[TopicPartition, int] = {}
        """Partition -> sequence after the last one in doubt."""
        self._bump: set[TopicPartition] = set()
        self._confirmed: dict[TopicPartition, tuple[int, int]] = {}
        """Producer id under which a partition's leader has acknowledged something, and when that batch was begun."""

    def set_producer(self, producer_id: int, epoch: int) -> None:
        """A new id or epoch from the broker: every count begins at 0."""
        self.producer_id, self.epoch = producer_id, epoch
        self._partitions.clear()
        self._unresolved.clear()
        self._bump.clear()

    def _of(self, tp: TopicPartition) -> _Partition:
        found = self._partitions.get(tp)
        if found is None:
            found = self._partitions[tp] = _Partition(self.producer_id, self.epoch)
        return found

    def _stale(self, partition: _Partition) -> bool:
        return partition.epoch != self.epoch or partition.producer_id != self.producer_id

    # -- sending --------------------------------------------------------------------------------------------------

    def holds_back(self, batch: Batch) -> bool:
        """Whether a batch must wait for others of its partition (Sender.shouldStopDrainBatchesForPartition).

        One rule is ours: a broker takes *any* first sequence of a producer that it does not know (KAFKA-5793), so the
        second batch would do if the first one was turned away. Nothing follows the first before that is acknowledged,
        nor the first one after `KNOWN_MS`, for producers are forgotten. What is left, and with Java's producer always:
        a broker that forgets sooner, or a topic that is made anew, between two batches under way.
        """
        if batch.tp in self._bump or (self._bump and self.epoch >= MAX_EPOCH):
            return True  # it is going to be numbered anew
        partition = self._partitions.get(batch.tp)
        if batch.base_sequence < 0:
            if batch.tp in self._unresolved:
                return True
            if partition is None or not partition.in_flight:
                return False
            if not self._is_known(batch):
                return True
            return self._stale(partition) or any(other.in_retry for other in partition.in_flight)
        first = partition.in_flight[0] if partition is not None and partition.in_flight else None
        return first is not None and first is not batch

    def _is_known(self, batch: Batch) -> bool:
        """Whether the partition's leader has acknowledged something of this producer shortly before the batch."""
        producer_id, then_ms = self._confirmed.get(batch.tp, (NONE, 0))
        return producer_id == self.producer_id and batch.created_ms - then_ms <= KNOWN_MS

    def assign(self, batch: Batch, *, transactional: bool) -> None:
        """Number a drained batch, unless it has its numbers; it is under way from now on."""
        batch.in_retry = batch.sequence_reset = False
        if batch.base_sequence >= 0:
            return
        partition = self._of(batch.tp)
        if self._stale(partition):
            partition.renew(self.producer_id, self.epoch)
        batch.set_producer(partition.producer_id, partition.epoch, partition.next, transactional=transactional)
        partition.next = next_sequence(partition.next, batch.count)
        partition.in_flight.append(batch)

    def in_flight(self, tp: TopicPartition) -> list[Batch]:
        """The partition's batches that are sent and unanswered or about to be sent again, by sequence."""
        partition = self._partitions.get(tp)
        return [] if partition is None else list(partition.in_flight)

    # -- answers --------------------------------------------------------------------------------------------------

    def delivered(self, batch: Batch, base_offset: int) -> None:
        """A batch is in the log from `base_offset` on (-1: it is known to be there, not where)."""
        partition = self._partitions.get(batch.tp)
        self.remove(batch)
        if partition is None or (batch.producer_id, batch.producer_epoch) != (partition.producer_id, partition.epoch):
            return
        self._confirmed[batch.tp] = (batch.producer_id, batch.created_ms)
        last = batch.last_sequence
        if partition.last_acked == NONE or _after(last, partition.last_acked):
            partition.last_acked = last
        if base_offset >= 0:
            partition.last_offset = max(partition.last_offset, base_offset + batch.count - 1)

    def remove(self, batch: Batch) -> None:
        """A batch is no longer under way."""
        partition = self._partitions.get(batch.tp)
        if partition is not None and batch in partition.in_flight:
            partition.in_flight.remove(batch)

    def replace(self, batch: Batch, parts: list[Batch]) -> None:
        """A batch was split: its parts have its sequences and its place."""
        partition = self._partitions.get(batch.tp)
        if partition is not None and batch in partition.in_flight:
            at = partition.in_flight.index(batch)
            partition.in_flight[at : at + 1] = parts

    def is_next(self, batch: Batch) -> bool:
        """Whether a batch directly follows what is acknowledged."""
        partition = self._of(batch.tp)
        return batch.base_sequence == (0 if partition.last_acked == NONE else next_sequence(partition.last_acked))

    def is_overtaken(self, batch: Batch) -> bool:
        """Whether a later batch is acknowledged: this one cannot be appended under its number any more."""
        acked = self._of(batch.tp).last_acked
        return acked != NONE and not _after(batch.base_sequence, acked)

    def last_acked_offset(self, tp: TopicPartition) -> int:
        """Offset of the last record known to be in the log, -1 if none is."""
        return self._of(tp).last_offset

    # -- doubt ----------------------------------------------------------------------------------------------------

    def is_unresolved(self, tp: TopicPartition) -> bool:
        """Whether it is unknown what of this partition is in the log."""
        return tp in self._unresolved

    def follows_unresolved(self, batch: Batch) -> bool:
        """Whether a batch directly follows the one in doubt."""
        return self._unresolved.get(batch.tp) == batch.base_sequence

    def mark_unresolved(self, batch: Batch) -> None:
        """A batch that was sent has been given up without an answer."""
        partition = self._partitions.get(batch.tp)
        if partition is None or (batch.producer_id, batch.producer_epoch) != (partition.producer_id, partition.epoch):
            return
        after = next_sequence(batch.base_sequence, batch.count)
        known = self._unresolved.get(batch.tp)
        if known is None or _after(after, known):
            self._unresolved[batch.tp] = after

    def resolve(self) -> list[TopicPartition]:
        """Settle what can be settled; the partitions where records are missing and nothing under way can tell."""
        lost = []
        for tp in list(self._unresolved):
            partition = self._partitions.get(tp)
            if partition is not None and partition.in_flight:
                continue
            acked = NONE if partition is None else partition.last_acked
            expected = 0 if acked == NONE else next_sequence(acked)
            if partition is None or partition.next != expected:
                lost.append(tp)
            del self._unresolved[tp]
        return lost

    # -- a new epoch ----------------------------------------------------------------------------------------------

    def request_bump(self, tp: TopicPartition) -> None:
        """This partition's numbers cannot be used any further (idempotence without transactions)."""
        self._bump.add(tp)

    def bump_if_requested(self) -> list[Batch]:
        """Raise the epoch and number anew what is under way in the partitions that asked for it, once all is answered.

        When the epochs are used up, `producer_id` is -1 then: a new one is needed. Returns the batches that are given
        up, for a copy of each may be in the log or still get there under the old numbers.
        """
        if not self._bump or self.producer_id < 0:
            return []
        if self.epoch >= MAX_EPOCH:
            return [] if any(map(self._awaits_answers, self._partitions)) else self._renumber_for_new_id()
        ready = {tp for tp in self._bump if not self._awaits_answers(tp)}
        if not ready:
            return []
        self._bump -= ready
        self.epoch += 1
        given_up = []
        for tp in ready:
            given_up += self._give_up(tp)
            self.restart(tp)
        return given_up

    def _awaits_answers(self, tp: TopicPartition) -> bool:
        """Whether a request with a batch of this partition is unanswered."""
        partition = self._partitions.get(tp)
        return partition is not None and any(not batch.in_retry for batch in partition.in_flight)

    def _give_up(self, tp: TopicPartition) -> list[Batch]:
        """Take out what is in doubt."""
        partition = self._of(tp)
        given_up = [batch for batch in partition.in_flight if batch.in_doubt]
        partition.in_flight = [batch for batch in partition.in_flight if not batch.in_doubt]
        return given_up

    def _renumber_for_new_id(self) -> list[Batch]:
        given_up = [batch for tp in list(self._partitions) for batch in self._give_up(tp)]
        waiting = [batch for partition in self._partitions.values() for batch in partition.in_flight]
        self.set_producer(NONE, NONE)
        for batch in waiting:
            batch.base_sequence = NONE
            batch.sequence_reset = True
        return given_up

    def restart(self, tp: TopicPartition) -> None:
        """Number a partition's batches from 0 under the present epoch."""
        partition = self._of(tp)
        partition.renew(self.producer_id, self.epoch)
        self._unresolved.pop(tp, None)
        for batch in partition.in_flight:
            batch.set_producer(self.producer_id, self.epoch, partition.next, transactional=batch.transactional)
            partition.next = next_sequence(partition.next, batch.count)


def _after(sequence: int, other: int) -> bool:
    """Whether a sequence lies behind another on the circle of 2^31."""
    return sequence != other and (sequence - other) & 0x7FFFFFFF < 0x40000000
