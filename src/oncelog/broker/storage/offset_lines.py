"""Log how the offsets of the open logs move, while this logger's level is DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from oncelog.broker.turns import Yielder
from oncelog.cluster.replica import Replica

INTERVAL_MS = 500
"""The time between two samples. A line for each move would be as many lines as there are batches."""

logger = logging.getLogger(__name__)


class _Offsets(NamedTuple):
    log_end: int
    high_watermark: int
    last_stable: int


_EMPTY = _Offsets(0, 0, 0)


class OffsetLines:
    """Log a line for each replica whose offsets have moved since the last sample.

    All offsets are exclusive: each one is that of the next record.
    """

    def __init__(self) -> None:
        self._last: dict[str, _Offsets] = {}

    async def sample(self, replicas: Iterable[Replica]) -> None:
        """Compare the offsets of all open replicas with those of the last sample."""
        if not logger.isEnabledFor(logging.DEBUG):
            self._last = {}
            return
        before, self._last = self._last, {}
        yielder = Yielder()
        for replica in tuple(replicas):
            await yielder.next()
            log = replica.log
            if log.closed:
                continue
            now = self._last[replica.name] = _Offsets(log.log_end_offset, log.high_watermark, log.last_stable_offset)
            if now != before.get(replica.name, _EMPTY):
                role = "follower" if replica.term is None else "leader"
                text = "%s (%s): log end offset %d, high watermark %d, last stable offset %d"
                logger.debug(text, replica.name, role, *now)
