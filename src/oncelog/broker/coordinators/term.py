"""The time during which this broker coordinates one partition, under one leader epoch."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from oncelog.broker.retrying import Backoff
from oncelog.protocol.errors import Refusal

S = TypeVar("S")


class CoordinatorTerm(Generic[S]):
    """The coordinator of a partition under a leader epoch, with the requests that wait for it."""

    __slots__ = ("backoff", "epoch", "guarded", "loading", "partition", "retry", "shard", "timer", "waiting", "written")

    def __init__(self, partition: int, epoch: int, backoff: Backoff) -> None:
        self.partition = partition
        self.epoch = epoch
        self.shard: S | None = None
        """The coordinator, or None until it is loaded."""
        self.loading = False
        self.backoff = backoff
        """The waits between attempts to load."""
        self.written = -1
        """The offset of the last record that replies may depend on."""
        self.guarded = False
        """Whether a wait without a time limit notices the loss of records whose requests have timed out."""
        self.waiting: dict[asyncio.Future[Any], None] = {}
        """The requests that wait. A dict keeps their order, so a simulation repeats."""
        self.timer: tuple[int, asyncio.TimerHandle] | None = None
        """The deadline for which the timer is set, and the timer."""
        self.retry: asyncio.TimerHandle | None = None
        """The timer of the next attempt to load."""

    def stop(self) -> None:
        """Cancel the timers."""
        if self.timer is not None:
            self.timer[1].cancel()
        if self.retry is not None:
            self.retry.cancel()
        self.timer = self.retry = None

    def end(self, refusal: Refusal) -> None:
        """Cancel the timers, and reject the requests that wait."""
        self.stop()
        for token in tuple(self.waiting):
            if not token.done():
                token.set_result(refusal)
