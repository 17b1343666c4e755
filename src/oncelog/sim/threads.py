"""Worker threads of a simulation. They run in turns with the event loop, in an order that depends only on the seed.

A worker calls `pause(seconds)` when a real one would wait. Meanwhile, other processes run, so the steps of blocking
code interleave. A worker of a paused process continues when the process resumes. A worker of a dead process
never continues. At the end of the world, it unwinds: `pause` raises ProcessDied.

A handover to a thread costs more than most of the work. So a worker calls `owe(seconds)` if nothing but its own
computation follows: the event loop lets this time pass before the next pause, or before the work is done.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from oncelog.sim.loop import ProcessDied, SimLoop

T = TypeVar("T")


class _Worker:
    """One thread. Either it runs, or the event loop does."""

    def __init__(self) -> None:
        self.wait_s = 0.0
        """How long the work wants to pause."""
        self.owed_s = 0.0
        """How long the work should have paused before."""
        self.busy = False
        self.over = False
        # Plain locks: a handover through a `threading.Semaphore` costs one and a half times as much.
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._work: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._main, name="simulated worker", daemon=True)
        self._thread.start()

    def start(self, work: Callable[[], None]) -> None:
        """Run the work up to its first pause or to its end. It must not raise."""
        self._work, self.busy = work, True
        self.step()

    def step(self) -> None:
        """Run the work up to its next pause or to its end."""
        self._go.release()
        self._back.acquire()

    def pause(self, seconds: float) -> None:
        """Let the event loop continue. Called by the work."""
        if self.over:
            raise ProcessDied
        self.wait_s = seconds
        self._back.release()
        self._go.acquire()
        if self.over:
            raise ProcessDied

    def end(self) -> None:
        """Unwind the work, and end the thread."""
        self.over = True
        self._go.release()
        self._thread.join()

    def _main(self) -> None:
        while True:
            self._go.acquire()
            if not self.over:
                self._work()
            if self.over:
                return
            self.busy = False
            self._back.release()


_worker: contextvars.ContextVar[_Worker | None] = contextvars.ContextVar("oncelog.sim.worker", default=None)


def pause(seconds: float) -> bool:
    """Let other processes run for this time. Return False at once if the caller is not in a worker thread."""
    worker = _worker.get()
    if worker is None:
        return False
    worker.pause(seconds)
    return True


def owe(seconds: float) -> None:
    """Let this time pass before the caller's next pause, or before its end. Do nothing outside of a worker thread."""
    worker = _worker.get()
    if worker is not None:
        worker.owed_s += seconds


class Threads:
    """The worker threads of all processes of a world."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._idle: list[_Worker] = []
        self._all: list[_Worker] = []

    def run(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run the work in a thread. If the future is cancelled, the work continues, as with `asyncio.to_thread`."""
        if self._idle:
            worker = self._idle.pop()
        else:
            worker = _Worker()
            self._all.append(worker)
        future: asyncio.Future[T] = self._loop.create_future()
        context = contextvars.copy_context()
        context.run(_worker.set, worker)
        outcome: list[tuple[Any, BaseException | None]] = []

        def run() -> None:
            try:
                outcome.append((context.run(work, *args), None))
            except BaseException as error:  # noqa: BLE001 - also the death of the process
                outcome.append((None, error))

        def proceed() -> None:
            owed_s, worker.owed_s = worker.owed_s, 0.0
            following = wait if worker.busy else finish
            if owed_s:  # a timer of its own: if the process dies before it, the next request is not sent
                self._loop.call_later(owed_s, following)
            else:
                following()

        def wait() -> None:
            self._loop.call_later(worker.wait_s, step)

        def finish() -> None:
            self._idle.append(worker)
            result, error = outcome[0]
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def step() -> None:
            worker.step()
            proceed()

        worker.start(run)
        proceed()
        return future

    def end(self) -> None:
        """Unwind all work, and end the threads."""
        for worker in self._all:
            worker.end()
