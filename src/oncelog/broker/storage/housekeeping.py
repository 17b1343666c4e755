"""Run the periodic work of a broker.

It syncs full segments, writes checkpoints, drops old segments, expires producers, and checks that the log directories
still exist. At DEBUG, it logs how offsets move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.offset_lines import INTERVAL_MS, OffsetLines
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.storage.retention import Retention, on_each
from oncelog.broker.workers import Runtime
from oncelog.cluster.replica import Replica

DIRECTORY_CHECK_MS = 1_000
"""A deleted log directory is noticed within this interval. Until then, records may be acknowledged and lost."""


class Housekeeping:
    """The periodic work on the open logs of one broker."""

    def __init__(
        self,
        partitions: Partitions,
        directories: LogDirectories,
        retention: Retention,
        note_generations: Callable[[], Awaitable[None]],
        config: BrokerConfig,
        runtime: Runtime,
    ) -> None:
        self._partitions = partitions
        self._directories = directories
        self._checkpoints = partitions.checkpoints
        self._retention = retention
        self._flusher = partitions.flusher
        self._workers = runtime.workers
        self._offset_lines = OffsetLines()
        self._note_generations = note_generations
        self._config = config
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger

    def start(self) -> None:
        """Remove what the last run has left, and start the periodic rounds. They end when the broker stops."""
        for directory in self._directories.online:
            self._partitions.unlinker.folders(directory.disk, directory.deleted, 0)
        config = self._config
        checkpoint_ms = config.log_flush_offset_checkpoint_interval_ms
        retention_ms = config.log_retention_check_interval_ms
        watermarks_ms = config.replica_high_watermark_checkpoint_interval_ms
        for directory in self._directories:  # a directory that hangs must not stop the rounds of the others
            self._workers.spawn(self._run_every(checkpoint_ms, partial(self._sync_all, directory)), "checkpoint")
            self._workers.spawn(self._run_every(retention_ms, partial(self._retain, directory)), "retention")
            watermarks = self._checkpoint_high_watermarks(watermarks_ms, directory)
            self._workers.spawn(watermarks, "checkpoint of high watermarks")
            self._workers.spawn(self._check_presence(directory), "presence of a log directory")
        expiry_ms = config.producer_id_expiration_check_interval_ms
        self._workers.spawn(self._run_every(expiry_ms, self._expire_all), "producer expiry")
        self._workers.spawn(self._run_every(INTERVAL_MS, self._log_offsets), "lines about offsets")

    async def _run_every(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except Exception:
                self._logger.exception("housekeeping failed")

    async def _sync_all(self, directory: DataDirectory) -> None:
        """Sync the full segments of the open logs in a directory, then write its checkpoints."""
        await on_each(tuple(self._partitions.opened(directory)), self._sync, self._logger)
        await self._checkpoints.write([directory])

    async def _retain(self, directory: DataDirectory) -> None:
        await self._retention.apply(directory, self._partitions.opened(directory))

    async def _log_offsets(self) -> None:
        await self._offset_lines.sample(self._partitions.opened())

    async def _expire_all(self) -> None:
        await on_each(tuple(self._partitions.opened()), self._expire, self._logger)

    async def _checkpoint_high_watermarks(self, interval_ms: int, directory: DataDirectory) -> None:
        """Write the high watermarks, if any partition has followers. A start needs them only for such partitions.

        If they have changed, write the next generation of the directory, so that an earlier copy counts as an old one.
        """
        marks = directory.written_marks
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if any(map(_is_replicated, self._partitions.opened(directory))):
                try:
                    await self._checkpoints.write_high_watermarks(directory)
                    if directory.online and directory.written_marks is not marks:
                        marks = directory.written_marks
                        await self._workers.on_disk(directory.disk, directory.grow)
                        await self._note_generations()
                except Exception:
                    self._logger.exception("cannot write the high watermarks of %s", directory.path)

    async def _check_presence(self, directory: DataDirectory) -> None:
        while directory.online:
            await asyncio.sleep(DIRECTORY_CHECK_MS / 1000)
            try:
                await self._workers.on_disk(directory.disk, directory.check_exists)
            except OSError as error:  # the error takes the directory offline
                self._logger.error("cannot check log directory %s: %s", directory.path, error)
            except Exception:  # for example, no new thread can be started
                self._logger.exception("cannot check log directory %s", directory.path)

    async def _sync(self, replica: Replica) -> None:
        """Sync full segments, so that recovery need not read them. As in Kafka, leave the active one to the system.

        A failed sync takes the log directory offline, because a second sync could succeed although data is lost.
        """
        offset, paths = replica.log.pending_sync()
        truncations = replica.log.truncations
        disk = self._directories.disk_of(replica.log.directory)
        clock = asyncio.get_running_loop().time
        for path in paths:
            began = clock()
            try:
                await self._workers.on_disk(disk, disk.sync, path)
                self._directories.syncs.add(began, clock())
            except FileNotFoundError:
                if path in replica.log.pending_sync()[1]:
                    raise
                return  # retention or compaction has deleted the segment; the next round syncs what is left
        if paths and truncations == replica.log.truncations:
            replica.log.mark_synced(offset)
        if replica.log.unsynced:
            self._flusher.files(replica)

    async def _expire(self, replica: Replica) -> None:
        replica.log.expire_producers(self._now_ms())


def _is_replicated(replica: Replica) -> bool:
    term = replica.term
    return replica.leader >= 0 if term is None else len(term.replicas) > 1
