"""Truncate the logs of followers in steps, while the event loop serves other requests.

A truncation may rebuild the producer state from many batches. Until the truncation ends, the fetcher skips the
replica, and the replica keeps its role. So nothing is appended to the log. Source: Kafka's ``LogManager.truncateTo``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from oncelog.broker.events import Event
from oncelog.broker.retrying import Backoff
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.workers import Runtime
from oncelog.cluster.follower import Restart, Truncate
from oncelog.cluster.replica import Replica
from oncelog.log.steps import Steps
from oncelog.net.repeated_lines import RepeatedLines
from oncelog.protocol.errors import ProtocolError

RETRY_MS = 1000, 60_000
"""The first pause after an error, which doubles, and the longest one."""

_DIVERGES = "%s ends at offset %d, and differs from the log of its leader, broker %d: truncating it to offset %d"
_GIVES_UP = (
    "%s differs from the log of its new leader, broker %d, which was not in sync: giving up the records from offset %d "
    "to %d, of which those before offset %d were acknowledged"
)
_TOO_FAR_BEHIND = (
    "%s ends at offset %d, before the first record of its leader, broker %d: deleting its records, and beginning at "
    "offset %d"
)


class Truncated(NamedTuple):
    """The offsets of a log before an append truncated it."""

    recovery_point: int
    high_watermark: int


class Truncations:
    """The truncations of this broker. All logs together run one step in a turn of the event loop."""

    def __init__(self, partitions: Partitions, abort_connections: Callable[[], None], runtime: Runtime) -> None:
        """`abort_connections` closes all connections, because responses may hold pages that truncations remove."""
        self._partitions = partitions
        self._workers = runtime.workers
        self._abort_connections = abort_connections
        self.ended: Event[[Replica]] = Event()
        """A truncation has ended, and the replica has its new role."""
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger
        self._lines = RepeatedLines(runtime.logger, "records")
        self._stepping = asyncio.Lock()

    def diverged(self, replica: Replica, leader: int, action: Truncate | Restart) -> None:
        """Log which records of a follower its leader does not have, and start. Warn if they were committed."""
        log, level = replica.log, logging.INFO
        amount = log.log_end_offset - action.offset
        if isinstance(action, Restart):
            kind, amount = "deleting logs that end before the first record of the leader", log.log_end_offset
            amount -= log.log_start_offset
            text = _TOO_FAR_BEHIND % (replica.name, log.log_end_offset, leader, action.offset)
        elif action.offset < log.high_watermark:
            kind, level = "giving up records that were acknowledged", logging.WARNING
            text = _GIVES_UP % (replica.name, leader, action.offset, log.log_end_offset - 1, log.high_watermark)
        else:
            kind = "truncating logs that differ from those of the leader"
            text = _DIVERGES % (replica.name, log.log_end_offset, leader, action.offset)
        self._lines.log(kind, replica.name, text, level=level, amount=amount)
        self.start(replica, action)

    def start(self, replica: Replica, action: Truncate | Restart | Truncated) -> None:
        """Truncate or restart the log of a follower in the background. `Replica.truncating` is true until the end.

        If an append has truncated the log (`Truncated`), write the checkpoints. If the append has failed in between,
        first rebuild the producer state.
        """
        replica.truncating = True
        self._workers.spawn(self._truncate(replica, action), f"truncate {replica.name}")

    async def _truncate(self, replica: Replica, action: Truncate | Restart | Truncated) -> None:
        log = replica.log
        recovery_point, high_watermark = log.recovery_point, log.high_watermark
        steps: Steps[object]
        if isinstance(action, Truncated):
            recovery_point, high_watermark = action
            steps = log.rebuilding(self._now_ms())
        elif isinstance(action, Restart):  # it renames files, so their pages remain
            steps = log.restarting(action.offset, self._now_ms())
        else:
            if action.offset < log.high_watermark:
                log.lower_high_watermark(action.offset)  # clients that connect again must not get these pages again
                self._abort_connections()
            steps = log.truncating(action.offset, self._now_ms())
        backoff = Backoff(*RETRY_MS)
        while not (replica.offline or log.closed):
            try:
                await self._carry_out(steps)
                break
            except Exception as error:
                if not (replica.offline or log.closed):
                    trace = not isinstance(error, ProtocolError)
                    self._logger.error("cannot truncate %r: %s", replica, error, exc_info=trace)
                    await asyncio.sleep(backoff.next_s())
            steps = log.rebuilding(self._now_ms())
        if not (replica.offline or log.closed):
            replica.log_was_truncated()
            self._partitions.forget_cleaned(replica)
            # With the old checkpoint, recovery would skip records that are appended later and are not on the device,
            # or count them as committed. It would take the first segment of a restarted log for the rest of a lost one.
            lowered = log.recovery_point < recovery_point or log.high_watermark < high_watermark
            if lowered or isinstance(action, Restart):
                await self._checkpoint(replica)
            replica.truncating = False
            try:
                self._partitions.roles.apply(replica)
            finally:
                replica.wake()
                self.ended(replica)

    async def _checkpoint(self, replica: Replica) -> None:
        """Write the lowered offsets. Retry until they are on the device, or the log is offline or closed."""
        log = replica.log
        backoff = Backoff(*RETRY_MS)
        while not (replica.offline or log.closed):
            try:
                if await self._partitions.checkpoints.write_for(log.directory):
                    return
            except Exception:
                self._logger.exception("cannot write the checkpoints after the truncation of %r", replica)
            await asyncio.sleep(backoff.next_s())

    async def _carry_out(self, steps: Steps[object]) -> None:
        while True:
            async with self._stepping:
                try:
                    next(steps)
                except StopIteration:
                    return
                await asyncio.sleep(0)
