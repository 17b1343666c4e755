"""The log cleaner: compacts the dirtiest log, then the next, and keeps ``cleaner-offset-checkpoint``.

What is done to a log is `log.cleaning`; here are the choice of the log, the pauses, and the worker thread for what
takes long. Source: Kafka's ``LogCleaner``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oncelog.cluster.replica import Replica
from oncelog.log.cleaning.clean import Cleaning, CleaningAbortedError, LeftoverError
from oncelog.log.cleaning.offsets import BYTES_PER_KEY
from oncelog.log.cleaning.plan import Plan, make_plan
from oncelog.log.log import Log
from oncelog.log.retention import apply_retention
from oncelog.protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker

_PAUSE_S = 0.05
"""Least time to wait for the sake of ``log.cleaner.io.max.bytes.per.second``; less is saved up."""


class LogCleaner:
    """Cleans one log at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._uncleanable: set[Log] = set()
        self._owed_s = 0.0

    async def run(self) -> None:
        """Cleans what is due, over and over; ends with the broker."""
        while True:
            if not await self.clean_due():
                await asyncio.sleep(self._broker.config.log_cleaner_backoff_ms / 1000)

    async def clean_due(self) -> bool:
        """Goes once through the logs that are due, the dirtiest first; whether there was one that could be cleaned."""
        plans = [plan for replica in self._compacted() if (plan := self._plan(replica.log)) and plan.is_due]
        cleaned = False
        for plan in sorted(plans, key=lambda plan: plan.dirty_ratio, reverse=True):
            current = None if plan.log.closed else self._plan(plan.log)
            if current is not None and current.is_due:
                cleaned = await self._clean(current) or cleaned
        for replica in self._compacted():
            self._retain(replica)
        self._uncleanable = {log for log in self._uncleanable if not log.closed}
        return cleaned

    def _compacted(self) -> list[Replica]:
        replicas = tuple(self._broker.partitions.opened())
        return [replica for replica in replicas if replica.log.config.compact and self._is_usable(replica)]

    @staticmethod
    def _is_usable(replica: Replica) -> bool:
        return not (replica.log.closed or replica.offline)

    def _plan(self, log: Log) -> Plan | None:
        if log in self._uncleanable:
            return None
        try:
            home = self._broker.directories.holding(log.directory)
            return make_plan(log, home.cleaned(log.topic, log.partition), self._broker.now_ms())
        except OSError as error:
            self._broker.log.error("cannot look at %r for compaction: %s", log, error)
            return None

    async def _clean(self, plan: Plan) -> bool:
        broker, log = self._broker, plan.log
        config = broker.config
        keys = int(config.log_cleaner_dedupe_buffer_size * config.log_cleaner_io_buffer_load_factor) // BYTES_PER_KEY
        cleaning = Cleaning(plan, broker.directories.disk_of(log.directory), broker.now_ms(), max_keys=max(1, keys))
        try:
            await self._carry_out(cleaning)
        except CleaningAbortedError as error:
            broker.log.info("%s", error)
            return False
        except OSError as error:  # a full disk: the log is as it was, and it is tried again
            if isinstance(error, LeftoverError):
                self._uncleanable.add(log)
            broker.log.error("cannot compact %r: %s", log, error)
            return False
        except ProtocolError as error:
            if error.code != ErrorCode.KAFKA_STORAGE_ERROR:
                self._uncleanable.add(log)
            broker.log.error("cannot compact %r: %s", log, error)
            return False
        if log.closed:
            return False  # its topic was deleted in the last pause: one that is made anew has been cleaned by nobody
        result = cleaning.result
        self._note(log, result.end)
        broker.log.info(
            "compacted %r up to %d: %d keys, %d bytes became %d",
            log, result.end, result.keys, result.bytes_read, result.bytes_written,
        )  # fmt: skip
        return True

    async def _carry_out(self, cleaning: Cleaning) -> None:
        limit = self._broker.config.log_cleaner_io_max_bytes_per_second
        steps = cleaning.run()
        try:
            for step in steps:
                if step.slow:
                    await self._broker.offload(step.run)
                else:
                    step.run()
                self._owed_s += step.io_bytes / limit
                pause_s = self._owed_s if self._owed_s >= _PAUSE_S else 0.0
                self._owed_s -= pause_s
                await asyncio.sleep(pause_s)
        finally:
            steps.close()

    def _retain(self, replica: Replica) -> None:
        """Kafka applies the retention of compacted logs from here too, more often than that of the others."""
        try:
            if apply_retention(replica.log, self._broker.now_ms()):
                self._broker.log.info("%r: dropped old segments", replica)
        except (OSError, ProtocolError) as error:
            self._broker.log.error("%r: %s", replica, error)

    def _note(self, log: Log, end: int) -> None:
        try:
            self._broker.directories.holding(log.directory).note_cleaned(log.topic, log.partition, end)
        except OSError as error:  # the next round begins where this one did
            self._broker.log.error("cannot write down how far %r is compacted: %s", log, error)
