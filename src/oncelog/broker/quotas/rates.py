"""Limit a rate, and compute how long a client must pause to keep it. No I/O: the time is an argument, in seconds.

Kafka has this `TokenBucket` for `controller_mutation_rate` only (KIP-599), and measures other rates over windows
(`Rate`). At the start, both compute the same pauses. But the windows forget what a large request owes, and they count a
part of a window twice, so a client gets up to twice its limit, or a sixth less.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Windows(NamedTuple):
    """Kafka's windows of a rate: `number` windows of `seconds` each. The last one is not complete."""

    number: int = 11
    seconds: float = 1.0

    @property
    def complete_s(self) -> float:
        """The time of all complete windows."""
        return (self.number - 1) * self.seconds

    @property
    def all_s(self) -> float:
        """The time of all windows."""
        return self.number * self.seconds


class TokenBucket:
    """Tokens that return at the rate of the limit, up to a burst. A client that owes tokens must pause."""

    __slots__ = ("_burst_s", "_changed", "_debt_s", "_tokens")

    def __init__(self, burst_s: float, debt_s: float = math.inf) -> None:
        """The burst is what the limit gives in `burst_s`. A client owes at most what the limit gives in `debt_s`."""
        self._burst_s = burst_s
        self._debt_s = debt_s
        self._tokens = 0.0
        self._changed: float | None = None

    def delay(self, limit: float, now: float) -> float:
        """Return how many seconds the client must pause until it owes no tokens. 0 if it owes none."""
        self._refill(limit, now)
        return max(-self._tokens / limit, 0.0)

    def take(self, amount: float, limit: float, now: float) -> float:
        """Use tokens, even more than there are. Return how many seconds the client must pause."""
        self._refill(limit, now)
        self._tokens -= amount
        return max(-self._tokens / limit, 0.0)

    def admit(self, amount: float, limit: float, now: float) -> tuple[bool, float]:
        """Use tokens if there are enough. Return whether there were, and how many seconds the client must pause.

        A larger amount than a burst needs a full burst, and then the client owes the rest.
        """
        self._refill(limit, now)
        missing = min(amount, self._burst_s * limit) - self._tokens
        if missing > 0:
            return False, missing / limit
        return True, self.take(amount, limit, now)

    def _refill(self, limit: float, now: float) -> None:
        burst = self._burst_s * limit
        gained = burst if self._changed is None else limit * (now - self._changed)
        self._tokens = max(min(burst, self._tokens + gained), -self._debt_s * limit)
        self._changed = now
