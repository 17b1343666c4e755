"""Drop old segments of the open logs: those that exceed the retention of their topic, and those of DeleteRecords.

The files are deleted only when the new log starts are in the checkpoint. So if a file is missing after a crash of the
machine, recovery knows that the crash has lost it. The producers of deleted records must be on the device, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime

from oncelog.broker.storage.checkpoints import Checkpoints
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.turns import in_turns
from oncelog.broker.workers import Runtime
from oncelog.cluster.replica import Replica
from oncelog.log.retention import SEGMENTS_AT_ONCE, applying_retention, expired_when_written
from oncelog.protocol.errors import ProtocolError


async def on_each(
    replicas: Iterable[Replica], work: Callable[[Replica], Awaitable[None]], logger: logging.Logger
) -> None:
    """Work on each replica whose log is still usable, and let the loop serve requests in between. Log errors."""
    for replica in replicas:
        try:
            if not (replica.log.closed or replica.offline):
                await work(replica)
        except (OSError, ProtocolError) as error:  # one partition's disk failed
            if not (replica.log.closed or replica.offline):  # otherwise, the log was deleted or is offline
                logger.error("housekeeping of %r failed: %s", replica, error)
        except Exception:  # a bug must not stop the work on other logs, or the next round
            logger.exception("housekeeping of %r failed", replica)
        await asyncio.sleep(0)


MOST_WARNINGS = 100
"""At most so many topics are named in warnings about old timestamps."""


class Retention:
    """Drop the old segments of the logs in one directory after the other."""

    def __init__(self, checkpoints: Checkpoints, runtime: Runtime) -> None:
        self._checkpoints = checkpoints
        self._workers = runtime.workers
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger
        self._warned: set[str] = set()

    async def apply(self, directory: DataDirectory, replicas: Iterable[Replica]) -> None:
        """Drop the old segments of these replicas, whose logs are in `directory`.

        If the checkpoint cannot be written, the files remain, and the next call retries.
        """
        starts: dict[Replica, int] = {}

        async def advance(replica: Replica) -> None:
            log = replica.log
            if await in_turns(applying_retention(log, self._now_ms()), 1):
                start = log.log_start_offset
                self._warn_of_old_timestamps(replica)
                for path in await in_turns(log.finishing_snapshot(start), 1):
                    await self._workers.on_disk(directory.disk, directory.disk.sync, path)
                starts[replica] = start

        async def delete(replica: Replica) -> None:
            log, start = replica.log, starts[replica]
            while dropped := log.delete_old_segments(start, SEGMENTS_AT_ONCE):
                self._logger.info("dropped %d old segments of %r", dropped, replica)
                await asyncio.sleep(0)

        await on_each(tuple(replicas), advance, self._logger)
        if starts and directory in await self._checkpoints.write([directory]):
            await on_each(starts, delete, self._logger)

    def _warn_of_old_timestamps(self, replica: Replica) -> None:
        """Log once per topic that records are deleted although they are new, because they have old timestamps."""
        dropped = replica.log.segments.before(replica.log.log_start_offset)[-1:]
        if replica.topic in self._warned or len(self._warned) >= MOST_WARNINGS:
            return
        for segment in dropped:
            if expired_when_written(segment, replica.log.config.retention_ms):
                self._warned.add(replica.topic)
                newest = datetime.fromtimestamp(segment.newest_ms() / 1000, UTC).isoformat(timespec="seconds")
                self._logger.warning(
                    "topic %r: records of partition %d before offset %d are deleted although they were written lately, "
                    "because their timestamps (the newest: %s) are older than retention.ms=%d allows. To keep such "
                    "records, run: oncelog topic alter %s --config retention.ms=-1. This is logged once per topic",
                    *(replica.topic, replica.partition, replica.log.log_start_offset, newest),
                    *(replica.log.config.retention_ms, replica.topic),
                )
