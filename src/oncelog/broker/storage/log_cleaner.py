"""The log cleaner: compact the dirtiest log, then the next, and maintain ``cleaner-offset-checkpoint``.

The package `oncelog.log.cleaning` compacts a single log. This module selects the log, pauses between steps, and runs
slow steps in a worker thread. Source: Kafka's ``LogCleaner``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.storage.retention import Retention
from oncelog.broker.workers import Runtime
from oncelog.cluster.replica import Replica
from oncelog.log.cleaning.clean import Cleaning, CleaningAbortedError
from oncelog.log.cleaning.offsets import BYTES_PER_KEY
from oncelog.log.cleaning.plan import Plan, make_plan
from oncelog.log.disk import TOO_MANY_OPEN
from oncelog.log.guarded_disk import GuardedDisk
from oncelog.log.log import Log
from oncelog.protocol.errors import ProtocolError

_PAUSE_S = 0.05
"""The shortest pause for ``log.cleaner.io.max.bytes.per.second``. Shorter pauses are added up."""


class LogCleaner:
    """Clean one log at a time."""

    def __init__(
        self,
        partitions: Partitions,
        directories: LogDirectories,
        retention: Retention,
        config: DynamicConfig,
        runtime: Runtime,
    ) -> None:
        self._partitions = partitions
        self._directories = directories
        self._checkpoints = partitions.checkpoints
        self._retention = retention
        self._config = config
        self._workers = runtime.workers
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger
        self._uncleanable: set[Log] = set()
        self._owed_s = 0.0

    def start(self) -> None:
        """Clean in the background, if `log.cleaner.enable` is set."""
        if self._config.static.log_cleaner_enable:
            self._workers.spawn(self.run(), "log cleaner")

    async def run(self) -> None:
        """Clean all logs that are due, again and again until the broker stops."""
        while True:
            try:
                cleaned = await self.clean_due()
            except Exception:  # for example, the checkpoint of a compacted log could not be written
                self._logger.exception("the log cleaner failed; retrying later")
                cleaned = False
            if not cleaned:
                await asyncio.sleep(self._config.current.log_cleaner_backoff_ms / 1000)

    async def clean_due(self) -> bool:
        """Clean each log that is due, the dirtiest first. Return whether at least one was cleaned.

        Also apply retention to all compacted logs.
        """
        plans = [plan async for log in self._compacted() if (plan := self._plan(log)) and plan.is_due]
        cleaned = False
        for plan in sorted(plans, key=lambda plan: plan.dirty_ratio, reverse=True):
            current = None if plan.log.closed else self._plan(plan.log)
            if current is not None and current.is_due:
                cleaned = await self._clean(current) or cleaned
        for directory in self._directories.online:  # more often than housekeeping does, as in Kafka
            await self._retention.apply(directory, filter(self._may_clean, self._partitions.opened(directory)))
        self._uncleanable = {log for log in self._uncleanable if not log.closed}
        return cleaned

    async def _compacted(self) -> AsyncIterator[Log]:
        """Yield the logs that may be cleaned. The event loop runs other work between two logs."""
        for replica in tuple(self._partitions.opened()):
            if self._may_clean(replica):
                yield replica.log
                await asyncio.sleep(0)

    def _may_clean(self, replica: Replica) -> bool:
        log = replica.log
        return log.config.compact and not (log.closed or replica.offline or log in self._uncleanable)

    def _plan(self, log: Log) -> Plan | None:
        try:
            log_dir = self._directories.holding(log.directory)
            return make_plan(log, log_dir.cleaned(log.topic, log.partition), self._now_ms())
        except Exception as error:  # noqa: BLE001 - `_give_up` logs the error
            self._give_up(log, error)
            return None

    async def _clean(self, plan: Plan) -> bool:
        log = plan.log
        config = self._config.current
        keys = int(config.log_cleaner_dedupe_buffer_size * config.log_cleaner_io_buffer_load_factor) // BYTES_PER_KEY
        disk = self._directories.disk_of(log.directory)
        cleaning = Cleaning(plan, disk, self._now_ms(), max_keys=max(1, keys))
        try:
            await self._carry_out(cleaning, disk)
        except CleaningAbortedError as error:
            self._logger.info("%s", error)
            return False
        except Exception as error:  # noqa: BLE001 - `_give_up` logs the error
            if cleaning.is_void:
                self._logger.info("stopped compacting %r, because it was closed or truncated: %s", log, error)
            else:
                self._give_up(log, error)
            return False
        if cleaning.is_void:
            return False  # it was truncated in the last pause, or a new topic of its name is not clean
        result = cleaning.result
        self._directories.holding(log.directory).note_cleaned(log.topic, log.partition, result.end)
        await self._checkpoints.write_for(log.directory)
        self._logger.info(
            "compacted %r up to %d: %d keys, %d bytes became %d",
            log, result.end, result.keys, result.bytes_read, result.bytes_written,
        )  # fmt: skip
        return True

    def _give_up(self, log: Log, error: Exception) -> None:
        """Leave a log alone until the next start if it cannot be compacted, unless the reason is temporary.

        A disk error, also a full disk, has taken the directory offline (`GuardedDisk`), and the log with it. Too many
        open files and too little memory are temporary, and the log has not changed. After any other error, mark the
        log as uncleanable, as Kafka's ``LogCleanerManager`` does: the same bytes would fail again.
        """
        cause = error.__cause__ if isinstance(error, ProtocolError) else error
        if log.closed:
            self._logger.info("stopped compacting %r, because it was closed: %s", log, error)
        elif not self._directories.holding(log.directory).online:
            self._logger.error("cannot compact %r: %s", log, error)
        elif isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in TOO_MANY_OPEN):
            self._logger.error("cannot compact %r; retrying later: %s", log, error)
        else:
            self._uncleanable.add(log)
            self._logger.error("cannot compact %r; not retrying until the next start", log, exc_info=error)

    async def _carry_out(self, cleaning: Cleaning, disk: GuardedDisk) -> None:
        limit = self._config.current.log_cleaner_io_max_bytes_per_second
        steps = cleaning.run()
        try:
            for step in steps:
                if step.slow:
                    await self._workers.on_disk(disk, step.run)
                else:
                    step.run()
                self._owed_s += step.io_bytes / limit
                pause_s = self._owed_s if self._owed_s >= _PAUSE_S else 0.0
                self._owed_s -= pause_s
                await asyncio.sleep(pause_s)
        finally:
            steps.close()
