"""Sequence numbers of an idempotent producer: one count per partition and producer epoch, and the batches in flight.

A batch gets its sequences when it is drained, and keeps them for every retry. If they become unusable (a batch expired
without a response, or the broker lost its state), the producer raises its epoch, and numbers that partition's batches
from 0 again. Other partitions keep the old epoch until none of their batches is in flight.

Java's producer renumbers a batch whose copy may still arrive, and so can duplicate it. Before this producer uses the
new epoch, it waits for the responses to the partition's batches, then fails the batches that are in doubt. It does not
wait for expired and purged batches, because they are not sent again.
"""

from __future__ import annotations

import logging

from oncelog.client.producer.batch import Batch
from oncelog.protocol.records import next_sequence
from oncelog.protocol.topics import TopicPartition

MAX_EPOCH = 32_767
KNOWN_MS = 60_000
"""How long a broker is assumed to know a producer after an acknowledgement (`producer.id.expiration.ms` varies)."""
NONE = -1

logger = logging.getLogger(__name__)


class _Partition:
    __slots__ = ("epoch", "in_flight", "last_acked", "last_offset", "next", "producer_id")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.next = 0
        self.last_acked = NONE
        self.last_offset = NONE
        self.in_flight: list[Batch] = []
        """Batches that are unanswered or wait to be sent again, by sequence."""

    def renew(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self.next = 0
        self.last_acked = NONE


class Sequences:
    """The producer id, the epoch, and the sequences of all partitions."""

    def __init__(self) -> None:
        self.producer_id = self.epoch = NONE
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._unresolved: dict[TopicPartition, int] = {}
        """Partition -> the sequence after the last one in doubt."""
        self._bump: dict[TopicPartition, str] = {}
        """Partitions that need a new epoch, and why."""
        self._confirmed: dict[TopicPartition, tuple[int, int]] = {}
        """The producer id of the last batch that the partition's leader acknowledged, and when it was created."""

    def set_producer(self, producer_id: int, epoch: int) -> None:
        """Set a new id or epoch from the broker. Every count begins at 0."""
        self.producer_id, self.epoch = producer_id, epoch
        self._partitions.clear()
        self._unresolved.clear()
        self._bump.clear()
        if producer_id >= 0:
            logger.debug("producer id %d, epoch %d: assigned; all sequences begin at 0", producer_id, epoch)

    def _of(self, tp: TopicPartition) -> _Partition:
        found = self._partitions.get(tp)
        if found is None:
            found = self._partitions[tp] = _Partition(self.producer_id, self.epoch)
        return found

    def _stale(self, partition: _Partition) -> bool:
        return partition.epoch != self.epoch or partition.producer_id != self.producer_id

    # -- sending --------------------------------------------------------------------------------------------------

    def holds_back(self, batch: Batch) -> bool:
        """Return whether a batch must wait for others of its partition (Sender.shouldStopDrainBatchesForPartition).

        One rule is ours: a broker accepts *any* first sequence of a producer that it does not know (KIP-360), so it
        would accept the second batch after it has rejected the first. So no batch follows the first one before that is
        acknowledged, nor the first one after `KNOWN_MS`, because brokers forget producers. The gap remains, and Java's
        producer always has it, if a broker forgets sooner, or a topic is created again, between two batches in flight.
        """
        if batch.tp in self._bump or (self._bump and self.epoch >= MAX_EPOCH):
            return True  # it will get new sequences
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
        """Return whether the leader has acknowledged a batch of this producer shortly before this one."""
        producer_id, then_ms = self._confirmed.get(batch.tp, (NONE, 0))
        return producer_id == self.producer_id and batch.created_ms - then_ms <= KNOWN_MS

    def assign(self, batch: Batch, *, transactional: bool) -> None:
        """Give a drained batch its sequences, unless it has them. It is in flight from now on."""
        batch.in_retry = batch.sequence_reset = False
        if batch.base_sequence >= 0:
            logger.debug("%s: sent again", batch)
            return
        partition = self._of(batch.tp)
        if self._stale(partition):
            partition.renew(self.producer_id, self.epoch)
        batch.set_producer(partition.producer_id, partition.epoch, partition.next, transactional=transactional)
        partition.next = next_sequence(partition.next, batch.count)
        partition.in_flight.append(batch)
        if logger.isEnabledFor(logging.DEBUG):  # most batches are sent with DEBUG off
            logger.debug("%s: drained", batch)

    def in_flight(self, tp: TopicPartition) -> list[Batch]:
        """Return the partition's batches that are unanswered or wait to be sent again, by sequence."""
        partition = self._partitions.get(tp)
        return [] if partition is None else list(partition.in_flight)

    # -- responses --------------------------------------------------------------------------------------------------

    def delivered(self, batch: Batch, base_offset: int) -> None:
        """Record that a batch is in the log, at `base_offset` (-1: the offset is unknown)."""
        partition = self._partitions.get(batch.tp)
        self.remove(batch)
        if partition is None or (batch.producer_id, batch.producer_epoch) != (partition.producer_id, partition.epoch):
            return
        self._confirmed[batch.tp] = (batch.producer_id, batch.created_ms)
        last = batch.last_sequence
        if partition.last_acked == NONE or _is_after(last, partition.last_acked):
            partition.last_acked = last
        if base_offset >= 0:
            partition.last_offset = max(partition.last_offset, base_offset + batch.count - 1)

    def remove(self, batch: Batch) -> None:
        """Record that a batch is no longer in flight."""
        partition = self._partitions.get(batch.tp)
        if partition is not None and batch in partition.in_flight:
            partition.in_flight.remove(batch)

    def replace(self, batch: Batch, parts: list[Batch]) -> None:
        """Replace a batch by its parts, which have its sequences."""
        partition = self._partitions.get(batch.tp)
        if partition is not None and batch in partition.in_flight:
            at = partition.in_flight.index(batch)
            partition.in_flight[at : at + 1] = parts

    def is_next(self, batch: Batch) -> bool:
        """Return whether a batch directly follows the last acknowledged one."""
        partition = self._of(batch.tp)
        return batch.base_sequence == (0 if partition.last_acked == NONE else next_sequence(partition.last_acked))

    def is_overtaken(self, batch: Batch) -> bool:
        """Return whether a later batch is acknowledged, so that this one cannot be appended any more."""
        acked = self._of(batch.tp).last_acked
        return acked != NONE and not _is_after(batch.base_sequence, acked)

    def last_acked_offset(self, tp: TopicPartition) -> int:
        """Return the offset of the last record known to be in the log, or -1."""
        return self._of(tp).last_offset

    # -- doubt ----------------------------------------------------------------------------------------------------

    def is_unresolved(self, tp: TopicPartition) -> bool:
        """Return whether the outcome of a batch of this partition is unknown."""
        return tp in self._unresolved

    def follows_unresolved(self, batch: Batch) -> bool:
        """Return whether a batch directly follows the batch in doubt."""
        return self._unresolved.get(batch.tp) == batch.base_sequence

    def mark_unresolved(self, batch: Batch) -> None:
        """Record that a batch was sent, and given up without a response."""
        partition = self._partitions.get(batch.tp)
        if partition is None or (batch.producer_id, batch.producer_epoch) != (partition.producer_id, partition.epoch):
            return
        after = next_sequence(batch.base_sequence, batch.count)
        known = self._unresolved.get(batch.tp)
        if known is None or _is_after(after, known):
            self._unresolved[batch.tp] = after
        logger.debug("%s: given up without a response, so its sequences are unresolved", batch)

    def resolve(self) -> list[TopicPartition]:
        """Settle the partitions in doubt that have no batch in flight. Return those whose records are missing."""
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
            outcome = "missing in the log" if tp in lost else "in the log, because a later batch is"
            logger.debug("%s-%d: the records with unresolved sequences are %s", *tp, outcome)
        return lost

    # -- a new epoch ----------------------------------------------------------------------------------------------

    def request_bump(self, tp: TopicPartition, why: str) -> None:
        """Request a new epoch, because this partition's sequences are unusable (idempotence without transactions)."""
        self._bump.setdefault(tp, why)

    def bump_if_requested(self) -> list[Batch]:
        """Raise the epoch for partitions that have requested it and wait for no response. Renumber their batches.

        If the epochs are used up, set `producer_id` to -1: the producer needs a new one. Return the batches that are
        given up, because a copy of each may be in the log, or get there under the old sequences.
        """
        if not self._bump or self.producer_id < 0:
            return []
        if self.epoch >= MAX_EPOCH:
            return [] if any(map(self._awaits_answers, self._partitions)) else self._renumber_for_new_id()
        ready = [tp for tp in self._bump if not self._awaits_answers(tp)]
        if not ready:
            return []
        self.epoch += 1
        given_up = []
        for tp in ready:
            why = self._bump.pop(tp)
            text = "producer id %d: epoch raised to %d, because of %s-%d: %s"
            logger.debug(text, self.producer_id, self.epoch, *tp, why)
            given_up += self._give_up(tp)
            self.restart(tp)
        return given_up

    def _awaits_answers(self, tp: TopicPartition) -> bool:
        """Return whether a request with a batch of this partition is unanswered."""
        partition = self._partitions.get(tp)
        return partition is not None and any(not batch.in_retry for batch in partition.in_flight)

    def _give_up(self, tp: TopicPartition) -> list[Batch]:
        """Remove and return the batches in doubt."""
        partition = self._of(tp)
        given_up = [batch for batch in partition.in_flight if batch.in_doubt]
        partition.in_flight = [batch for batch in partition.in_flight if not batch.in_doubt]
        return given_up

    def _renumber_for_new_id(self) -> list[Batch]:
        given_up = [batch for tp in list(self._partitions) for batch in self._give_up(tp)]
        waiting = [batch for partition in self._partitions.values() for batch in partition.in_flight]
        logger.debug("producer id %d: reset, because its epochs are used up; the next one is new", self.producer_id)
        self.set_producer(NONE, NONE)
        for batch in waiting:
            batch.base_sequence = NONE
            batch.sequence_reset = True
        return given_up

    def restart(self, tp: TopicPartition) -> None:
        """Number a partition's batches from 0 under the current epoch."""
        partition = self._of(tp)
        partition.renew(self.producer_id, self.epoch)
        self._unresolved.pop(tp, None)
        for batch in partition.in_flight:
            batch.set_producer(self.producer_id, self.epoch, partition.next, transactional=batch.transactional)
            partition.next = next_sequence(partition.next, batch.count)
            logger.debug("%s: numbered again", batch)


def _is_after(sequence: int, other: int) -> bool:
    """Return whether a sequence comes after another one, modulo 2^31."""
    return sequence != other and (sequence - other) & 0x7FFFFFFF < 0x40000000
