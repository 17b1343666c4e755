"""A producer's work on its event loop: the sender's turns, the tasks beside them, and waits for a change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine


class SenderLoop:
    """Schedule turns on `loop`, run tasks beside them, and wake up the calls that wait for a change.

    A turn is a call of the function that `start` sets. Turns are callbacks, not a task: one runs when a batch fills, an
    answer arrives, or a time is reached. `now_ms` is the clock (monotonic ms). Any thread may call `now_ms` and `wake`;
    the other methods belong to the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int]) -> None:
        self.loop = loop
        self.now_ms = now_ms
        self.closed = False
        self._take: Callable[[], None] = lambda: None
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiters: list[asyncio.Future[None]] = []

    def start(self, take: Callable[[], None]) -> None:
        """Set what a turn does."""
        self._take = take

    def wake(self) -> None:
        """Run a turn soon."""
        if self._scheduled:
            return
        self._scheduled = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing can be sent any more
            self.loop.call_soon_threadsafe(self._turn)

    def wake_at(self, at: int, now: int) -> None:
        """Run a turn at the time `at`, or earlier."""
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self.loop.call_later((at - now) / 1000, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self._turn()

    def _turn(self) -> None:
        self._scheduled = False
        if not self.closed:
            self._take()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a task until it is done, or until `close`."""
        if self.closed:
            work.close()
            return
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def changed(self) -> None:
        """Wake up every call that waits for a change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def next_change(self) -> asyncio.Future[None]:
        """Return a future that is done at the next `changed`."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def close(self) -> None:
        """Take no more turns, and cancel the tasks. Calls that wait still wait for `changed`."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
