"""The offset checkpoints of all log directories, which must survive the machine.

As in Kafka's ``CheckpointFile``, the new content is on the device before it replaces the old one. A worker thread waits
for the device; the event loop puts the files in place, so that an older round never replaces newer content.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oncelog.broker.data_directory import DataDirectory

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker


class Checkpoints:
    """Writes checkpoints in rounds; all that ask during one round share the next."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = asyncio.Lock()
        self._asked = 0
        self._done = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def write(self) -> None:
        """Write how far each log is safe, begins and is committed; return when that is on the device.

        An error of the disk is logged: it has taken the directory offline.
        """
        await asyncio.shield(self.start())

    def start(self) -> asyncio.Task[None]:
        """Start to write, and return the task. It must not be cancelled: its worker thread would continue."""
        self._asked += 1
        task = self._broker.loop.create_task(self._round(self._asked), name="write checkpoints")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broker.log.error("writing checkpoints failed", exc_info=error)

    async def _round(self, number: int) -> None:
        async with self._lock:
            if self._done >= number:
                return  # a round that began after this request has covered it
            covered = self._asked
            for directory in self._broker.directories.online:
                try:
                    await self._write(directory)
                except OSError as error:
                    self._broker.log.error("cannot write the checkpoints of %s: %s", directory.path, error)
            self._done = covered

    async def _write(self, directory: DataDirectory) -> None:
        while True:
            version = directory.checkpoint_version
            checkpoints = directory.checkpoints(self._broker.partitions.offsets(directory))
            await self._broker.offload(directory.write_aside, checkpoints)
            if version == directory.checkpoint_version:
                break  # nobody has written newer content meanwhile
        directory.put_in_place(checkpoints)
        await self._broker.offload(directory.disk.sync, directory.path)
