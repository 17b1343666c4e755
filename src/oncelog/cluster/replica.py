"""One replica of a partition: its log, when the log must be synced, and the term or the leader that it serves.

A replica leads in a `Leadership`, follows another broker's, or does neither. The term decides up to which offset the
log is committed. With `flush.messages`, records count only after they are synced. Delayed responses and fetches
register callbacks, so this module needs no clock and no event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol
from uuid import UUID

from oncelog.cluster.leader import Leadership, check_leader_epoch
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.topic_traffic import TopicTraffic
from oncelog.cluster.waits import Outcome, Wait, Waits
from oncelog.log.log import AppendResult, Log, Origin
from oncelog.log.validate import ValidBatches
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import MARKER_SIZE

_COORDINATOR = Origin.COORDINATOR
"""A constant, because each append needs it."""


class Flush(Protocol):
    """Sync logs outside the event loop, and report through `Replica.synced`."""

    def now(self, replica: Replica, /) -> None:
        """Start a sync of the log, because an append waits for it."""

    def later(self, replica: Replica, /) -> None:
        """Sync the log within `flush.ms`. No append waits for it."""

    def files(self, replica: Replica, /) -> None:
        """Sync the small files of the log that were written (`Log.unsynced`). No append waits for them."""


class Replica:
    """One replica of a partition."""

    __slots__ = (
        "_flush",
        "_later",
        "_stored_waits",
        "_watchers",
        "bytes_appended",
        "leader",
        "leader_epoch",
        "log",
        "offline",
        "partition",
        "state_version",
        "stored_end",
        "stored_start",
        "synced_names",
        "synced_offset",
        "term",
        "topic",
        "topic_id",
        "traffic",
        "truncating",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: UUID,
        log: Log,
        *,
        flush: Flush | None = None,
        later: Callable[[Callable[[], None]], object] | None = None,
        traffic: TopicTraffic | None = None,
    ) -> None:
        """Create a replica of an open log, without a term.

        `flush` syncs the log as `flush.messages` and `flush.ms` require; without it, the log is not synced here. For
        `later`, see `Waits`.
        """
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.term: Leadership | None = None
        """The term in which this replica leads, or None."""
        self.leader = -1
        """The broker that this replica follows, or -1."""
        self.leader_epoch = -1
        """The leader epoch in which this replica leads or follows, or -1."""
        self.state_version = -1
        """The version of the newest partition state that this replica has applied. Older ones are ignored."""
        self.bytes_appended = 0
        self.traffic = traffic or TopicTraffic()
        """The counters of the topic, which its replicas share."""
        self.offline = False
        """Whether the log directory has failed."""
        self.synced_offset = log.recovery_point
        """The records before this offset are on the device."""
        self.synced_names = -1
        """Base offset of the newest segment whose file name is on the device. -1 if no sync has covered one."""
        self.stored_end = log.log_start_offset
        """The records before this offset need no sync, or are synced (`flush.messages`)."""
        self.stored_start = log.log_start_offset
        """The log start offset that is in the checkpoint. A follower reports it to the leader."""
        self.truncating = False
        """Whether the log is being truncated. Until that ends, the replica keeps its role, and the fetcher skips it."""
        self._flush = flush
        self._later = later
        self._stored_waits = Waits(self.stored_end, later)
        self._watchers: dict[Callable[[], None], None] = {}

    @property
    def name(self) -> str:
        """The partition, as in log lines: `TOPIC-NUMBER`."""
        return f"{self.topic}-{self.partition}"

    def __repr__(self) -> str:
        return f"Replica({self.name}, LEO {self.log.log_end_offset})"

    # --- terms ---

    def lead(
        self,
        broker: int,
        replicas: Iterable[int],
        state: PartitionState,
        *,
        min_insync_replicas: int = 1,
        max_lag_ms: int = 30_000,
        live: Mapping[int, int] | None = None,
        now_ms: int = 0,
    ) -> Leadership:
        """Begin a term as leader under `state`. For the arguments, see `Leadership`."""
        self.end_term()
        self.log.void_verifications()  # a request of the former term may have started one after its end
        term = Leadership(
            broker,
            replicas,
            state,
            self,
            min_insync_replicas=min_insync_replicas,
            max_lag_ms=max_lag_ms,
            live=live,
            now_ms=now_ms,
            later=self._later,
        )
        self.term = term
        self.leader = -1
        self.leader_epoch = state.leader_epoch
        self.state_version = state.version
        self.appended()  # recovery may have found records that were neither synced nor acknowledged
        return term

    def end_term(self) -> bool:
        """End the term, if there is one: fail its waits, and void its verifications. Return whether there was one.

        Truncate the log only afterwards.
        """
        term, self.term = self.term, None
        if term is None:
            return False
        self.state_version = max(self.state_version, term.state.version)  # an older image must not begin it again
        term.end()
        stored, self._stored_waits = self._stored_waits, Waits(self.stored_end, self._later)
        stored.lose()
        self.log.void_verifications()
        self.wake()
        return True

    def follow(self, leader: int, state: PartitionState) -> None:
        """Follow the leader of `state`, or no broker if `leader` is -1."""
        self.end_term()
        self.leader = leader
        self.leader_epoch = state.leader_epoch
        self.state_version = state.version
        self.appended()  # recovery may have found records that must be synced

    def leading(self) -> Leadership:
        """Return the term. Raises NOT_LEADER_OR_FOLLOWER if this replica does not lead."""
        if self.term is None:
            message = f"this broker does not lead {self.topic}-{self.partition}"
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        return self.term

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH unless a request has the current epoch, or none (-1)."""
        check_leader_epoch(epoch, self.leader_epoch)

    def log_was_truncated(self) -> None:
        """Record that the log was truncated or restarted. What was synced before counts only up to the new end."""
        log = self.log
        end = log.log_end_offset
        self.synced_names = -1
        self.synced_offset = end if end == log.log_start_offset else min(self.synced_offset, end)
        self.stored_start = min(self.stored_start, log.log_start_offset)
        self.appended()

    def start_stored(self, offset: int) -> None:
        """Record that a crash cannot move the log start before this offset any more."""
        self.stored_start = min(offset, self.log.log_start_offset)
        self.wake()

    # --- appends ---
    def append(
        self,
        records: memoryview,
        *,
        now_ms: int,
        all_replicas: bool = False,
        origin: Origin = Origin.CLIENT,
        transaction_version: int = 0,
        verified: bool = True,
        guard: int | None = None,
        validated: ValidBatches | None = None,
    ) -> AppendResult:
        """Append one or more batches as leader. Their offsets are written into `records` in place.

        Raises NOT_LEADER_OR_FOLLOWER. With `all_replicas` (acks=all), and for coordinators, raises NOT_ENOUGH_REPLICAS
        if fewer replicas are in sync than the topic requires, unless the log has the batch already. In Kafka, the retry
        of such a batch gets this error, too. librdkafka then takes the batch for lost, and may write it again under the
        next epoch. For `verified` and `guard`, see `Log.start_verification`.
        Raises ProtocolError with Kafka's code if the append is rejected. In this case, nothing is appended.
        """
        term = self.term or self.leading()
        if (all_replicas or origin is _COORDINATOR) and term.under_min_isr:
            known = None
            if origin is Origin.CLIENT:
                known = self.log.find_duplicate(records, now_ms=now_ms, validated=validated)
            if known is None:
                raise self._not_enough(term)
            return known
        result = self.log.append_as_leader(
            records,
            leader_epoch=term.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            transaction_version=transaction_version,
            verified=verified,
            guard=guard,
            validated=validated,
        )
        if not result.duplicate:
            size = len(records)
            self.bytes_appended += size
            self.traffic.bytes_in += size
            self.traffic.messages_in += result.last_offset - result.first_offset + 1
            self.appended()
        return result

    def append_control(
        self,
        *,
        commit: bool,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> AppendResult:
        """Append a transaction marker. If it ends the first open transaction, the last stable offset advances.

        Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, and the errors of `Log.append_control`.
        """
        term = self.leading()
        if term.under_min_isr:
            raise self._not_enough(term)
        result = self.log.append_control(
            commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            leader_epoch=term.leader_epoch,
            now_ms=now_ms,
            transaction_version=transaction_version,
        )
        self.bytes_appended += MARKER_SIZE
        self.appended()
        return result

    def _not_enough(self, term: Leadership) -> ProtocolError:
        message = f"{len(term.isr)} replica(s) are in sync; min.insync.replicas={term.min_insync_replicas}"
        return ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{self.topic}-{self.partition}: {message}")

    def readable_end(self, read_committed: bool) -> int:
        """Return the offset before which consumers may read: the last stable offset or the high watermark."""
        return self.log.last_stable_offset if read_committed else self.log.high_watermark

    # --- waits ---

    def when_committed(
        self, offset: int, callback: Callable[[ErrorCode], None], term: Leadership | None = None
    ) -> Wait | None:
        """Call `callback` with NONE when the high watermark is above `offset`, perhaps before this returns.

        If the term ends before that, call it with the reason: KAFKA_STORAGE_ERROR for a failed log directory,
        UNKNOWN_TOPIC_OR_PARTITION for a deleted topic, otherwise NOT_LEADER_OR_FOLLOWER. If other code has run since
        the append, pass its `term`: after its end, another record may be at `offset`.

        Return the wait, or None if it has ended. Finish it if it is no longer needed: its error is REQUEST_TIMED_OUT.
        """
        current = self.term
        if term is not None and term is not current:
            callback(self._why_lost())
        elif self.log.high_watermark > offset:
            callback(ErrorCode.NONE)
        elif current is None:
            callback(self._why_lost())
        else:
            return current.waits.add(offset, partial(Replica._ended, self, callback))
        return None

    def when_stored(
        self, offset: int, callback: Callable[[ErrorCode], None], term: Leadership | None = None
    ) -> Wait | None:
        """Call `callback` with NONE when the record at `offset` is stored here as `flush.messages` requires.

        The followers need not have it. `term`, the errors and the result are those of `when_committed`.
        """
        if term is not None and term is not self.term:
            callback(self._why_lost())
        elif self.stored_end > offset:
            callback(ErrorCode.NONE)
        elif self.term is None:
            callback(self._why_lost())
        else:
            return self._stored_waits.add(offset, partial(Replica._ended, self, callback))
        return None

    def _ended(self, callback: Callable[[ErrorCode], None], outcome: Outcome) -> None:
        if outcome is Outcome.COMMITTED:
            callback(ErrorCode.NONE)
        else:
            callback(self._why_lost() if outcome is Outcome.LOST else ErrorCode.REQUEST_TIMED_OUT)

    def _why_lost(self) -> ErrorCode:
        if self.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if self.log.closed else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` until `unwatch`: after an append, sync, commit or ISR change, and when the term ends."""
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`. An unknown callback is ignored."""
        self._watchers.pop(callback, None)

    def fail(self) -> None:
        """Take the replica offline, because its log directory has failed. Close its files, and fail its waiters."""
        self.offline = True
        for segment in self.log.segments:
            segment.close()
        self.release()

    def release(self) -> None:
        """End the term of a replica that is offline or closed, because no more records are committed."""
        if not self.end_term():
            self.wake()

    def state_written(self, state: PartitionState) -> bool:
        """Record a state of the partition that was read from the tree. Return whether the term continues.

        DeleteRecords waits for the in-sync and the eligible replicas, so wake it if they have changed.
        """
        term = self.term
        if term is None:
            return False
        before = term.isr, term.state.elr
        continues = term.state_written(state)
        if (term.isr, term.state.elr) != before:
            self.wake()
        return continues

    def wake(self) -> None:
        """Call all watchers."""
        for callback in tuple(self._watchers):
            callback()

    def synced(self, offset: int) -> None:
        """Record that the log is on the device up to `offset`, and commit the records before it."""
        self.synced_offset = max(self.synced_offset, offset)
        self.appended()

    def appended(self) -> None:
        """Count the records in the log that need no sync first. Call it after each append to the log.

        If `flush.messages` or more records are not synced, the records after the last sync count only after the next
        one. Kafka syncs within such an append.
        """
        log = self.log
        end = log.log_end_offset
        flush = self._flush
        if flush is None:
            self.stored_end = end
        else:
            if log.unsynced:
                flush.files(self)
            if end - self.synced_offset < log.config.flush_messages:
                self.stored_end = end
                if end > self.synced_offset:
                    flush.later(self)
            else:
                self.stored_end = self.synced_offset
                flush.now(self)
        term = self.term
        if (term is None or not term.appended()) and self._watchers:
            self.wake()
        self._stored_waits.commit(self.stored_end)

    def advance_high_watermark(self, offset: int) -> None:
        """Set the high watermark of a leader, as its term wants it."""
        self.log.advance_high_watermark(offset)
        if self._watchers:
            self.wake()
