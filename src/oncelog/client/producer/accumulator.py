"""Hold the batches that wait, by partition: drain, requeue, mute (KIP-98, Kafka's RecordAccumulator).

No clock, no lock, no I/O: callers pass the time and hold a lock. A turn looks only at partitions with waiting batches,
so its cost does not grow with the number of partitions.

A batch may leave its queue (`drain`) when it is full, has lingered, is being retried and has waited its back-off, or
when a flush is in progress; and when the transaction manager does not hold it back. A partition that was retried keeps
its order: `requeue` puts batches back by sequence.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from oncelog.client.producer.batch import RECORD_OVERHEAD, Batch, headers_size
from oncelog.client.types import Headers
from oncelog.errors import RecordTooLargeError
from oncelog.protocol.compression import Codec
from oncelog.protocol.records import HEADER_SIZE
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.producer.delivery import Delivery

logger = logging.getLogger(__name__)

SERIALS = 1 << 32
"""The distance between the serials of two batches. The parts of a split batch have serials in between."""


class Drained(NamedTuple):
    """What a turn may send: batches by broker. When to take the next turn (ms, or None). Topics without a leader."""

    by_node: dict[int, list[Batch]]
    next_ms: int | None
    unknown: set[str]


class Accumulator:
    """The waiting batches, and the memory that they and the batches in flight hold."""

    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: int,
        buffer_memory: int,
        delivery_timeout_ms: int,
        max_request_size: int,
        codec: Codec,
        level: int | None,
        new_delivery: Callable[[TopicPartition], Delivery],
    ) -> None:
        self._batch_size = batch_size
        self._linger = linger_ms
        self._memory = buffer_memory
        self._timeout = delivery_timeout_ms
        self._max_request = max_request_size
        self._codec = codec
        self._level = level
        self.new_delivery = new_delivery
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self._incomplete: dict[Batch, None] = {}
        self._muted: set[TopicPartition] = set()
        self._serial = 0
        self.used = 0
        self.used_topics: set[str] = set()
        """Topics that got a record since a caller last emptied this set."""
        self.flushing = 0

    # -- adding ---------------------------------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Headers,
        now_ms: Callable[[], int],
    ) -> tuple[Batch, int, bool] | None:
        """Add a record. Return its batch, its index there, and whether to wake the sender; None if memory is used up.

        `now_ms` is the clock, which only a new batch needs.
        Raises RecordTooLargeError if the record can never be sent (max.request.size, buffer.memory).
        """
        size = RECORD_OVERHEAD + (0 if key is None else len(key)) + (0 if value is None else len(value))
        if headers:
            size += headers_size(headers)
        queue = self._queues.get(tp)
        if queue:
            batch = queue[-1]
            if not batch.closed and (batch.size + size <= self._batch_size or not batch.count):
                if self.used + size > self._memory:
                    return None
                before = batch.size
                index = batch.append(key, value, timestamp, headers)
                self.used += batch.size - before
                return batch, index, batch.size >= self._batch_size
        if size + HEADER_SIZE > min(self._max_request, self._memory):
            self._too_large(size + HEADER_SIZE)
        if self.used + size + HEADER_SIZE > self._memory:
            return None
        batch = Batch(tp, self.new_delivery(tp), now_ms(), self._codec, self._level)
        index = batch.append(key, value, timestamp, headers)  # before `_enter`: a wrong type leaves nothing here
        self._enter(self._queues.setdefault(tp, deque()), batch)
        self.used += batch.size
        return batch, index, True

    def _too_large(self, size: int) -> None:
        limit, name = min((self._max_request, "max_request_size"), (self._memory, "buffer_memory"))
        raise RecordTooLargeError(f"the record has about {size} bytes, more than {name} = {limit}")

    def add_encoded(self, tp: TopicPartition, data: bytes | bytearray, now_ms: int) -> Batch | None:
        """Add an encoded batch. Return None if memory is used up. Raises RecordTooLargeError."""
        if len(data) > min(self._max_request, self._memory):
            self._too_large(len(data))
        if self.used + len(data) > self._memory:
            return None
        batch = Batch.encoded(tp, self.new_delivery(tp), now_ms, data)
        self._enter(self._queues.setdefault(tp, deque()), batch)
        self.used += batch.size
        return batch

    def queued(self, tp: TopicPartition) -> int:
        """Return how many batches of a partition wait."""
        return len(self._queues.get(tp, ()))

    def partitions_waiting(self, topic: str) -> list[int]:
        """Return the partitions of a topic that have waiting batches."""
        return [tp[1] for tp, queue in self._queues.items() if tp[0] == topic and queue]

    def _enter(self, queue: deque[Batch], batch: Batch) -> None:
        self._serial += SERIALS
        batch.serial = self._serial
        queue.append(batch)
        self._incomplete[batch] = None
        self.used_topics.add(batch.tp[0])

    # -- draining -------------------------------------------------------------------------------------------------

    def drain(
        self,
        now_ms: int,
        leader: Callable[[str, int], int],
        may_send: Callable[[int], bool],
        holds_back: Callable[[Batch], bool],
        assign: Callable[[Batch], None],
        *,
        mute: bool = False,
    ) -> Drained:
        """Take the batches that can be sent now: at most one per partition, and max.request.size per broker.

        `leader(topic, partition)` returns a node id or -1. `may_send(node)` returns whether the broker takes another
        request. `holds_back` and `assign` are the transaction manager's. With `mute` (one request in flight a
        connection) a partition waits until `unmute`.
        """
        by_node: dict[int, list[Batch]] = {}
        sizes: dict[int, int] = {}
        unknown: set[str] = set()
        next_ms: int | None = None
        empty = []
        for tp, queue in self._queues.items():
            if not queue:
                empty.append(tp)
                continue
            if tp in self._muted:
                continue
            first = queue[0]
            ready_at = self._ready_at(first, len(queue), now_ms)
            if ready_at > now_ms:
                next_ms = ready_at if next_ms is None else min(next_ms, ready_at)
                continue
            node = leader(*tp)
            if node < 0:
                unknown.add(tp[0])
                continue
            size = sizes.get(node, 0)
            if size and size + first.size > self._max_request:
                next_ms = now_ms
                continue
            if not may_send(node) or holds_back(first):
                continue
            queue.popleft()
            if mute:
                self._muted.add(tp)
            with suppress(Exception):  # the sender compresses again, and fails the records if that fails, too
                first.close()
            assign(first)
            sizes[node] = size + first.size
            by_node.setdefault(node, []).append(first)
        for tp in empty:
            del self._queues[tp]
        self._rotate(by_node)
        return Drained(by_node, next_ms, unknown)

    def _rotate(self, by_node: dict[int, list[Batch]]) -> None:
        """Move the drained partitions to the end, so that max.request.size starves no partition."""
        for batches in by_node.values():
            for batch in batches:
                queue = self._queues.pop(batch.tp, None)
                if queue:
                    self._queues[batch.tp] = queue

    def _ready_at(self, first: Batch, waiting: int, now_ms: int) -> int:
        if first.attempts and first.retry_at_ms > now_ms:
            return first.retry_at_ms
        if first.attempts or waiting > 1 or first.closed or first.size >= self._batch_size:
            return now_ms
        if self.flushing or self.used > self._memory // 2:
            return now_ms
        return first.created_ms + self._linger

    def requeue(self, batch: Batch, retry_at_ms: int) -> None:
        """Put a batch back in the order of the partition's sequences, to send it again."""
        batch.attempts += 1
        batch.in_retry = True
        batch.retry_at_ms = retry_at_ms
        queue = self._queues.setdefault(batch.tp, deque())
        before = []
        while queue and queue[0].serial < batch.serial:
            before.append(queue.popleft())
        queue.appendleft(batch)
        queue.extendleft(reversed(before))
        if logger.isEnabledFor(logging.DEBUG):
            why = "" if batch.failure is None else f": {batch.failure.code.name}, {batch.failure.message}"
            text = "%s: queued again, behind %d and before %d other batches, after attempt %d%s"
            logger.debug(text, batch, len(before), len(queue) - len(before) - 1, batch.attempts, why)

    def withdraw(self, batch: Batch) -> None:
        """Remove a waiting batch from its queue."""
        queue = self._queues.get(batch.tp)
        if queue and batch in queue:
            queue.remove(batch)

    def replace(self, batch: Batch, parts: list[Batch]) -> None:
        """Replace a batch by its parts, at the front of its queue and among the incomplete batches."""
        queue = self._queues.setdefault(batch.tp, deque())
        before = []
        while queue and queue[0].serial < batch.serial:
            before.append(queue.popleft())
        queue.extendleft(reversed([*before, *parts]))
        self._incomplete = {
            each: None for known in self._incomplete for each in (parts if known is batch else (known,))
        }
        self.used += sum(part.size for part in parts) - batch.size
        batch.done = True

    def unmute(self, tp: TopicPartition) -> None:
        """Let a partition send again, after its request is answered."""
        self._muted.discard(tp)

    # -- ends -----------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int, under_way: Iterable[Batch]) -> list[Batch]:
        """Remove the batches older than delivery.timeout.ms, waiting or in flight. The caller fails them."""
        limit = now_ms - self._timeout
        found = [batch for batch in under_way if batch.created_ms <= limit and not batch.done]
        for queue in self._queues.values():
            while queue and queue[0].created_ms <= limit:
                found.append(queue.popleft())
        return found

    def next_expiry_ms(self) -> int | None:
        """Return when the oldest batch expires."""
        oldest = next(iter(self._incomplete), None)
        return None if oldest is None else oldest.created_ms + self._timeout

    def release(self, batch: Batch) -> None:
        """Free the memory of a batch that has its outcome."""
        if not batch.done:
            batch.done = True
            self.used -= batch.size
            self._incomplete.pop(batch, None)

    def take_waiting(self, *, unless: Callable[[Batch], bool] = lambda batch: False) -> list[Batch]:
        """Remove the waiting batches, except those for which `unless` is true. The caller fails them."""
        taken: list[Batch] = []
        for queue in self._queues.values():
            waiting = list(queue)
            queue.clear()
            for batch in waiting:
                (queue if unless(batch) else taken).append(batch)
        return taken

    def incomplete(self) -> list[Batch]:
        """Return every batch whose records have no outcome, oldest first."""
        return [batch for batch in self._incomplete if not batch.purged]

    @property
    def waiting(self) -> bool:
        """Return whether any batch waits."""
        return any(self._queues.values())

    @property
    def empty(self) -> bool:
        """Return whether every batch is done, also the purged ones."""
        return not self._incomplete
