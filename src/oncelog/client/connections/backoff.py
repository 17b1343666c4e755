"""Wait longer after every failure, with jitter (KIP-580)."""

from __future__ import annotations


class Backoff:
    """Delays that double from `first_ms` up to `max_ms`, each changed by up to a fifth."""

    __slots__ = ("_first", "_max", "failures")

    def __init__(self, first_ms: float, max_ms: float) -> None:
        self._first = first_ms
        self._max = max_ms
        self.failures = 0

    def next_ms(self, chance: float) -> float:
        """Return the delay before the next attempt. `chance` is a random number in [0, 1)."""
        delay = min(self._first * 2.0 ** min(self.failures, 30), self._max)
        self.failures += 1
        return delay * (0.8 + 0.4 * chance)

    def reset(self) -> None:
        """Begin with the first delay again, after a success."""
        self.failures = 0
