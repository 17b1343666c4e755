"""What `send` returns: the outcome of a record. The records of a batch share theirs.

A batch has one `Delivery`, and each record a small `RecordFuture`. Only waiting for one takes more.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator, Sequence
from sys import is_finalizing
from typing import NamedTuple

from oncelog.errors import TimedOutError, UsageError

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""How many failed batches that no caller has looked at are kept for `close`; more are only counted."""


_process_id = os.getpid()


class RecordMetadata(NamedTuple):
    """The place of a record. `offset` is -1 if the broker did not report it (acks=0, or an old duplicate).

    `timestamp` in ms is the broker's if the topic has LogAppendTime, otherwise the record's own.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


OnDelivery = Callable[["RecordMetadata | None", "BaseException | None"], object]
"""A callback that gets (place, None) or (None, error), as Kafka's `Callback`."""


class Delivery:
    """The outcome of a batch, once there is one. A batch that was split has the outcomes of its parts.

    `loop` is the event loop that brings the outcome. `seen`: a caller has the outcome, or a callback will get it.
    `count`: the number of records, once there is an outcome.
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
        tp: tuple[str, int],
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
        """Return a delivery for each part, given its number of records. Their outcomes together are this one's."""
        parts, first = [], 0
        for count in counts:
            parts.append((first, Delivery(self.tp, self._guard)))
            first += count
        self._parts = parts
        for _, part in parts:
            part.when_ready(self._part_ready)
        return [part for _, part in parts]

    def _part_ready(self) -> None:
        parts = [part for _, part in self._parts]
        if not all(part.ready for part in parts):
            return
        self.base_offset, self.append_time = parts[0].base_offset, parts[0].append_time
        self.count = sum(part.count for part in parts)
        self.error = next((part.error for part in parts if part.error is not None), None)
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
            except BaseException as error:  # noqa: BLE001 exits later: first, the other records get their outcomes
                asyncio.get_running_loop().call_soon(_raise, error)

    def when_ready(self, callback: Callable[[], object]) -> None:
        """Call back once there is an outcome: from the client's own thread, or now."""
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
        if timeout is None and self._loop is not None and self._loop is _running_loop():
            raise UsageError(
                "result() would block the event loop that sends this record: await the future there, or let "
                "on_delivery get the outcome"
            )
        with self._guard:
            return self._guard.wait_for(lambda: self.ready, timeout)

    def check_possible(self) -> None:
        """Raise UsageError if no loop can run, because then no outcome is possible."""
        if self._process_id != _process_id:
            raise UsageError("this record was sent before a fork: only the parent process learns its outcome")
        if is_finalizing():
            raise UsageError("the interpreter is exiting: wait for the outcome before")
        if self._loop is not None and self._loop.is_closed():
            raise UsageError("the event loop that sends this record is closed: close() the producer before")


def _call(callback: Callable[[], object]) -> None:
    """Call a user's callback and log what it raises, because the other records must get their outcomes."""
    try:
        callback()
    except Exception:
        log.exception("a callback of a record's delivery raised")


def _raise(error: BaseException) -> None:
    raise error


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Failures:
    """The failed batches whose error no caller has retrieved: the producer's `close` raises the first one."""

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
            f"{count} record{'s' if count > 1 else ''} that the producer was given failed, and nobody asked for the "
            "outcome (the future that send returns, or on_delivery): this is the first failure"
        )
        return error


class RecordFuture:
    """The outcome of one record. `result()` blocks (`Producer`); `await future` (`oncelog.aio.Producer`)."""

    __slots__ = ("_delivery", "_index", "_timestamp")

    def __init__(self, delivery: Delivery, index: int, timestamp: int) -> None:
        self._delivery = delivery
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._delivery.ready

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds. Return the place of the record, or raise its error, a KafkaError."""
        found = self._wait(timeout)
        if isinstance(found, BaseException):
            raise found.with_traceback(None)
        return found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that `result` would raise, or None."""
        found = self._wait(timeout)
        return found if isinstance(found, BaseException) else None

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call back with this future once the outcome is known, from the client's own thread: be quick there."""
        self._delivery.seen = True
        self._delivery.when_ready(lambda: callback(self))

    def on_delivery(self, callback: OnDelivery) -> None:
        """Call back with (place, None) or (None, error) once the outcome is known, from the client's own thread."""

        def tell(_: RecordFuture) -> None:
            found = self._delivery.outcome(self._index, self._timestamp)
            if isinstance(found, BaseException):
                callback(None, found)
            else:
                callback(found, None)

        self.add_done_callback(tell)

    def _wait(self, timeout: float | None) -> RecordMetadata | BaseException:
        if not self._delivery.wait(timeout):
            raise TimedOutError(f"no answer for a record of {self._delivery.tp[0]} in {timeout} s")
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
