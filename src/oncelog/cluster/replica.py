"""One replica of a partition: the log, and the high watermark that says how much of it is committed.

With one broker the in-sync replicas are this one, so the high watermark follows the log end offset at once. What waits
for it (a held-back response, a delayed fetch) is told through callbacks, so that no clock or event loop is needed here.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from oncelog.log.log import AppendResult, Log, Origin
from oncelog.protocol.errors import ErrorCode, ProtocolError


class Replica:
    """The leader's copy of (topic, partition)."""

    __slots__ = (
        "_waiting",
        "_watchers",
        "bytes_appended",
        "insync_replicas",
        "leader_epoch",
        "log",
        "min_insync_replicas",
        "offline",
        "partition",
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
    ) -> None:
        """`replicas`: how many there are, which bounds `min_insync_replicas` (`Partition.effectiveMinIsr`)."""
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        self.bytes_appended = 0
        self.insync_replicas = 1
        self.offline = False
        """Its log directory has failed."""
        self.min_insync_replicas = min(min_insync_replicas, replicas)
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._watchers: dict[Callable[[], None], None] = {}
        log.advance_high_watermark(log.log_end_offset)

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
    ) -> AppendResult:
        """Appends one or more batches as leader; offsets are patched into `records` in place.

        With `all_replicas` (acks=all) NOT_ENOUGH_REPLICAS is raised while fewer replicas are in sync than the topic
        demands. `verified` and `guard`: see `Log.start_verification`. Raises ProtocolError with Kafka's code; nothing
        is appended then.
        """
        if all_replicas and self.insync_replicas < self.min_insync_replicas:
            message = f"{self.insync_replicas} replica(s) in sync, min.insync.replicas is {self.min_insync_replicas}"
            raise ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS, f"{self.topic}-{self.partition}: {message}")
        result = self.log.append_as_leader(
            records,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
            origin=origin,
            transaction_version=transaction_version,
            verified=verified,
            guard=guard,
        )
        if not result.duplicate:
            self.bytes_appended += len(records)
            self._advance()
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
        """Appends a transaction marker; the last stable offset moves when it was the first open transaction's."""
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
        self._advance()
        return result

    def readable_end(self, read_committed: bool) -> int:
        """The exclusive bound of what a consumer may read: last stable offset or high watermark."""
        return self.log.last_stable_offset if read_committed else self.log.high_watermark

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest leader epoch not above `epoch`, and its end offset; (-1, -1) if not known (KIP-101).

        The present leader's epoch counts from its election on, though the log learns of it with the first append.
        """
        end, latest = self.log.log_end_offset, self.log.leader_epoch
        if epoch == self.leader_epoch:
            return epoch, end
        if 0 <= epoch < self.leader_epoch and (latest is None or latest < epoch):
            return (epoch if latest is None else latest), end
        return self.log.end_offset_for_epoch(epoch)

    def when_committed(self, offset: int, callback: Callable[[], None]) -> None:
        """Calls `callback` as soon as the high watermark is past `offset`, or never will be (see `offline`)."""
        if self.log.high_watermark > offset or self.offline:
            callback()
        else:
            self._waiting.append((offset, callback))

    def watch(self, callback: Callable[[], None]) -> None:
        """Calls `callback` after every append that consumers may see, and when the log is closed, until `unwatch`."""
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Ends `watch`; unknown callbacks are ignored."""
        self._watchers.pop(callback, None)

    def fail(self) -> None:
        """Takes it offline, as its log directory is: whoever waits for it learns that, and its files are given back."""
        self.offline = True
        for segment in self.log.segments:
            segment.close()
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback()
        self.wake()

    def wake(self) -> None:
        """Lets all who watch look again: something was appended, or the log is closed for good."""
        for callback in tuple(self._watchers):
            callback()

    def _advance(self) -> None:
        log = self.log
        log.advance_high_watermark(log.log_end_offset)
        if self._waiting:
            ready = [callback for offset, callback in self._waiting if offset < log.high_watermark]
            self._waiting = [entry for entry in self._waiting if entry[0] >= log.high_watermark]
            for callback in ready:
                callback()
        if self._watchers:
            self.wake()
