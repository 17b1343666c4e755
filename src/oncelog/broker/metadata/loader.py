"""Follow the metadata in the tree: keep the newest image, and publish each change to the parts of the broker.

Code that changes metadata only writes to the tree, also on a single broker. The loader notices the change through its
watch, reads the touched paths, and passes the difference to its subscribers in order. Source: Kafka's `MetadataLoader`
and `MetadataPublisher`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from oncelog.broker.retrying import Problem
from oncelog.broker.workers import Runtime
from oncelog.cluster import changes
from oncelog.cluster.brokers import BROKERS, CONTROLLER
from oncelog.cluster.changes import ChangeLog, cannot_write
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.cluster.image_nodes import read_changes, read_image
from oncelog.cluster.store import Announcements, MetadataStore, StoreError
from oncelog.protocol.errors import ErrorCode, ProtocolError

Rest = Callable[[], Awaitable[None]]
Subscriber = Callable[[MetadataDelta], Rest | None]
"""Apply a change to one part of the broker.

The function runs before any request sees the change. For work that takes long, it may return a coroutine function.
That function runs later, while other requests may change metadata. It does not run if the broker stops first. The
loader logs errors, and continues.
"""


POLL_S = 1.0
"""How often the only running broker checks for changes by other processes. It sees its own changes at once."""
SHARED_POLL_S = 0.05
"""The same interval if there are other brokers."""
CHANGE_WAIT_S = 10.0
"""How long a request waits for changes of other requests, also if its own deadline is later."""


class Deadline:
    """The deadline of a request that changes metadata: `timeout_ms` after its creation, on the event loop's clock.

    As in Kafka's `KafkaEventQueue`, the deadline applies until the change begins. A change that has begun is completed.
    """

    __slots__ = ("_timeout_ms", "end")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self.end = asyncio.get_running_loop().time() + timeout_ms / 1000

    def check(self) -> None:
        """Raise REQUEST_TIMED_OUT if the deadline has passed. A timeout of 0 or less passes at once."""
        if asyncio.get_running_loop().time() >= self.end:
            message = f"the change did not start within the request's timeout of {self._timeout_ms} ms"
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message)


class MetadataLoader:
    """Read changes of the metadata, and publish them in order."""

    def __init__(self, store: MetadataStore, cache: MetadataCache, runtime: Runtime) -> None:
        self._store = store
        self.cache = cache
        self._workers = runtime.workers
        self._logger = runtime.logger
        self._log = ChangeLog(store)
        self._subscribers: list[Subscriber] = []
        self._changing = asyncio.Lock()
        self.publishing = asyncio.Lock()
        """Held while a new image is published. Another part of the broker may hold it to keep the image unchanged."""
        self._applying: dict[asyncio.Task[None], None] = {}
        self._waiting: asyncio.Task[Sequence[asyncio.Task[None]]] | None = None
        """The read that has not begun yet. Its callers share it."""
        self._stale: set[str] = set()
        """The watched paths that have changed since they were read."""
        self._ends: list[Callable[[], None]] = []
        self._problem = Problem(runtime.logger)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each later change, after the earlier subscribers."""
        self._subscribers.append(subscriber)

    def load(self) -> None:
        """Read the whole image, and watch the store. Blocks."""
        self._ends = [self._store.watch(path, self._stale.add) for path in (changes.PATH, BROKERS, CONTROLLER)]
        self.cache.image = read_image(self._store)

    def start(self) -> None:
        """Follow the changes of other writers in the background."""
        self._workers.spawn(self._follow(), "follow the metadata")
        hints = self._store.announcements
        if hints is not None and hints.descriptor is not None:
            self._workers.spawn(self._listen(hints, hints.descriptor), "listen for changes of the metadata")

    def close(self) -> None:
        """End the watches, because the store may outlive this broker."""
        for end in self._ends:
            end()

    @asynccontextmanager
    async def changing(self, deadline: Deadline | None = None) -> AsyncIterator[ChangeLog]:
        """Let the body write to the tree while no other request of this broker writes. Then catch up.

        When the block ends, the image includes the change, and all subscribers have applied it. Raises
        REQUEST_TIMED_OUT if the deadline passes before the block begins, if other requests write for `CHANGE_WAIT_S`,
        or if the tree cannot be read afterwards.
        """
        await self._acquire(deadline)
        try:
            if deadline is not None:
                deadline.check()
            try:
                yield self._log
            except Exception:
                with suppress(StoreError):  # the change may have been made, and only the response was lost
                    await self._publish()
                raise
            try:
                applied = await self._publish()
            except StoreError as error:
                message = f"the change was written, but the metadata cannot be read: {error!r}"
                raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message) from error
        finally:
            self._changing.release()
        await applied()

    async def _acquire(self, deadline: Deadline | None) -> None:
        """Acquire `_changing`. Raises REQUEST_TIMED_OUT if other requests hold it for too long."""
        end = asyncio.get_running_loop().time() + CHANGE_WAIT_S
        if deadline is not None:
            deadline.check()
            end = min(end, deadline.end)

        async def acquire() -> None:
            async with asyncio.timeout_at(end):
                await self._changing.acquire()

        # A request's first step belongs to no task, so it cannot enter a timeout.
        acquiring = self._workers.task(acquire(), "wait for other changes of the metadata")
        try:
            await acquiring
        except TimeoutError as error:
            message = "the change did not start in time, because other changes of the metadata are in progress"
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message) from error
        except asyncio.CancelledError:
            if acquiring.done() and not acquiring.cancelled() and acquiring.exception() is None:
                self._changing.release()
            raise

    @asynccontextmanager
    async def changing_newest(self, what: str) -> AsyncIterator[ChangeLog]:
        """Do as `changing`, but first read the changes that other brokers have written.

        `what` is to be changed, for the error. Raises REQUEST_TIMED_OUT.
        """
        async with self.changing() as log:
            try:
                await self.refresh()
            except StoreError as error:
                raise cannot_write(what, error) from error
            yield log

    async def refresh(self) -> None:
        """Read the changes and publish them, without waiting for work that takes long. Raises StoreError."""
        await self._publish()

    async def catch_up(self) -> None:
        """Read the changes, publish them, and wait until they are applied. Raises StoreError if the store fails."""
        applied = await self._publish()
        await applied()

    async def _publish(self) -> Callable[[], Awaitable[None]]:
        """Read the changes, replace the image, and call the subscribers. Raises StoreError.

        Call the returned function to wait until the subscribers have applied the changes. Meanwhile, other requests may
        change metadata. At most one read runs and one waits, and the callers share them.
        """
        # These are tasks, so that they are completed even if the caller is cancelled.
        if self._waiting is None or self._waiting.done():
            self._waiting = self._workers.task(self._begin(), "read changes of the metadata")
            self._waiting.add_done_callback(_take_error)
        rests = await asyncio.shield(self._waiting)

        async def applied() -> None:
            for rest in rests:
                await asyncio.shield(rest)

        return applied

    async def _begin(self) -> Sequence[asyncio.Task[None]]:
        """Read and publish the changes. Return the tasks that apply them.

        If there are none, an earlier read may have found the caller's change. Then return all tasks that still run.
        """
        async with self.publishing:
            self._waiting = None  # later callers may want changes that this read does not see
            delta: MetadataDelta | None = await self._workers.read_store(self._read)
            if delta is None:
                return tuple(self._applying)
            self.cache.image = delta.after
            rests = []
            for subscriber in self._subscribers:
                try:
                    rest = subscriber(delta)
                except Exception:
                    self._logger.exception("cannot apply change %d of the metadata", delta.after.sequence)
                else:
                    if rest is not None:
                        rests.append(rest)
            task = self._workers.task(self._finish(rests, delta.after.sequence), "apply changes of the metadata")
            self._applying[task] = None
            task.add_done_callback(self._applying.pop)
            return (task,)

    async def _finish(self, rests: Sequence[Rest], sequence: int) -> None:
        for rest in rests:
            try:
                await rest()
            except Exception:
                self._logger.exception("cannot apply change %d of the metadata", sequence)

    def _read(self) -> MetadataDelta | None:
        """Read the changes in the tree, or return None if there are none. Blocks."""
        self._store.poll()
        stale = set(self._stale)
        if not stale:
            return None
        self._stale -= stale
        try:
            return read_changes(self._store, self.cache.image, brokers=stale != {changes.PATH})
        except BaseException:
            self._stale |= stale
            raise

    async def _follow(self) -> None:
        """Publish changes of other writers, and changes that could not be read before."""
        while True:
            await asyncio.sleep(SHARED_POLL_S if len(self.cache.image.brokers) > 1 else POLL_S)
            await self._publish_changes()

    async def _listen(self, hints: Announcements, descriptor: int) -> None:
        """Publish changes when the store announces them. Several hints may cause only one read.

        `_follow` is still necessary, because a hint may get lost, and the end of a process causes none.
        """
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        while True:
            loop.add_reader(descriptor, woken.set)
            try:
                await woken.wait()
            finally:
                loop.remove_reader(descriptor)
            woken.clear()
            hints.drain()  # before the read, so that a later change is announced again
            await self._publish_changes()

    async def _publish_changes(self) -> None:
        """Publish the changes, if there are any. Log an error once, because the next call retries."""
        if not self._stale and self._store.is_quiet():
            return
        try:
            await self._publish()
        except Exception as error:  # noqa: BLE001 - the next round retries
            self._problem.failed("cannot follow the metadata: %r", error)
        else:
            self._problem.over()


def _take_error(read: asyncio.Task[Any]) -> None:
    """Take the error of a read, which its callers raise. If all of them were cancelled, the next round reads again."""
    if not read.cancelled():
        read.exception()
