"""One replica of a partition: its log, and the high watermark up to which the log is committed.

On a single broker, the leader is the only in-sync replica, so the high watermark follows the log end offset at once.
With `flush.messages`, the log must be synced first. Delayed responses and fetches register callbacks, so this module
needs no clock and no event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from oncelog.log.log import AppendResult, Log, Origin
from oncelog.log.validate import ValidBatches
from oncelog.protocol.errors import ErrorCode, ProtocolError


class Flush(Protocol):
    """Sync logs outside the event loop, and report through `Replica.synced`."""

    def now(self, replica: Replica, /) -> None:
        """Start a sync of the log, because an append waits for it."""

    def later(self, replica: Replica, /) -> None:
        """Sync the log within `flush.ms`. No append waits for it."""

    def files(self, replica: Replica, /) -> None:
        """Sync the small files of the log that were written (`Log.unsynced`). No append waits for them."""


class Replica:
    """The leader's replica of one partition."""

    __slots__ = (
        "_flush",
        "_waiting",
        "_watchers",
        "bytes_appended",
        "insync_replicas",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "offline",
        "partition",
        "recovered_end",
        "synced_names",
        "synced_offset",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        topic_id: UUID,
        log: Log,
        leader_epoch: int,
        *,
        replicas: int = 1,
        min_insync_replicas: int = 1,
        flush: Flush | None = None,
    ) -> None:
        """Create a replica of an open log.

        `flush` syncs the log as `flush.messages` and `flush.ms` require; without it, the log is not synced here.
        `replicas` is the number of replicas of the partition. It bounds `min_insync_replicas`, as in Kafka's
        `Partition.effectiveMinIsr`.
        """
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        self.bytes_appended = 0
        self.insync_replicas = 1
        self.offline = False
        """Whether the log directory has failed."""
        self.min_insync_replicas = min(min_insync_replicas, replicas)
        self.recovered_end = log.log_end_offset
        """The log end offset when the log was opened. Clients may have seen offsets up to it before (KIP-207)."""
        self.synced_offset = log.recovery_point
        """The records before this offset are on the device."""
        self.synced_names = -1
        """Base offset of the newest segment whose file name is on the device. -1 if no sync has covered one."""
        self._flush = flush
        self._waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []
        self._watchers: dict[Callable[[], None], None] = {}
        self._appended()  # recovery may have found records that were neither synced nor acknowledged

    def __repr__(self) -> str:
        return f"Replica({self.topic}-{self.partition}, LEO {self.log.log_end_offset})"

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

        With `all_replicas` (acks=all), raises NOT_ENOUGH_REPLICAS if fewer replicas are in sync than the topic
        requires. For `verified` and `guard`, see `Log.start_verification`. Raises ProtocolError with Kafka's code if
        the append is rejected. In this case, nothing is appended.
        """
        if all_replicas and self.insync_replicas < self.min_insync_replicas:
            message = f"{self.insync_replicas} replica(s) are in sync; min.insync.replicas={self.min_insync_replicas}"
            raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{self.topic}-{self.partition}: {message}")
        result = self.log.append_as_leader(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            transaction_version=transaction_version,
            verified=verified,
            guard=guard,
            validated=validated,
        )
        if not result.duplicate:
            self.bytes_appended += len(records)
            self._appended()
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
        """Append a transaction marker. If it ends the first open transaction, the last stable offset advances."""
        result = self.log.append_control(
            commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            transaction_version=transaction_version,
        )
        self.bytes_appended += 1
        self._appended()
        return result

    def readable_end(self, read_committed: bool) -> int:
        """Return the offset before which consumers may read: the last stable offset or the high watermark."""
        return self.log.last_stable_offset if read_committed else self.log.high_watermark

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest leader epoch not above `epoch`, and its end offset, or (-1, -1) if unknown (KIP-101).

        The current leader epoch counts from its election on. The log records it only with the first append.
        """
        end, latest = self.log.log_end_offset, self.log.leader_epoch
        if epoch == self.leader_epoch:
            return epoch, end
        if 0 <= epoch < self.leader_epoch and (latest is None or latest < epoch):
            return (epoch if latest is None else latest), end
        return self.log.end_offset_for_epoch(epoch)

    def when_committed(self, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Call `callback` with NONE when the high watermark is above `offset`, perhaps before this returns.

        If the record at `offset` can no longer be committed, call it with the reason: KAFKA_STORAGE_ERROR for a failed
        log directory, or UNKNOWN_TOPIC_OR_PARTITION for a deleted topic.
        """
        if self.log.high_watermark > offset:
            callback(ErrorCode.NONE)
        elif self.offline or self.log.closed:
            callback(self._why_lost())
        else:
            self._waiting.append((offset, callback))

    def _why_lost(self) -> ErrorCode:
        return ErrorCode.KAFKA_STORAGE_ERROR if self.offline else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each append or sync, and when the replica fails or is released, until `unwatch`."""
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
        """Fail all waiters of a replica that is offline or closed, because no more records are committed.

        Waiters whose records are already committed get NONE.
        """
        waiting, self._waiting = self._waiting, []
        for offset, callback in waiting:
            callback(ErrorCode.NONE if self.log.high_watermark > offset else self._why_lost())
        self.wake()

    def wake(self) -> None:
        """Call all watchers."""
        for callback in tuple(self._watchers):
            callback()

    def synced(self, offset: int) -> None:
        """Record that the log is on the device up to `offset`, and commit the records before it."""
        self.synced_offset = max(self.synced_offset, offset)
        self._appended()

    def _appended(self) -> None:
        """Commit the records in the log that need no sync first.

        If `flush.messages` or more records are not synced, the records after the last sync are committed only after
        the next one. Kafka syncs within such an append.
        """
        log = self.log
        end = log.log_end_offset
        if log.unsynced and self._flush is not None:
            self._flush.files(self)
        if self._flush is None or end - self.synced_offset < log.config.flush_messages:
            self._advance(end)
            if self._flush is not None and end > self.synced_offset:
                self._flush.later(self)
        else:
            self._advance(self.synced_offset)
            self._flush.now(self)

    def _advance(self, offset: int) -> None:
        log = self.log
        log.advance_high_watermark(offset)
        if self._waiting:
            ready = [callback for offset, callback in self._waiting if offset < log.high_watermark]
            self._waiting = [entry for entry in self._waiting if entry[0] >= log.high_watermark]
            for callback in ready:
                callback(ErrorCode.NONE)
        if self._watchers:
            self.wake()
