"""Take failed log directories offline, and decide whether the broker can continue without them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.workers import Runtime
from oncelog.cluster.store import StoreError
from oncelog.log.disk import full_disk, is_full


class DiskFailures:
    """The failures of this broker's log directories. Call `start` before `report`."""

    def __init__(
        self,
        directories: LogDirectories,
        partitions: Partitions,
        metadata_dir: str | None,
        publish: Callable[[], Awaitable[object]],
        runtime: Runtime,
    ) -> None:
        """`metadata_dir` is the log directory with the metadata, or None if the metadata is elsewhere.

        `publish()` writes to the metadata store which partitions are offline.
        """
        self._directories = directories
        self._partitions = partitions
        self._workers = runtime.workers
        self._metadata_dir = metadata_dir
        self._publish = publish
        self._logger = runtime.logger
        self._loop: asyncio.AbstractEventLoop
        self._fatal: asyncio.Future[str]

    def start(self) -> asyncio.Future[str]:
        """Take failed directories offline on the running event loop from now on.

        Return a future that is done when the broker cannot continue. Its result is the reason.
        """
        self._loop = asyncio.get_running_loop()
        self._fatal = self._loop.create_future()
        return self._fatal

    def report(self, directory: DataDirectory, error: OSError) -> None:
        """Schedule `_take_offline`. The failed operation calls this, perhaps in a worker thread."""
        self._loop.call_soon_threadsafe(self._take_offline, directory, error)

    def _take_offline(self, directory: DataDirectory, error: OSError) -> None:
        """Fail the partitions of a directory. If no directory is left, or the metadata was there, set `_fatal`."""
        reason = full_disk([directory.path]) if is_full(error) else str(error)
        self._logger.error("log directory %s has failed and is offline: %s", directory.path, reason)
        if not self._fatal.done():
            if not self._directories.online:
                paths = ", ".join(each.path for each in self._directories)
                self._fatal.set_result(f"all log directories have failed: {paths}: {reason}")
            elif directory.path == self._metadata_dir:
                self._fatal.set_result(f"the log directory with the metadata has failed: {directory.path}: {reason}")
        self._partitions.fail(directory)
        self._workers.spawn(self._publish_offline(), "publish which partitions are offline")

    async def _publish_offline(self) -> None:
        try:
            await self._publish()
        except StoreError as error:  # the next renewal repeats it
            self._logger.error(
                "cannot write which partitions are offline, so other brokers do not take them over yet: %r. Retrying",
                error,
            )
