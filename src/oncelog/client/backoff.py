"""Wait longer after every failure, with jitter (KIP-580)."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays that double from `first_ms` up to `max_ms`, each changed by up to a fifth.

    `chance` returns random numbers in [0, 1). `failures` is how many attempts have failed already.
    """

    __slots__ = ("_chance", "_failures", "_first", "_max")

    def __init__(self, first_ms: float, max_ms: float, chance: Callable[[], float], failures: int = 0) -> None:
        self._first = first_ms
        self._max = max_ms
        self._chance = chance
        self._failures = failures

    def next_ms(self) -> float:
        """Count one more failure. Return the delay before the next attempt in milliseconds."""
        delay = min(self._first * 2.0 ** min(self._failures, 30), self._max)
        self._failures += 1
        return delay * (0.8 + 0.4 * self._chance())

    def next_s(self) -> float:
        """Return the same in seconds."""
        return self.next_ms() / 1000

    def reset(self) -> None:
        """Begin with the first delay again, after a success."""
        self._failures = 0
