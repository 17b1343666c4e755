"""Write the offset checkpoints of all log directories, so that they survive a crash of the machine.

As in Kafka's ``CheckpointFile``, the new content is on the device before it replaces the old one. A worker thread syncs
the new files. The event loop renames them into place, so that an older round never replaces newer content.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oncelog.broker.data_directory import DataDirectory

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker


class Checkpoints:
    """Write checkpoints in rounds. All callers that arrive during one round share the next one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lock = asyncio.Lock()
        self._asked = 0
        self._done = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def write(self) -> None:
        """Write the recovery point, log start offset and high watermark of each log, and wait for the device.

        A disk error takes its directory offline and is logged.
        """
        await asyncio.shield(self.start())

    def start(self) -> asyncio.Task[None]:
        """Start a round and return its task. Do not cancel the task: its worker thread would continue."""
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
                return  # a round that began after this call has covered it
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
                break  # no other code has written newer content in the meantime
        directory.put_in_place(checkpoints)
        await self._broker.offload(directory.disk.sync, directory.path)
