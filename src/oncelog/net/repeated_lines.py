"""Log the first of many similar lines at once, and the others as one line with counts. At DEBUG, log each one.

If leaders move, the former leaders reject batches of each producer in each partition, and followers truncate each log.
A reader of the log needs the event, its size, and the partitions that it affects most.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter

from oncelog.protocol.texts import NAMED, first_named

FIRST_S, LONGEST_S = 1.0, 60.0
"""The first pause between two lines of a kind, which doubles while the lines continue, and the longest one."""
MOST_NAMES = 1_000
"""The number of partitions that are counted by name, because a client may send any names."""


def place_of(error: Exception) -> str:
    """Return the file and line that raised an error, as a kind of lines: so each mistake of ours is logged once."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else type(error).__name__


class _Pause:
    """The lines of one kind that were counted in a pause instead of logged."""

    __slots__ = ("amounts", "level", "lines", "seconds", "text")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.level = logging.DEBUG
        self.lines = 0
        self.text = ""
        """The last line."""
        self.amounts: Counter[str] = Counter()


class RepeatedLines:
    """Lines of the log, by kind."""

    def __init__(self, logger: logging.Logger, unit: str) -> None:
        """`unit` names what the amounts of a line count, for example records."""
        self._logger = logger
        self._unit = unit
        self._pauses: dict[str, _Pause] = {}

    def log(
        self,
        kind: str,
        partition: str,
        text: str,
        *,
        level: int = logging.INFO,
        amount: int = 1,
        error: BaseException | None = None,
    ) -> None:
        """Log `text`, or count it if a line of this kind was logged recently.

        There must be few kinds, because each one is remembered while its lines continue. A line that is logged has the
        traceback of `error`.
        """
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.log(level, "%s", text, exc_info=error)
            return
        pause = self._pauses.get(kind)
        if pause is None:
            self._logger.log(level, "%s", text, exc_info=error)
            self._begin(kind, FIRST_S)
            return
        pause.level = max(pause.level, level)
        pause.lines += 1
        pause.text = text
        if partition in pause.amounts or len(pause.amounts) < MOST_NAMES:
            pause.amounts[partition] += amount

    def _begin(self, kind: str, seconds: float) -> None:
        self._pauses[kind] = _Pause(seconds)
        asyncio.get_running_loop().call_later(seconds, self._end, kind)

    def _end(self, kind: str) -> None:
        pause = self._pauses.pop(kind)
        if not pause.lines:
            return
        if pause.lines == 1:
            self._logger.log(pause.level, "%s", pause.text)
        else:
            self._log_counts(kind, pause)
        self._begin(kind, min(2 * pause.seconds, LONGEST_S))

    def _log_counts(self, kind: str, pause: _Pause) -> None:
        worst = (f"{partition} ({amount})" for partition, amount in pause.amounts.most_common(NAMED))
        named = first_named(worst, len(pause.amounts))
        text = "%s: %d more in %g s; most %s: %s"
        self._logger.log(pause.level, text, kind, pause.lines, pause.seconds, self._unit, named)
