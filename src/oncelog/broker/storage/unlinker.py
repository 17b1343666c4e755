"""Unlink files that are no longer part of a log.

A log only renames such a file. On some file systems, unlinking takes a second per gigabyte, so a worker thread unlinks
the files after a delay (``file.delete.delay.ms``). If the broker stops before that, it unlinks them at its next start.
Source: Kafka's ``LocalLog.deleteSegmentFiles``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from oncelog.broker.retrying import shortage_backoff
from oncelog.broker.workers import Runtime
from oncelog.log.disk import TOO_MANY_OPEN
from oncelog.log.guarded_disk import GuardedDisk


class Unlinker:
    """Unlink files and directories for one broker."""

    def __init__(self, runtime: Runtime) -> None:
        self._workers = runtime.workers
        self._logger = runtime.logger
        self._timers: set[asyncio.TimerHandle] = set()
        self._removing: dict[GuardedDisk, asyncio.Lock] = {}

    def files(self, disk: GuardedDisk, paths: Sequence[str], delay_ms: int) -> None:
        """Unlink these files after the delay."""
        if paths:
            self._later(disk, disk.remove, paths, delay_ms)

    def folders(self, disk: GuardedDisk, paths: Sequence[str], delay_ms: int) -> None:
        """Remove these directories with all their files after the delay."""
        if paths:
            self._later(disk, disk.remove_tree, paths, delay_ms)

    def close(self) -> None:
        """Cancel all scheduled removals. The broker removes those files at its next start."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _later(self, disk: GuardedDisk, remove: Callable[[str], None], paths: Sequence[str], delay_ms: int) -> None:
        def due() -> None:
            self._timers.discard(timer)
            self._workers.spawn(self._remove(disk, remove, paths), "unlink files")

        timer = asyncio.get_running_loop().call_later(delay_ms / 1000, due)
        self._timers.add(timer)

    async def _remove(self, disk: GuardedDisk, remove: Callable[[str], None], paths: Sequence[str]) -> None:
        for path in paths:
            backoff = shortage_backoff()
            while disk.failure is None and not await self._remove_one(disk, remove, path):
                await asyncio.sleep(backoff.next_s())

    async def _remove_one(self, disk: GuardedDisk, remove: Callable[[str], None], path: str) -> bool:
        """Remove one file or directory. Return False if the caller must retry, because too many files are open."""
        try:
            removing = self._removing.setdefault(disk, asyncio.Lock())
            async with removing:  # one at a time, because other work needs the threads of this directory too
                await self._workers.on_disk(disk, remove, path)
        except OSError as error:
            self._logger.error("cannot delete %s: %s", path, error)
            return error.errno not in TOO_MANY_OPEN
        return True
