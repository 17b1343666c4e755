"""Write the offset checkpoints of all log directories, so that they survive a crash of the machine.

As in Kafka's ``CheckpointFile``, the new content is on the device before it replaces the old one. A worker thread syncs
the new files. The event loop renames them into place, so that an older round never replaces newer content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from oncelog.broker.retrying import shortage_backoff
from oncelog.broker.storage.data_directory import DataDirectory, LogOffsets, Offsets
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.turns import in_turns
from oncelog.broker.workers import Runtime
from oncelog.log.disk import TOO_MANY_OPEN
from oncelog.log.steps import Steps, at_once

PAUSES = 8
"""How often a round waits for a free file descriptor, about 3 s in total."""

Collect = Callable[[DataDirectory], Awaitable[dict[str, Offsets]]]
Written = frozenset[DataDirectory]
"""The directories whose checkpoints are on the device."""


class _Rounds:
    """The rounds of one directory. Those of other directories continue while it hangs."""

    __slots__ = ("asked", "done", "lock", "written")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.asked = 0
        self.done = 0
        self.written = False


class Checkpoints:
    """Write checkpoints in rounds of a directory. All callers that arrive during one round share the next one."""

    def __init__(
        self,
        directories: LogDirectories,
        offsets: Callable[[DataDirectory], Steps[LogOffsets]],
        high_watermarks: Callable[[DataDirectory], Steps[Offsets]],
        runtime: Runtime,
    ) -> None:
        """`offsets` returns the offsets of all logs in a directory, `high_watermarks` only these."""
        self._directories = directories
        self._offsets = offsets
        self._high_watermarks = high_watermarks
        self._workers = runtime.workers
        self._logger = runtime.logger
        self._rounds: dict[DataDirectory, _Rounds] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def write(self, directories: Iterable[DataDirectory] | None = None) -> Written:
        """Write the recovery point, log start offset and high watermark of each log, and wait for the device.

        Write the logs in `directories`, or all logs if it is None. Skip offline directories. Return the directories
        that were written. A disk error takes its directory offline and is logged. If the process has no free file
        descriptor for some seconds, the directory stays online, and the next round retries.
        """
        return await asyncio.shield(self.start(directories))

    async def write_for(self, log_path: str) -> bool:
        """Write the checkpoints of this log's directory, as `write` does. Return whether they are on the device."""
        return bool(await self.write([self._directories.holding(log_path)]))

    def start(self, directories: Iterable[DataDirectory] | None = None) -> asyncio.Task[Written]:
        """Start a round and return its task. Do not cancel the task: its worker thread would continue."""
        asked: list[tuple[DataDirectory, int]] = []
        for directory in self._directories if directories is None else directories:
            if directory.online:
                rounds = self._rounds.setdefault(directory, _Rounds())
                rounds.asked += 1
                asked.append((directory, rounds.asked))
        return self._task(self._write_all(asked))

    async def write_high_watermarks(self, directory: DataDirectory) -> None:
        """Write only the high watermarks of a directory, if they have changed, and wait for the device.

        Errors are those of `write`. Source: Kafka's ``ReplicaManager.checkpointHighWatermarks``.
        """
        await asyncio.shield(self._task(self._round_of_high_watermarks(directory)))

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name="write checkpoints")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def write_now(self) -> None:
        """Write the checkpoints at once, and start a round that syncs them.

        Even if the broker crashes, a new log must not get the offsets of an older log of the same name. With 100,000
        partitions, this holds the loop for 0.2 s. So it is only for a log that is opened before `write` has ended.
        """
        for directory in self._directories.online:
            try:
                directory.checkpoint_now(at_once(self._offsets(directory)))
            except OSError as error:
                self._logger.error("cannot write the checkpoints of %s: %s", directory.path, error)
        self.start()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("cannot write the checkpoints", exc_info=error)

    async def _write_all(self, asked: Sequence[tuple[DataDirectory, int]]) -> Written:
        if len(asked) == 1:  # one directory needs no task of its own
            written = [await self._round(*asked[0])]
        else:
            written = await asyncio.gather(*(self._round(*each) for each in asked))
        return frozenset(directory for (directory, _), done in zip(asked, written, strict=True) if done)

    async def _round(self, directory: DataDirectory, number: int) -> bool:
        rounds = self._rounds[directory]
        async with rounds.lock:
            if rounds.done < number:  # otherwise, a round that began after this call has covered it
                covered = rounds.asked
                rounds.written = directory.online and await self._write_directory(directory, self._all)
                rounds.done = covered
            return rounds.written

    async def _round_of_high_watermarks(self, directory: DataDirectory) -> None:
        async with self._rounds.setdefault(directory, _Rounds()).lock:
            if directory.online:
                await self._write_directory(directory, self._changed_high_watermarks)

    async def _all(self, directory: DataDirectory) -> dict[str, Offsets]:
        return directory.checkpoints(await in_turns(self._offsets(directory), 1))

    async def _changed_high_watermarks(self, directory: DataDirectory) -> dict[str, Offsets]:
        return directory.changed_high_watermarks(await in_turns(self._high_watermarks(directory), 1))

    async def _write_directory(self, directory: DataDirectory, collect: Collect) -> bool:
        """Write the checkpoints of one directory, and return whether they are on the device.

        `collect` returns the content of the files to write. If the process has no free file descriptor, wait and retry.
        """
        backoff, left = shortage_backoff(), PAUSES
        while True:
            try:
                await self._write(directory, collect)
                return True
            except OSError as error:
                if error.errno not in TOO_MANY_OPEN or not left:
                    self._logger.error("cannot write the checkpoints of %s: %s", directory.path, error)
                    return False
            left -= 1
            await asyncio.sleep(backoff.next_s())

    async def _write(self, directory: DataDirectory, collect: Collect) -> None:
        while True:
            version = directory.checkpoint_version
            checkpoints = await collect(directory)
            if not checkpoints:
                return
            await self._workers.on_disk(directory.disk, directory.write_aside, checkpoints)
            if version == directory.checkpoint_version:
                break  # no other code has written newer content in the meantime
        directory.put_in_place(checkpoints)
        await self._workers.on_disk(directory.disk, directory.disk.sync, directory.path)
