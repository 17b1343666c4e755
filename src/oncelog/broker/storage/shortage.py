"""Pauses between retries if the process has no free file descriptor (`oncelog.log.disk.TOO_MANY_OPEN`)."""

from __future__ import annotations

from collections.abc import Iterator

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


def pauses() -> Iterator[float]:
    """Yield the seconds to wait before each retry. Each pause is twice as long as the last, up to `LONGEST_PAUSE_S`."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
