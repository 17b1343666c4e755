"""Decide whether a batch is in the log, sent again, split or given up. No I/O and no clock. Callers hold the lock.

Outcomes are collected, because users' callbacks must not run under a lock. `take` returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.discovery.topology import LEADER_MOVED
from oncelog.client.metrics.sends import Sends
from oncelog.client.producer import error_meanings
from oncelog.client.producer.accumulator import Accumulator
from oncelog.client.producer.batch import Batch
from oncelog.client.producer.produce_requests import Answer, BatchAnswer
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.producer.transaction_states import ManagerState
from oncelog.client.troubles import Troubles
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.topics import TopicPartition

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
"""Errors after which a batch of several records is split, because the broker may accept its parts."""

Outcomes = list[Callable[[], None]]


class Completion:
    """The outcomes of one producer's batches.

    `troubles` records the partitions whose batches the brokers reject. `backoff` returns the delays of a batch by the
    number of its attempts.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        accumulator: Accumulator,
        manager: TransactionManager | None,
        troubles: Troubles,
        backoff: Callable[[int], Backoff],
        sends: Sends,
    ) -> None:
        self._options = options
        self._accumulator = accumulator
        self._manager = manager
        self._troubles = troubles
        self._rejecting: set[TopicPartition] = set()
        """Partitions whose last batch a broker has rejected with an error that the client retries."""
        self._backoff = backoff
        self._sends = sends
        self._outcomes: Outcomes = []

    def take(self) -> Outcomes:
        """Return the outcomes to report after the lock is released."""
        taken, self._outcomes = self._outcomes, []
        return taken

    def finish(self, batch: Batch, error: BaseException | None, place: BatchAnswer | None = None) -> None:
        """Settle a batch: release its memory now, and its futures with `take`."""
        if batch.done:
            return
        self._accumulator.release(batch)
        if not batch.purged:
            self._report(batch, error, place)

    def _report(self, batch: Batch, error: BaseException | None, place: BatchAnswer | None = None) -> None:
        """Set the outcome of a batch's records, with `take`."""
        delivery = batch.delivery
        delivery.count = batch.count
        if error is not None:
            self._sends.failed(batch.tp[0], batch.count)
            by_record = _by_record(error, batch, place)
            self._outcomes.append(lambda: delivery.fail(error, by_record))
        else:
            assert place is not None
            self._outcomes.append(lambda: delivery.complete(place.base_offset, place.append_time))

    # -- a turn ---------------------------------------------------------------------------------------------------

    def expire(self, now: int, on_wire: Mapping[Batch, None]) -> None:
        """Give up the batches that are older than delivery.timeout.ms."""
        for batch in self._accumulator.expire(now, on_wire):
            within = f"within {self._options['delivery_timeout_ms']} ms (delivery_timeout_ms)"
            error: errors.KafkaError = self.lost(batch, batch in on_wire, within)
            if self._manager is not None:
                error = self._manager.expired(batch, error)
            self.finish(batch, error)

    def lost(self, batch: Batch, on_wire: bool, within: str) -> errors.TimedOutError:
        """Return the error of a batch that is given up. It says whether the batch may be in the log.

        Its cause and its code are the last error of the broker, if there is one.
        """
        about = f"{batch.count} records for {batch.tp[0]}-{batch.tp[1]}"
        last, times = batch.failure, batch.attempts
        if last is None:
            why, code = self._troubles.why(), None
        else:
            how_often = f"{times} attempts failed, the last one with" if times > 1 else "an attempt failed with"
            why, code = f"{how_often} {last.code.name}: {last.message}", last.code
        reason = f" ({why})" if why else ""
        lost: errors.TimedOutError
        if batch.in_doubt or on_wire:
            lost = errors.DeliveryTimeoutError(
                f"{about} were sent, but not acknowledged {within}; they may or may not be in the log{reason}", code
            )
        else:
            how = "were rejected repeatedly" if batch.attempts else "were not sent"
            lost = errors.TimedOutError(f"{about} {how} {within}; they are not in the log{reason}", code)
        lost.__cause__ = last or self._troubles.cause()
        self._given_up(batch.tp)
        return lost

    def _rejected(self, tp: TopicPartition, error: errors.KafkaError) -> None:
        self._rejecting.add(tp)
        why = f"records for {tp[0]}-{tp[1]} wait: {error}".rstrip(".")
        self._outcomes.append(lambda: self._troubles.waiting(tp, why, error))

    def _accepted(self, tp: TopicPartition) -> None:
        self._rejecting.discard(tp)
        self._outcomes.append(lambda: self._troubles.over(tp))

    def _given_up(self, tp: TopicPartition) -> None:
        """Forget why a partition waits, unless other records wait there, too."""
        if tp in self._rejecting and not self._accumulator.queued(tp):
            self._rejecting.discard(tp)
            self._outcomes.append(lambda: self._troubles.forget(tp))

    def resolve(self) -> None:
        """Settle sequences in doubt, and fail batches that cannot be sent after an error."""
        if self._manager is None:
            return
        for batch in self._manager.resolve():
            self._give_up(batch)
        self._drop_for_error(self._manager)

    def _give_up(self, batch: Batch) -> None:
        """Give up a batch whose sequences are invalid now: a copy may be in the log, so a retry could duplicate it."""
        self._accumulator.withdraw(batch)
        error = errors.DeliveryTimeoutError(
            f"{batch.count} records for {batch.tp[0]}-{batch.tp[1]} were sent, but the response was lost, and their "
            "sequence numbers are no longer valid; they may or may not be in the log"
        )
        self.finish(batch, error)

    def _drop_for_error(self, manager: TransactionManager) -> None:
        """After an error, fail the batches that were never sent."""
        if manager.error is None or not self._accumulator.waiting:
            return
        if manager.state in (ManagerState.FATAL_ERROR, ManagerState.ABORTABLE_ERROR):
            abortable = manager.state is ManagerState.ABORTABLE_ERROR
            for batch in self._accumulator.take_waiting(unless=lambda batch: abortable and _has_sequence(batch)):
                self.finish(batch, manager.error)

    # -- responses --------------------------------------------------------------------------------------------------

    def answers(self, now: int, answers: Iterable[Answer]) -> set[str]:
        """Process the results in a response. Return the topics whose leaders have to be looked up again."""
        stale: set[str] = set()
        for batch, code, text, where in answers:
            self._accumulator.unmute(batch.tp)
            if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                if batch.tp in self._rejecting:
                    self._accepted(batch.tp)
                if self._manager is not None:
                    self._manager.delivered(batch, where.base_offset)
                self.finish(batch, None, where)
                continue
            if code in LEADER_MOVED or code is ErrorCode.NETWORK_EXCEPTION:
                stale.add(batch.tp[0])
            if batch.done:
                continue
            if code in TOO_LARGE and batch.count > 1:
                self._split(batch)
                continue
            prefix = f"{batch.tp[0]}-{batch.tp[1]}: "
            error = errors.error_for(code, prefix + (text or code.text).removeprefix(prefix))
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                self._count_out_of_order(batch, error)
            if self._can_retry(batch, code, where.log_start_offset):
                batch.failure = error
                self._rejected(batch.tp, error)
                self._sends.retried(batch.tp[0], batch.count)
                self._accumulator.requeue(batch, now + int(self._backoff(batch.attempts).next_ms()))
                continue
            self._given_up(batch.tp)
            if self._manager is None:
                error = error_meanings.outside_transaction(error, in_doubt=batch.in_doubt)
            else:
                error = self._manager.failed(batch, error)
            self.finish(batch, error, where)
        return stale

    def _count_out_of_order(self, batch: Batch, error: errors.KafkaError) -> None:
        """Count a gap or a stale sequence. Kafka's message does not say which, but the acknowledged batches do."""
        overtaken = self._manager is not None and self._manager.sequences.is_overtaken(batch)
        if overtaken or isinstance(error, errors.StaleSequenceError):
            self._sends.stale += 1
        else:
            self._sends.gaps += 1

    def _split(self, batch: Batch) -> None:
        parts = batch.split()
        self._sends.splits += 1
        self._accumulator.replace(batch, parts)
        if self._manager is not None:
            self._manager.sequences.replace(batch, parts)

    def _can_retry(self, batch: Batch, code: ErrorCode, log_start_offset: int) -> bool:
        if batch.attempts >= self._options["retries"]:
            return False
        if self._manager is None:
            return code.retriable
        if self._manager.state is ManagerState.FATAL_ERROR:
            return False
        return self._manager.can_retry(batch, code, log_start_offset)

    # -- ends -----------------------------------------------------------------------------------------------------

    def drop_undrained(self, error: errors.KafkaError) -> None:
        """Fail the batches that wait and were never sent, because of an abort."""
        for batch in self._accumulator.take_waiting(unless=_has_sequence):
            self.finish(batch, error)

    def purge(self, on_wire: Mapping[Batch, None], *, in_queue: bool, in_flight: bool) -> int:
        """Drop the batches that wait, those in flight, or both. Return the number of their records.

        A batch that was never sent fails with PurgedError. A batch of which a copy may be in the log fails with
        DeliveryTimeoutError. In a transaction, these errors are the cause of an AbortableError.

        Before transaction.version 2, a batch of which a copy may be in flight is sent until a broker answers, and the
        abort waits for that, as in Java's producer. Otherwise, a leader that does not verify transactions could append
        the copy after the marker of the abort, to the next transaction (KIP-890). After the answer, the leader rejects
        the copy as a duplicate.
        """
        manager = self._manager
        old = manager is not None and manager.transactional and not manager.implicit
        if in_queue:
            self._accumulator.take_waiting(unless=lambda batch: batch.purged or (old and batch.in_doubt))
        dropped = 0
        for batch in self._accumulator.incomplete():
            if not (in_flight if batch in on_wire else in_queue):
                continue
            dropped += batch.count
            batch.delivery.seen = True  # `close` does not raise these errors: the program has dropped the records
            about = f"purge() dropped {batch.count} records for {batch.tp[0]}-{batch.tp[1]}"
            error: errors.OncelogError = errors.PurgedError(f"{about} before they were sent; they are not in the log")
            sent = batch in on_wire or batch.in_doubt
            if sent:
                error = errors.DeliveryTimeoutError(f"{about} in flight; they may or may not be in the log")
            if manager is not None:
                meaning: errors.KafkaError = errors.AbortableError(about)
                meaning = manager.fail_with(meaning) if old and sent else manager.expired(batch, meaning)
                if manager.transactional:
                    meaning.__cause__ = error
                    error = meaning
            if old and sent:
                batch.purged = True
                self._report(batch, error)
            else:
                self.finish(batch, error)
        return dropped

    def fail_all(self, error: errors.FatalError) -> None:
        """Fail every batch that has no outcome, and the transaction manager, after a fault of the sender."""
        if self._manager is not None:
            self._manager.fatal(error)
        self._accumulator.take_waiting()
        for batch in self._accumulator.incomplete():
            self.finish(batch, error)

    def drop_all(self, on_wire: Mapping[Batch, None]) -> None:
        """Fail every batch that has no outcome, because the producer is closed."""
        for batch in self._accumulator.incomplete():
            self.finish(batch, self.lost(batch, batch in on_wire, "before the producer was closed"))


def _by_record(error: BaseException, batch: Batch, place: BatchAnswer | None) -> Callable[[int], BaseException] | None:
    """Return the error of each record in a batch that was rejected because of some of its records (KIP-467)."""
    refused = {} if place is None else dict(place.record_errors)
    if not refused or not isinstance(error, errors.KafkaError):
        return None
    name = f"{batch.tp[0]}-{batch.tp[1]}"
    code, message = error.code, error.message
    causes = {index: errors.error_for(code, f"{name}: {text or message}") for index, text in refused.items()}
    first = next(iter(causes.values()))
    others = errors.error_for(
        ErrorCode.INVALID_RECORD,
        f"{name}: the whole batch was rejected because of another record in it: {first.message}",
    )
    meaning = error_meanings.abortable if isinstance(error, errors.AbortableError) else _unchanged
    return lambda index: meaning(causes.get(index, others))


def _has_sequence(batch: Batch) -> bool:
    return batch.base_sequence >= 0


def _unchanged(error: errors.KafkaError) -> errors.KafkaError:
    return error
