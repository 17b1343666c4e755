"""Follow the metadata in the tree: keep the newest image, and publish each change to the parts of the broker.

Code that changes metadata only writes to the tree, also on a single broker. The loader sees the change through its
watch, reads what was touched, and hands the difference to its subscribers one after the other (Kafka's
`MetadataLoader` and `MetadataPublisher`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from oncelog.broker.metadata.deadline import Deadline
from oncelog.broker.workers import Workers
from oncelog.cluster import changes
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.image import MetadataDelta, MetadataImage
from oncelog.cluster.image_nodes import read_changes, read_image
from oncelog.cluster.store import MetadataStore, StoreError
from oncelog.protocol.errors import ErrorCode, ProtocolError

Subscriber = Callable[[MetadataDelta], Awaitable[None] | None]
"""Applies a change to one part of the broker. The loader logs what it raises, and continues."""


POLL_S = 1.0
"""How often the broker looks for changes of other writers. It sees its own changes at once."""


class MetadataCache:
    """The newest image that this broker has."""

    __slots__ = ("image",)

    def __init__(self) -> None:
        self.image = MetadataImage()


class MetadataLoader:
    """Read changes of the metadata in their order."""

    def __init__(self, store: MetadataStore, cache: MetadataCache, workers: Workers, logger: logging.Logger) -> None:
        self._store = store
        self._cache = cache
        self._workers = workers
        self._logger = logger
        self._log = ChangeLog(store)
        self._subscribers: list[Subscriber] = []
        self._changing = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._is_stale = False
        self._end_watch: Callable[[], None] = lambda: None

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with each change from now on, after the subscribers before it."""
        self._subscribers.append(subscriber)

    def load(self) -> None:
        """Read the whole image, and watch the store. Blocks."""
        self._end_watch = self._store.watch(changes.PATH, self._notice)
        self._cache.image = read_image(self._store)

    def start(self) -> None:
        """Follow the changes of other writers in the background."""
        self._workers.spawn(self._follow(), "follow the metadata")

    def close(self) -> None:
        """End the watch: the store outlives this broker."""
        self._end_watch()

    @asynccontextmanager
    async def changing(self, deadline: Deadline | None = None) -> AsyncIterator[ChangeLog]:
        """Let the body write to the tree while no other request of this broker does. Then catch up.

        The image includes the change when the block ends, and all subscribers have applied it. Raises
        REQUEST_TIMED_OUT if the deadline passes before the block begins, or if the tree cannot be read afterwards.
        """
        async with self._changing:
            if deadline is not None:
                deadline.check()
            try:
                yield self._log
            except Exception:
                with suppress(StoreError):  # the change may have been made, and only the answer was lost
                    await self.catch_up()
                raise
            try:
                await self.catch_up()
            except StoreError as error:
                message = f"the metadata is changed, but it cannot be read now: {error!r}"
                raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, message) from error

    async def catch_up(self) -> None:
        """Read what has changed, and publish it. Raises StoreError if the tree cannot be read now."""
        # A task, because a subscriber must not stop in the middle if the caller is cancelled.
        await asyncio.shield(self._workers.task(self._catch_up(), "catch up with the metadata"))

    async def _catch_up(self) -> None:
        async with self._publishing:
            delta: MetadataDelta | None = await self._workers.offload(self._read)
            if delta is None:
                return
            self._cache.image = delta.after
            for subscriber in self._subscribers:
                try:
                    applied = subscriber(delta)
                    if applied is not None:
                        await applied
                except Exception:
                    self._logger.exception("cannot apply change %d of the metadata", delta.after.sequence)

    def _read(self) -> MetadataDelta | None:
        """Return what has changed in the tree, or None. Runs in a worker thread."""
        self._store.poll()
        if not self._is_stale:
            return None
        self._is_stale = False
        try:
            return read_changes(self._store, self._cache.image)
        except BaseException:
            self._is_stale = True
            raise

    def _notice(self, _path: str) -> None:
        self._is_stale = True

    async def _follow(self) -> None:
        """Look for changes of other writers, and for those that could not be read before."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._catch_up()
            except Exception as error:  # noqa: BLE001 - the next round tries again
                self._logger.error("the metadata cannot be read: %r", error)
