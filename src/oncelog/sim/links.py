"""The state of the network from one machine to another: latency, bandwidth, and whether bytes pass."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable


class Link:
    """One direction between two machines. A piece takes from `fastest` to `slowest` seconds."""

    __slots__ = ("_free_at", "_waiters", "bytes_per_s", "cut", "fastest", "held_resets", "rng", "slow_s", "slowest")

    def __init__(self, rng: random.Random, fastest: float, slowest: float) -> None:
        self.rng = rng
        self.fastest = fastest
        self.slowest = slowest
        self.cut = False
        self.slow_s = 0.0
        """Each piece takes up to this much longer. Pieces of different connections overtake each other."""
        self.bytes_per_s = 0.0
        """The bandwidth that all connections share, or 0 for no limit."""
        self.held_resets: list[Callable[[], None]] = []
        """Resets that arrive when the cut ends."""
        self._free_at = 0.0
        self._waiters: list[asyncio.Future[None]] = []

    def latency(self) -> float:
        """Return the latency of the next piece in seconds."""
        latency = self.rng.uniform(self.fastest, self.slowest)
        return latency + self.rng.uniform(0, self.slow_s) if self.slow_s else latency

    def arrival(self, now: float, size: int) -> float:
        """Return when a piece of `size` bytes sent now arrives, unless an earlier piece of its connection is late."""
        if self.bytes_per_s:
            now = self._free_at = max(self._free_at, now) + size / self.bytes_per_s
        return now + self.latency()

    def heal(self) -> None:
        """End all faults of the link, and deliver the resets that were held back."""
        self.cut = False
        self.slow_s = self.bytes_per_s = self._free_at = 0.0
        resets, self.held_resets = self.held_resets, []
        for reset in resets:
            reset()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def passable(self) -> None:
        """Wait until the link is not cut."""
        while self.cut:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
