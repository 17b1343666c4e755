"""Repeat work that has failed: how long to wait between two attempts, and what to log meanwhile.

The waits have no jitter, so that a simulated run is the same each time. A cluster has few brokers, so their attempts
need not be spread.
"""

from __future__ import annotations

import logging

STORE_RETRY_S = 0.2
"""How long a broker pauses after the metadata store has failed, before it writes again."""
SHORTAGE_MS = 20, 1000
"""The first and the longest wait if the process has no free file descriptor (`oncelog.log.disk.TOO_MANY_OPEN`)."""


def wait_s(failures: int, first_ms: float, most_ms: float) -> float:
    """Return the seconds to wait after one more failure: first `first_ms`, then twice as long, up to `most_ms`."""
    return min(first_ms * 2.0 ** min(failures, 30), most_ms) / 1000


class Backoff:
    """Waits that double from `first_ms` up to `most_ms`."""

    __slots__ = ("_first", "_most", "failures")

    def __init__(self, first_ms: float, most_ms: float) -> None:
        self._first = first_ms
        self._most = most_ms
        self.failures = 0
        """The number of failures since the last success."""

    def next_s(self) -> float:
        """Count one more failure. Return the seconds to wait before the next attempt."""
        self.failures += 1
        return wait_s(self.failures - 1, self._first, self._most)

    def reset(self) -> None:
        """Begin with the first wait again, after a success."""
        self.failures = 0


def shortage_backoff() -> Backoff:
    """Return the waits of work that needs a file descriptor while none is free."""
    return Backoff(*SHORTAGE_MS)


class Problem:
    """Log why one piece of work fails: once, and not at each attempt."""

    __slots__ = ("_kind", "_logger")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kind: str | None = None
        """The kind of the last failure, or None if the last attempt was successful."""

    def failed(
        self, text: str, *args: object, kind: str = "", level: int = logging.ERROR, exc_info: bool = False
    ) -> None:
        """Log a failure, unless the last attempt has failed with the same kind."""
        last, self._kind = self._kind, kind
        if last != kind:
            self._logger.log(level, text, *args, exc_info=exc_info)

    @property
    def lasts(self) -> bool:
        """Whether the last attempt has failed."""
        return self._kind is not None

    def over(self) -> None:
        """Record a success."""
        self._kind = None
