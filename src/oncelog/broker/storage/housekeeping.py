"""Run the periodic work of a broker.

It syncs full segments, writes checkpoints, drops old segments, expires producers, and checks that the log directories
still exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.storage.checkpoints import Checkpoints
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.flusher import Flusher
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import in_turns
from oncelog.broker.workers import Workers
from oncelog.cluster.replica import Replica
from oncelog.log.retention import applying_retention
from oncelog.protocol.errors import ProtocolError

DIRECTORY_CHECK_MS = 1_000
"""A deleted log directory is noticed within this interval. Until then, records may be acknowledged and lost."""


class Housekeeping:
    """The periodic work on the open logs of one broker."""

    def __init__(
        self,
        partitions: Partitions,
        directories: LogDirectories,
        checkpoints: Checkpoints,
        flusher: Flusher,
        workers: Workers,
        *,
        now_ms: Callable[[], int],
        logger: logging.Logger,
    ) -> None:
        self._partitions = partitions
        self._directories = directories
        self._checkpoints = checkpoints
        self._flusher = flusher
        self._workers = workers
        self._now_ms = now_ms
        self._logger = logger

    def start(self, config: BrokerConfig) -> None:
        """Start the periodic rounds. They end when the broker stops."""
        checkpoint_ms = config.log_flush_offset_checkpoint_interval_ms
        watermarks_ms = config.replica_high_watermark_checkpoint_interval_ms
        for directory in self._directories:  # a directory that hangs must not stop the rounds of the others
            self._workers.spawn(self._run_every(checkpoint_ms, self._sync, directory), "checkpoint")
            watermarks = self._checkpoint_high_watermarks(watermarks_ms, directory)
            self._workers.spawn(watermarks, "checkpoint of high watermarks")
            self._workers.spawn(self._check_presence(directory), "presence of a log directory")
        rounds: list[tuple[str, int, Callable[[Replica], Awaitable[None]]]] = [
            ("retention", config.log_retention_check_interval_ms, self._retain),
            ("producer expiry", config.producer_id_expiration_check_interval_ms, self._expire),
        ]
        for name, interval_ms, work in rounds:
            self._workers.spawn(self._run_every(interval_ms, work), name)

    async def _run_every(
        self,
        interval_ms: int,
        work: Callable[[Replica], Awaitable[None]],
        directory: DataDirectory | None = None,
    ) -> None:
        """Work on each open log. If a `directory` is given, work only on its logs, and then write its checkpoints."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            for replica in tuple(self._partitions.opened(directory)):
                try:
                    if not (replica.log.closed or replica.offline):
                        await work(replica)
                except (OSError, ProtocolError) as error:  # one partition's disk failed
                    if not (replica.log.closed or replica.offline):  # otherwise, the log was deleted or is offline
                        self._logger.error("housekeeping of %r failed: %s", replica, error)
                except Exception:  # a bug must not stop the work on other logs, or the next round
                    self._logger.exception("housekeeping of %r failed", replica)
                await asyncio.sleep(0)
            try:
                if directory is not None:
                    await self._checkpoints.write([directory])
            except Exception:
                self._logger.exception("housekeeping failed")

    async def _checkpoint_high_watermarks(self, interval_ms: int, directory: DataDirectory) -> None:
        """Write the high watermarks, if any partition has followers. A start needs them only for such partitions."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            if any(map(_is_replicated, self._partitions.opened(directory))):
                try:
                    await self._checkpoints.write_high_watermarks(directory)
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
        for path in paths:
            try:
                await self._workers.on_disk(disk, disk.sync, path)
            except FileNotFoundError:
                if path in replica.log.pending_sync()[1]:
                    raise
                return  # retention or compaction has deleted the segment; the next round syncs what is left
        if paths and truncations == replica.log.truncations:
            replica.log.mark_synced(offset)
        if replica.log.unsynced:
            self._flusher.files(replica)

    async def _retain(self, replica: Replica) -> None:
        while dropped := await in_turns(applying_retention(replica.log, self._now_ms()), 1):
            self._logger.info("dropped %d old segments of %r", dropped, replica)
            await asyncio.sleep(0)

    async def _expire(self, replica: Replica) -> None:
        replica.log.expire_producers(self._now_ms())


def _is_replicated(replica: Replica) -> bool:
    term = replica.term
    return replica.leader >= 0 if term is None else len(term.replicas) > 1
