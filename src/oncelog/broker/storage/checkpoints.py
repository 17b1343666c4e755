"""Write the offset checkpoints of all log directories, so that they survive a crash of the machine.

As in Kafka's ``CheckpointFile``, the new content is on the device before it replaces the old one. A worker thread syncs
the new files. The event loop renames them into place, so that an older round never replaces newer content.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from typing import Any

from oncelog.broker.storage.data_directory import DataDirectory, LogOffsets, Offsets
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.shortage import pauses
from oncelog.broker.workers import Workers
from oncelog.log.disk import TOO_MANY_OPEN

PAUSES = 8
"""How often a round waits for a free file descriptor, about 3 s in total."""

Written = frozenset[DataDirectory]
"""The directories whose checkpoints are on the device."""


class Checkpoints:
    """Write checkpoints in rounds. All callers that arrive during one round share the next one."""

    def __init__(
        self,
        directories: LogDirectories,
        offsets: Callable[[DataDirectory], LogOffsets],
        workers: Workers,
        logger: logging.Logger,
    ) -> None:
        """`offsets` returns the offsets of all logs in a directory."""
        self._directories = directories
        self._offsets = offsets
        self._workers = workers
        self._logger = logger
        self._lock = asyncio.Lock()
        self._asked = 0
        self._done = 0
        self._written: Written = frozenset()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def write(self) -> Written:
        """Write the recovery point, log start offset and high watermark of each log, and wait for the device.

        Return the directories that were written. A disk error takes its directory offline and is logged. If the process
        has no free file descriptor for some seconds, the directory stays online, and the next round retries.
        """
        return await asyncio.shield(self.start())

    async def write_for(self, log_path: str) -> bool:
        """Write the checkpoints as `write` does. Return whether those of this log's directory are on the device."""
        return self._directories.holding(log_path) in await self.write()

    def start(self) -> asyncio.Task[Written]:
        """Start a round and return its task. Do not cancel the task: its worker thread would continue."""
        self._asked += 1
        return self._task(self._round(self._asked))

    async def write_high_watermarks(self) -> None:
        """Write only the high watermarks, in each directory in which they have changed, and wait for the device.

        Errors are those of `write`. Source: Kafka's ``ReplicaManager.checkpointHighWatermarks``.
        """
        await asyncio.shield(self._task(self._round_of_high_watermarks()))

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name="write checkpoints")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def write_now(self) -> None:
        """Write the checkpoints at once, and start a round that syncs them.

        Even if the broker crashes, a new log must not get the offsets of an older log of the same name.
        """
        for directory in self._directories.online:
            try:
                directory.checkpoint_now(self._offsets(directory))
            except OSError as error:
                self._logger.error("cannot write the checkpoints of %s: %s", directory.path, error)
        self.start()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("cannot write the checkpoints", exc_info=error)

    async def _round(self, number: int) -> Written:
        async with self._lock:
            if self._done < number:  # otherwise, a round that began after this call has covered it
                covered = self._asked
                waits = islice(pauses(), PAUSES)
                online = self._directories.online
                self._written = frozenset([each for each in online if await self._write_directory(each, waits)])
                self._done = covered
            return self._written

    async def _round_of_high_watermarks(self) -> None:
        async with self._lock:
            waits = islice(pauses(), PAUSES)
            for directory in self._directories.online:
                await self._write_directory(directory, waits, DataDirectory.changed_high_watermarks)

    async def _write_directory(
        self,
        directory: DataDirectory,
        waits: Iterator[float],
        choose: Callable[[DataDirectory, LogOffsets], dict[str, Offsets]] = DataDirectory.checkpoints,
    ) -> bool:
        """Write the checkpoints of one directory, and return whether they are on the device.

        `choose` returns the content of the files to write. If the process has no free file descriptor, wait and retry.
        All directories of a round share the ``waits``.
        """
        while True:
            try:
                await self._write(directory, choose)
                return True
            except OSError as error:
                wait_s = next(waits, None) if error.errno in TOO_MANY_OPEN else None
                if wait_s is None:
                    self._logger.error("cannot write the checkpoints of %s: %s", directory.path, error)
                    return False
            await asyncio.sleep(wait_s)

    async def _write(
        self, directory: DataDirectory, choose: Callable[[DataDirectory, LogOffsets], dict[str, Offsets]]
    ) -> None:
        while True:
            version = directory.checkpoint_version
            checkpoints = choose(directory, self._offsets(directory))
            if not checkpoints:
                return
            await self._workers.offload(directory.write_aside, checkpoints)
            if version == directory.checkpoint_version:
                break  # no other code has written newer content in the meantime
        directory.put_in_place(checkpoints)
        await self._workers.offload(directory.disk.sync, directory.path)
