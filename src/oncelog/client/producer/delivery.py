"""The futures that `send` returns.

A batch has one `Delivery`, which its records share. Each record has a small `RecordFuture`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from sys import is_finalizing
from typing import NamedTuple

from oncelog.client.guards import refuse_under_guard
from oncelog.client.notebooks import in_notebooks
from oncelog.errors import TimedOutError, UsageError
from oncelog.protocol.topics import TopicPartition

log = logging.getLogger("oncelog.client.producer")

REMEMBERED = 10_000
"""How many failed batches without a retrieved error are kept for `close`. Further ones are only counted."""


_process_id = os.getpid()


@in_notebooks()
class RecordMetadata(NamedTuple):
    """The place of a record in the log. `offset` is -1 if the broker did not report it (acks=0, or an old duplicate).

    `timestamp` is in ms since the epoch: the broker's time if the topic has LogAppendTime, otherwise the record's own.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


OnDelivery = Callable[["RecordMetadata | None", "BaseException | None"], object]
"""A callback that is called with (metadata, None) or (None, error), as Kafka's `Callback`."""


class Delivery:
    """The outcome of a batch. A batch that was split has the outcomes of its parts.

    `ready`: the outcome is known. `loop`: the event loop that sends the batch. `seen`: a caller has retrieved the
    outcome, or a callback will. `count`: the number of records, after the outcome is known.
    """

    __slots__ = (
        "_by_record",
        "_callbacks",
        "_guard",
        "_loop",
        "_on_failure",
        "_parts",
        "_process_id",
        "append_time",
        "base_offset",
        "count",
        "error",
        "ready",
        "seen",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        guard: threading.Condition,
        on_failure: Callable[[Delivery], object] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.tp = tp
        self._loop = loop
        self._process_id = _process_id
        self._guard = guard
        self._on_failure = on_failure
        self.ready = self.seen = False
        self.error: BaseException | None = None
        self.base_offset = self.append_time = -1
        self.count = 0
        self._by_record: Callable[[int], BaseException] | None = None
        self._parts: Sequence[tuple[int, Delivery]] = ()
        self._callbacks: list[Callable[[], object]] = []

    def complete(self, base_offset: int, append_time: int) -> None:
        """Set the outcome: the batch is in the log."""
        self.base_offset, self.append_time = base_offset, append_time
        self._finish()

    def fail(self, error: BaseException, by_record: Callable[[int], BaseException] | None = None) -> None:
        """Set the outcome: the batch failed. `by_record` returns the error of a record, given its index."""
        self.error, self._by_record = error, by_record
        self._finish()

    def split(self, counts: Sequence[int]) -> list[Delivery]:
        """Return a delivery for each part of the batch. `counts` are their numbers of records."""
        parts, first = [], 0
        for count in counts:
            parts.append((first, Delivery(self.tp, self._guard)))
            first += count
        self._parts = parts
        for _, part in parts:
            part.when_ready(self._part_ready)
        return [part for _, part in parts]

    def fail_one(self, error: BaseException) -> None:
        """Set the outcome of a record that is in no batch."""
        self.count = 1
        self.fail(error)

    def follow(self, batch: Delivery, index: int) -> None:
        """Set the outcome to that of record `index` in a batch. The batch reports its failure itself."""
        self._on_failure = None
        self._parts = ((-index, batch),)
        batch.when_ready(self._part_ready)

    def _part_ready(self) -> None:
        parts = [part for _, part in self._parts]
        if not all(part.ready for part in parts):
            return
        self.base_offset, self.append_time = parts[0].base_offset, parts[0].append_time
        self.count = sum(part.count for part in parts)
        failed = sorted((part for part in parts if part.error is not None), key=lambda part: part.seen)
        if failed:
            self.error = failed[0].error
            failed[0].seen |= self.seen
            self.seen |= failed[0].seen  # of all of them: `close` raises no error of a purged part
        self._finish()

    def outcome(self, index: int, timestamp: int) -> RecordMetadata | BaseException:
        """Return the place of a record or its error, once `ready`. `timestamp` is the record's own, in ms."""
        if self._parts:
            first, part = next(found for found in reversed(self._parts) if found[0] <= index)
            return part.outcome(index - first, timestamp)
        if self.error is not None:
            return self.error if self._by_record is None else self._by_record(index)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(*self.tp, offset, self.append_time if self.append_time >= 0 else timestamp)

    def _finish(self) -> None:
        with self._guard:
            self.ready = True
            callbacks, self._callbacks = self._callbacks, []
            self._guard.notify_all()
        if self.error is not None and self._on_failure is not None:
            self._on_failure(self)
        for callback in callbacks:
            try:
                _call(callback)
            except BaseException as error:  # noqa: BLE001 - exit later, after the other records have their outcomes
                asyncio.get_running_loop().call_soon(_raise, error)

    def when_ready(self, callback: Callable[[], object]) -> None:
        """Call back when the outcome is known: from the client's own thread, or now if it is known already."""
        with self._guard:
            if not self.ready:
                self._callbacks.append(callback)
                return
        _call(callback)

    def wait(self, timeout: float | None) -> bool:
        """Block until there is an outcome; False after the timeout. Raises UsageError if no outcome is possible."""
        if self.ready:
            return True
        self.check_possible()
        refuse_under_guard("result()")
        if timeout is None and self._loop is not None and self._loop is _running_loop():
            raise UsageError(
                "result() would block the event loop that sends this record; await the future there, or use on_delivery"
            )
        with self._guard:
            return self._guard.wait_for(lambda: self.ready, timeout)

    def check_possible(self) -> None:
        """Raise UsageError if no loop can run, because then no outcome is possible."""
        if self._process_id != _process_id:
            raise UsageError("this record was sent before a fork; wait for its outcome in the parent process")
        if is_finalizing():
            raise UsageError("the interpreter is exiting; wait for the outcome before the program ends")
        if self._loop is not None and self._loop.is_closed():
            raise UsageError("the event loop that sends this record is closed; close the producer before the loop")


def _call(callback: Callable[[], object]) -> None:
    """Call a user's callback and log what it raises, because the other records must get their outcomes."""
    try:
        callback()
    except Exception:
        log.exception("the delivery callback of a record raised an error; ignoring it")


def _raise(error: BaseException) -> None:
    raise error


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Failures:
    """The failed batches whose error no caller has retrieved. The producer's `close` raises the first error."""

    def __init__(self) -> None:
        self._failed: list[Delivery] = []
        self._beyond = 0
        self._first_beyond: BaseException | None = None
        """The first failure that was only counted."""

    def add(self, delivery: Delivery) -> None:
        """Record that a batch has failed."""
        if len(self._failed) >= REMEMBERED:
            self._failed = [each for each in self._failed if not each.seen]
        if len(self._failed) < REMEMBERED:
            self._failed.append(delivery)
        else:
            self._beyond += delivery.count
            self._first_beyond = self._first_beyond or delivery.error

    def first_unseen(self) -> BaseException | None:
        """Return the first failure that no caller has retrieved, with a note of their number. Forget them all."""
        unseen = [delivery for delivery in self._failed if not delivery.seen]
        count = sum(delivery.count for delivery in unseen) + self._beyond
        error = unseen[0].error if unseen else self._first_beyond
        self._failed, self._beyond, self._first_beyond = [], 0, None
        if error is None:
            return None
        error.add_note(
            f"{count} record{'s' if count > 1 else ''} failed without a call of result(), exception() or on_delivery; "
            "this is the first error"
        )
        return error


class RecordFuture:
    """The outcome of one record. Call `result()` to wait for it, or `await` it with `oncelog.aio.Producer`."""

    __slots__ = ("_delivery", "_index", "_timestamp")

    def __init__(self, delivery: Delivery, index: int, timestamp: int) -> None:
        self._delivery = delivery
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._delivery.ready

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds (default: no limit). Return the record's place in the log.

        Raises the KafkaError with which the record failed, or TimedOutError if there is no outcome yet.
        """
        found = self._wait(timeout)
        if isinstance(found, BaseException):
            raise found.with_traceback(None)
        return found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like `result`. Return the error of the record, or None if it is in the log. Raises TimedOutError."""
        found = self._wait(timeout)
        return found if isinstance(found, BaseException) else None

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback(future)` when the outcome is known. It runs in the client's thread and must not block."""
        self._delivery.seen = True
        self._delivery.when_ready(lambda: callback(self))

    def on_delivery(self, callback: OnDelivery) -> None:
        """Call `callback(metadata, None)` or `callback(None, error)` when the outcome is known.

        It runs in the client's thread and must not block.
        """

        def call(_: RecordFuture) -> None:
            found = self._delivery.outcome(self._index, self._timestamp)
            if isinstance(found, BaseException):
                callback(None, found)
            else:
                callback(found, None)

        self.add_done_callback(call)

    def _wait(self, timeout: float | None) -> RecordMetadata | BaseException:
        if not self._delivery.wait(timeout):
            raise TimedOutError(f"a record for topic {self._delivery.tp[0]!r} has no outcome after {timeout} s")
        return self._outcome()

    def _outcome(self) -> RecordMetadata | BaseException:
        self._delivery.seen = True
        return self._delivery.outcome(self._index, self._timestamp)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        delivery = self._delivery
        if not delivery.ready:
            delivery.check_possible()
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            delivery.when_ready(lambda: loop.call_soon_threadsafe(wake))
            yield from waiter.__await__()
        found = self._outcome()
        if isinstance(found, BaseException):
            raise found.with_traceback(None)
        return found


def _in_child() -> None:
    global _process_id
    _process_id = os.getpid()


os.register_at_fork(after_in_child=_in_child)
