"""What `send` returns: the fate of a record, shared by all records of its batch.

One `Delivery` a batch, one small `RecordFuture` a record: waiting costs something only for those that wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import NamedTuple

from oncelog.errors import TimedOutError


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 where the broker did not tell (acks=0, or known as a duplicate only);
    `timestamp` in ms, the broker's if the topic has LogAppendTime, else -1.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Delivery:
    """The outcome of a batch, once there is one."""

    __slots__ = ("_callbacks", "_guard", "append_time", "base_offset", "error", "ready", "tp")

    def __init__(self, tp: tuple[str, int], guard: threading.Condition) -> None:
        self.tp = tp
        self._guard = guard
        self.ready = False
        self.error: BaseException | None = None
        self.base_offset = self.append_time = -1
        self._callbacks: list[Callable[[], object]] = []

    def complete(self, base_offset: int, append_time: int) -> None:
        """The batch is in the log."""
        self.base_offset, self.append_time = base_offset, append_time
        self._finish()

    def fail(self, error: BaseException) -> None:
        """The batch is not in the log, or nobody knows."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        with self._guard:
            self.ready = True
            callbacks, self._callbacks = self._callbacks, []
            self._guard.notify_all()
        for callback in callbacks:
            callback()

    def when_ready(self, callback: Callable[[], object]) -> None:
        """Call back once there is an outcome: from the client's own thread, or now."""
        with self._guard:
            if not self.ready:
                self._callbacks.append(callback)
                return
        callback()

    def wait(self, timeout: float | None) -> bool:
        """Block until there is an outcome; False when time is up."""
        if self.ready:
            return True
        with self._guard:
            return self._guard.wait_for(lambda: self.ready, timeout)


class RecordFuture:
    """The fate of one record. `result()` blocks (`Producer`); `await future` (`oncelog.aio.Producer`)."""

    __slots__ = ("_delivery", "_index")

    def __init__(self, delivery: Delivery, index: int) -> None:
        self._delivery = delivery
        self._index = index

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._delivery.ready

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, waiting for it up to `timeout` seconds; raises what went wrong, a KafkaError."""
        if not self._delivery.wait(timeout):
            raise TimedOutError(f"no answer for a record of {self._delivery.tp[0]} in {timeout} s")
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What `result` would raise, or None."""
        if not self._delivery.wait(timeout):
            raise TimedOutError(f"no answer for a record of {self._delivery.tp[0]} in {timeout} s")
        return self._delivery.error

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call back with this future once the outcome is known, from the client's own thread: be quick there."""
        self._delivery.when_ready(lambda: callback(self))

    def _outcome(self) -> RecordMetadata:
        delivery = self._delivery
        if delivery.error is not None:
            raise delivery.error
        offset = delivery.base_offset + self._index if delivery.base_offset >= 0 else -1
        return RecordMetadata(*delivery.tp, offset, delivery.append_time)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        delivery = self._delivery
        if not delivery.ready:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            delivery.when_ready(lambda: loop.call_soon_threadsafe(wake))
            yield from waiter.__await__()
        return self._outcome()
