"""What runs the parts of a broker: background tasks, worker threads, the clock, random numbers and the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, NamedTuple, TypeVar

from oncelog.protocol.errors import ErrorCode, ProtocolError

T = TypeVar("T")
Offload = Callable[..., Awaitable[Any]]
"""`offload(fn, *args)` runs blocking code in another thread and returns its result."""
Timed = Callable[[Coroutine[Any, Any, Any], str], Coroutine[Any, Any, Any]]
COMPUTING_THREADS = 1
"""The number of worker threads that may compute for requests at the same time."""
DISK_THREADS = 2
"""The number of worker threads that may wait for one log directory at the same time."""
READING_THREADS = 3
"""The number of worker threads that may read the metadata store at the same time."""
WRITING_THREADS = 2
"""The number of worker threads that may write to the metadata store at the same time. A write may wait for seconds."""
OTHER_THREADS = 2
"""The number of worker threads for work that neither computes nor waits for a log directory or the metadata store."""


def worker_threads(log_dirs: int) -> int:
    """Return how many worker threads a broker needs, so that all other work continues if all its directories hang."""
    return OTHER_THREADS + COMPUTING_THREADS + READING_THREADS + WRITING_THREADS + DISK_THREADS * log_dirs


class Workers:
    """The background tasks and worker threads of one broker."""

    def __init__(
        self,
        offload: Offload,
        logger: logging.Logger,
        *,
        offload_renewal: Offload | None = None,
        timed: Timed | None = None,
    ) -> None:
        """`offload_renewal` runs the renewals of the session. They must not wait for other work, which may block.

        `timed` wraps each coroutine that `spawn` runs, to log steps that block the event loop.
        """
        self.offload = offload
        self.offload_renewal = offload_renewal or offload
        self._timed = timed
        self._logger = logger
        self._computing = asyncio.Semaphore(COMPUTING_THREADS)
        self._writing = asyncio.Semaphore(WRITING_THREADS)
        self._reading = asyncio.Semaphore(READING_THREADS)
        self._disks: dict[Hashable, asyncio.Semaphore] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run a coroutine until it returns or the broker stops. If it raises, log the error."""
        task = self.task(work if self._timed is None else self._timed(work, name), name)
        task.add_done_callback(self._report)

    def task(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task, and return it. It is cancelled when the broker stops. The caller awaits its result."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _report(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._logger.error("background task %r failed", task.get_name(), exc_info=task.exception())

    async def compute(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that needs much processor time in a worker thread. Later calls wait for it in order.

        Each computing thread makes the event loop wait up to 5 ms for the interpreter, so `COMPUTING_THREADS` is small.
        Raises KAFKA_STORAGE_ERROR if there is not enough memory. Clients retry, as after too many open files.
        """
        async with self._computing:
            try:
                result: T = await self.offload(work, *arguments)
            except MemoryError as error:
                self._logger.error("not enough memory for a request: %s", error)
                code, message = ErrorCode.KAFKA_STORAGE_ERROR, f"not enough memory on the broker: {error}"
            else:
                return result
        raise ProtocolError(code, message)  # without the MemoryError as context, because its frames hold the request

    async def write_store(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that writes to the metadata store in a worker thread.

        At most `WRITING_THREADS` calls run at a time. Others wait in order. If another process blocks the store,
        threads remain for disks. If the caller is cancelled, the work continues.
        """
        return await self._within(self._writing, work, *arguments)

    async def read_store(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that reads the metadata store in a worker thread. At most `READING_THREADS` calls run at a time."""
        return await self._within(self._reading, work, *arguments)

    async def on_disk(self, disk: Hashable, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that waits for the device of one log directory in a worker thread.

        At most `DISK_THREADS` calls for the same `disk` run at a time. Others wait in order. If the device hangs,
        threads remain for other directories and for the metadata. If the caller is cancelled, the work continues.
        """
        slots = self._disks.get(disk)
        if slots is None:
            slots = self._disks[disk] = asyncio.Semaphore(DISK_THREADS)
        return await self._within(slots, work, *arguments)

    async def _within(self, slots: asyncio.Semaphore, work: Callable[..., T], *arguments: Any) -> T:
        """Run work in a worker thread, and hold one of the slots until the thread has returned."""
        await slots.acquire()

        def ended(future: asyncio.Future[Any]) -> None:
            slots.release()
            if not future.cancelled():
                future.exception()  # a caller that was cancelled does not need it, and asyncio would log it

        future = asyncio.ensure_future(self.offload(work, *arguments))
        future.add_done_callback(ended)
        result: T = await asyncio.shield(future)
        return result

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Runtime(NamedTuple):
    """What most parts of a broker need from the process that runs them."""

    workers: Workers
    now_ms: Callable[[], int]
    """Returns the wall-clock time."""
    random_bits: Callable[[int], int]
    """Returns an integer of the given number of random bits."""
    logger: logging.Logger
