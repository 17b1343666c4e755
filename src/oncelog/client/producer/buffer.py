"""The records that wait in a producer. Any thread adds them, the event loop settles their batches, under one lock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index as index_of
from typing import NoReturn

from oncelog import errors
from oncelog.client.producer.accumulator import Accumulator
from oncelog.client.producer.batch import Batch
from oncelog.client.producer.completion import Completion
from oncelog.client.producer.delivery import RecordFuture
from oncelog.client.producer.partitioner import Partitioner
from oncelog.client.producer.transaction_manager import TransactionManager
from oncelog.client.producer.turns import Turns
from oncelog.client.records import LAST_TIMESTAMP, TIMESTAMPS
from oncelog.client.types import Headers, TopicPartition


class NotAddedError(Exception):
    """A record could not be added as it is. Its `partition` is already chosen, and must not be chosen again."""

    def __init__(self, partition: int) -> None:
        self.partition = partition


class NoRoomError(NotAddedError):
    """The buffer memory is used up. `releases` is the number of releases at that time, for `wait_for_memory`."""

    def __init__(self, partition: int, releases: int) -> None:
        super().__init__(partition)
        self.releases = releases


class RecordBuffer:
    """Guard the accumulator and the transaction manager with `lock`, and let callers wait for buffer memory.

    `counts` has the number of partitions of each known topic.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        manager: TransactionManager | None,
        completion: Completion,
        lock: threading.Lock,
        turns: Turns,
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
        self._lock = lock
        self._turns = turns
        self._memory = threading.Condition(lock)
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
        turns = self._turns
        with self._lock:
            self.check_open()  # again: `close` fails the records that are in the buffer, and would miss this one
            if self._manager is not None:
                self._manager.may_append(tp)
            try:
                added = self._accumulator.append(tp, key, value, timestamp, headers, turns.now_ms())
            except (AttributeError, TypeError, ValueError) as error:
                raise NotAddedError(partition) from error
            releases = self._releases
        if added is None:
            self._no_room(partition, releases)
        batch, index, wake = added
        if wake:
            turns.wake()
        return RecordFuture(batch.delivery, index, timestamp)

    def append_encoded(self, tp: TopicPartition, data: bytes | bytearray) -> Batch:
        """Add a batch that is already encoded. Raises NoRoomError, KafkaError and UsageError."""
        with self._lock:
            self.check_open()
            if self._manager is not None:
                self._manager.may_append(tp)
            batch = self._accumulator.add_encoded(tp, data, self._turns.now_ms())
            releases = self._releases
        if batch is None:
            self._no_room(tp[1], releases)
        self._turns.wake()
        return batch

    def _no_room(self, partition: int, releases: int) -> NoReturn:
        self._turns.wake()  # full memory is a reason to send
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
        return bool((await asyncio.wait([self._turns.next_change()], timeout=timeout))[0])

    @contextmanager
    def settling(self) -> Iterator[Completion]:
        """Settle batches under the lock. After it is released, report their outcomes and wake up waiting callers."""
        with self._lock:
            yield self._completion
            outcomes = self._completion.take()
            if outcomes:
                self._freed()
        for outcome in outcomes:
            outcome()
        if outcomes:
            self._turns.changed()

    def _freed(self) -> None:
        self._releases += 1
        if self.memory_waiters:
            self._memory.notify_all()

    def close(self) -> None:
        """Reject new records from now on, and wake up the calls that wait for memory."""
        with self._lock:
            self.closing = True
            self._freed()
        self._turns.changed()
