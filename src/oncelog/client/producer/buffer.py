"""The records that wait in a producer. Any thread adds them, the event loop settles their batches, under one lock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import index as index_of
from typing import NamedTuple, NoReturn

from oncelog import errors
from oncelog.client.guards import INTERRUPTS, Guard
from oncelog.client.producer.accumulator import Accumulator
from oncelog.client.producer.batch import Batch
from oncelog.client.producer.completion import Completion
from oncelog.client.producer.delivery import Delivery, RecordFuture
from oncelog.client.producer.partitioner import Partitioner
from oncelog.client.producer.sender_loop import SenderLoop
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.records import LAST_TIMESTAMP, TIMESTAMPS, checked
from oncelog.client.types import Headers
from oncelog.protocol.topics import TopicPartition


class NotAddedError(Exception):
    """A record could not be added as it is. Its `partition` is already chosen, and must not be chosen again."""

    def __init__(self, partition: int) -> None:
        self.partition = partition


class NoRoomError(NotAddedError):
    """The buffer memory is used up. `releases` is the number of releases at that time, for `wait_for_memory`."""

    def __init__(self, partition: int, releases: int) -> None:
        super().__init__(partition)
        self.releases = releases


class _Deferred(NamedTuple):
    """A record that a thread has sent while it held the lock."""

    tp: TopicPartition
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers
    delivery: Delivery


class RecordBuffer:
    """Guard the accumulator and the transaction manager with `lock`, and let callers wait for buffer memory.

    `counts` has the number of partitions of each known topic.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        manager: TransactionManager | None,
        completion: Completion,
        guard: Guard,
        sender_loop: SenderLoop,
        *,
        partitioner: Partitioner,
        counts: dict[str, int],
    ) -> None:
        self.partitioner = partitioner
        self.counts = counts
        self.closing = False
        """Whether `close` has begun: no record can be added."""
        self._accumulator = accumulator
        self._manager = manager
        self._completion = completion
        self._guard = guard
        self._lock = guard.lock
        self._owned = guard.owned
        self._deferred: deque[_Deferred] = deque()
        """Records of sends inside a send of the same thread. They follow it."""
        self._sender_loop = sender_loop
        self._memory = threading.Condition(guard.lock)
        self.memory_waiters = 0
        """How many threads wait for memory."""
        self._releases = 0
        """How often memory was freed. A caller that found none compares it under the lock."""

    # -- any thread -----------------------------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp: int | None,
        headers: Headers,
    ) -> RecordFuture | None:
        """Add a record. Return None if the metadata does not contain its topic or partition yet.

        Code that interrupts a call of the same thread, such as a signal handler, may add records. They are added after
        the record of that call.

        Raises KafkaError and UsageError. Raises NoRoomError, or NotAddedError if no batch takes a part of the record as
        it is.
        """
        count = self.counts.get(topic)
        if count is None or self.closing:
            self.check_open()
            return None
        if partition is None:
            partition = self.partitioner(topic, key, value, count)
            if not 0 <= partition < count:
                raise errors.UsageError(
                    f"the partitioner returned {partition}, but topic {topic!r} has {count} partitions"
                )
        elif not 0 <= (partition := index_of(partition)) < count:
            if partition < 0:
                raise errors.UsageError(f"partition = {partition}: the partition must not be negative")
            return None
        tp = (topic, partition)
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif not 0 <= index_of(timestamp) <= LAST_TIMESTAMP:
            raise errors.UsageError(f"timestamp = {timestamp}: {TIMESTAMPS}")
        sender_loop = self._sender_loop
        if self._owned():
            return self._defer(topic, value, key, partition, timestamp, headers)
        with self._lock:
            self.check_open()  # again: `close` fails the records that are in the buffer, and would miss this one
            if self._manager is not None:
                self._manager.may_append(tp)
            try:
                added = self._accumulator.append(tp, key, value, timestamp, headers, sender_loop.now_ms)
            except (AttributeError, TypeError, ValueError) as error:
                raise NotAddedError(partition) from error
            releases = self._releases
        if self._deferred:
            self._add_deferred()
        if added is None:
            self._no_room(partition, releases)
        batch, index, wake = added
        if wake:
            sender_loop.wake()
        return RecordFuture(batch.delivery, index, timestamp)

    def _defer(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: int,
        headers: Headers,
    ) -> RecordFuture:
        """Let the interrupted call of this thread add a record after it has released the lock."""
        data, name, pairs = checked(topic, value, key, partition, timestamp, headers)
        delivery = self._accumulator.new_delivery((topic, partition))
        self._deferred.append(_Deferred((topic, partition), name, data, timestamp, pairs, delivery))
        self._sender_loop.wake()  # if an exception ends the interrupted call, the next turn adds the record
        return RecordFuture(delivery, 0, timestamp)

    def _add_deferred(self) -> None:
        """Add the records of sends that interrupted a call. An error becomes the outcome of its record."""
        while self._deferred:
            with self._lock:
                outcomes = self._place_deferred()
            for outcome in outcomes:
                outcome()
            self._sender_loop.wake()

    def _place_deferred(self) -> list[Callable[[], None]]:
        outcomes: list[Callable[[], None]] = []
        while self._deferred:
            record = self._deferred.popleft()
            tp, key, value, timestamp, headers, delivery = record
            try:
                self.check_open()
                if self._manager is not None:
                    self._manager.may_append(tp)
                added = self._accumulator.append(tp, key, value, timestamp, headers, self._sender_loop.now_ms)
                if added is None:
                    raise errors.TimedOutError(
                        f"the record buffer is full, and a send() in {INTERRUPTS} that interrupts another call cannot "
                        "wait for memory"
                    )
            except errors.OncelogError as error:
                outcomes.append(partial(delivery.fail_one, error))
            else:
                outcomes.append(partial(delivery.follow, added[0].delivery, added[1]))
        return outcomes

    def append_encoded(self, tp: TopicPartition, data: bytes | bytearray) -> Batch:
        """Add a batch that is already encoded. Raises NoRoomError, KafkaError and UsageError."""
        with self._guard:
            self.check_open()
            if self._manager is not None:
                self._manager.may_append(tp)
            batch = self._accumulator.add_encoded(tp, data, self._sender_loop.now_ms())
            releases = self._releases
        if batch is None:
            self._no_room(tp[1], releases)
        self._sender_loop.wake()
        return batch

    def _no_room(self, partition: int, releases: int) -> NoReturn:
        self._sender_loop.wake()  # full memory is a reason to send
        raise NoRoomError(partition, releases)

    def check_open(self) -> None:
        """Raise ClientClosedError after `close` has begun."""
        if self.closing:
            raise errors.ClientClosedError("the producer is closed; create a new one")

    def wait_for_memory(self, timeout: float, releases: int) -> bool:
        """Block any thread but the loop's until memory is freed after `releases`. Return False after `timeout` seconds.

        `close` ends the wait, too.
        """
        with self._lock:
            self.memory_waiters += 1
            try:
                return self._memory.wait_for(lambda: self._releases != releases, timeout)
            finally:
                self.memory_waiters -= 1

    # -- the event loop -------------------------------------------------------------------------------------------

    async def memory_freed(self, timeout: float) -> bool:
        """Wait for the next change: the loop itself frees memory. Return False after `timeout` seconds."""
        return bool((await asyncio.wait([self._sender_loop.next_change()], timeout=timeout))[0])

    @contextmanager
    def settling(self) -> Iterator[Completion]:
        """Settle batches under the lock. After it is released, report their outcomes and wake up waiting callers."""
        with self._guard:
            yield self._completion
            outcomes = self._completion.take()
            if outcomes:
                self._freed()
        if self._deferred:
            self._add_deferred()
        for outcome in outcomes:
            outcome()
        if outcomes:
            self._sender_loop.changed()

    def _freed(self) -> None:
        self._releases += 1
        if self.memory_waiters:
            self._memory.notify_all()

    def close(self) -> None:
        """Reject new records from now on, and wake up the calls that wait for memory."""
        with self._guard:
            outcomes = self._place_deferred()
            self.closing = True
            self._freed()
        for outcome in outcomes:
            outcome()
        self._sender_loop.changed()
