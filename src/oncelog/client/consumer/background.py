"""Background tasks of a consumer: the signal with which they wake `poll`, and the time since the last poll."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from oncelog import errors


class Background:
    """Run the background tasks of one consumer on its event loop, and let them wake `poll`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.failure: Exception | None = None
        """The error that the next poll raises."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._arrived: asyncio.Future[None] | None = None
        self._woken = False

    # -- tasks ----------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task whose result the caller retrieves. `cancel` ends it."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task whose error, if any, the next poll raises."""
        self.spawn(work).add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail(error)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        await cancel(*self._tasks)

    # -- the signal -----------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Let the next poll raise an error."""
        self.failure = error
        self.notify()

    def notify(self) -> None:
        """Wake a waiting poll, because the consumer's state has changed."""
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def wakeup(self) -> None:
        """End the current poll, or else the next one, with WakeupError."""
        self._woken = True
        self.notify()

    def check(self) -> None:
        """Raise the error of a background task, or WakeupError after `wakeup`, once each."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if self._woken:
            self._woken = False
            raise errors.WakeupError("wakeup() ended this poll")

    async def wait(self, seconds: float, *tasks: asyncio.Task[Any]) -> None:
        """Wait until `notify`, until one of the tasks is done, or until time is up. The caller finds out which."""
        if self._woken:
            seconds = 0
        arrived = self._arrived
        if arrived is None or arrived.done():
            arrived = self._arrived = self.loop.create_future()
        await asyncio.wait([arrived, *tasks], timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)


class PollTimer:
    """Measure max.poll.interval.ms: the time that the application spends between polls, or in a listener."""

    def __init__(self, interval_ms: float, loop: asyncio.AbstractEventLoop) -> None:
        self.interval_ms = interval_ms
        self._loop = loop
        self._polling = False
        self._in_listener = False
        self._last = loop.time()

    def restart(self) -> None:
        """Give the application the whole interval again."""
        self._last = self._loop.time()

    @property
    def expired(self) -> bool:
        """Whether the application has exceeded the interval. While `poll` itself waits, it has not."""
        waiting = self._polling and not self._in_listener
        return not waiting and (self._loop.time() - self._last) * 1000 > self.interval_ms

    @contextmanager
    def poll(self) -> Iterator[None]:
        """Enclose one poll."""
        self._polling = True
        try:
            yield
        finally:
            self._polling = False
            self.restart()

    @contextmanager
    def listener(self) -> Iterator[None]:
        """Enclose the call of a listener, which may take the whole interval."""
        self.restart()
        self._in_listener = True
        try:
            yield
        finally:
            self._in_listener = False

    def check_can_poll(self) -> None:
        """Raise UsageError in a listener."""
        if self._in_listener:
            raise errors.UsageError("poll() cannot be called from a listener, or while a listener runs")

    def check_only_poll(self) -> None:
        """Raise UsageError if a poll is in progress."""
        if self._polling:
            raise errors.UsageError(
                "another task or thread is already in a poll of this consumer; use one consumer per thread"
            )


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended. Their errors are dropped."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)
