"""Delayed operations: a request waits for its partitions until it times out (Kafka's purgatory)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from oncelog.broker.turns import ITEMS_A_TURN, soon
from oncelog.cluster.commits import Commits
from oncelog.cluster.replica import Replica
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode

MOST_WAITING = 100_000
"""The partitions that all delayed operations may wait for together. Each takes about 1 KB."""
ALWAYS_WAITS = 10
"""An operation on at most this many partitions may always wait."""
MOST_PAUSING = 50_000
"""The partitions of all operations that pause together, because too many partitions wait."""
PAUSE_S = 0.1
"""How long an operation pauses that may not wait. Otherwise, its client would send the next one at once."""


class WaitingPartitions:
    """Count the partitions that delayed operations wait for. Any client may send many with thousands of partitions."""

    __slots__ = ("count", "most")

    def __init__(self, most: int = MOST_WAITING) -> None:
        self.count = 0
        self.most = most

    def admits(self, partitions: int) -> bool:
        """Return whether an operation on this many partitions may wait. Otherwise, it must be answered soon."""
        return partitions <= ALWAYS_WAITS or self.count + partitions <= self.most


class DelayedCommits(Commits):
    """The commits that a request waits for within a `with` block, until its timeout or the end of its connection."""

    __slots__ = ("_disconnect", "_timer", "ended")

    def __init__(self, count: int, timeout_ms: float, session: Session) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when all that were added have ended, or the wait was given up. Then read `errors`."""
        super().__init__(count, self._wake)
        give_up = self.give_up
        self._timer = loop.call_later(timeout_ms / 1000, give_up)
        self._disconnect = session.on_disconnect(give_up)

    def _wake(self, _errors: list[ErrorCode]) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def __enter__(self) -> DelayedCommits:
        """Enter the wait."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the wait."""
        self._timer.cancel()
        self._disconnect.remove()
        self.close(soon)


async def wait_for_event(
    ready: Callable[[Replica], bool],
    replicas: Sequence[Replica],
    timeout_ms: int,
    session: Session,
) -> bool:
    """Wait until `ready(replica)` is true for one of the replicas, and return True.

    Each replica is checked once, and again after each append or sync, and when it fails or is closed. Return False if
    the wait times out or the client disconnects.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()

    def expire() -> None:
        if not done.done():
            done.set_result(False)

    timer = loop.call_later(timeout_ms / 1000, expire)
    watchers: list[_Watcher] = []
    try:
        with session.on_disconnect(expire):
            for replica in dict.fromkeys(replicas):
                watcher = _Watcher(replica, ready, done)
                replica.watch(watcher)  # before the check, so that no event is missed
                watchers.append(watcher)
                if ready(replica):
                    return True
                if len(watchers) % ITEMS_A_TURN == 0:
                    await asyncio.sleep(0)
            return await done
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.replica.unwatch(watcher)


class _Watcher:
    """Check one replica after each of its events. A Fetch may have thousands of them, so they are small."""

    __slots__ = ("_done", "_ready", "replica")

    def __init__(self, replica: Replica, ready: Callable[[Replica], bool], done: asyncio.Future[bool]) -> None:
        self.replica = replica
        self._ready = ready
        self._done = done

    def __call__(self) -> None:
        if not self._done.done() and self._ready(self.replica):
            self._done.set_result(True)
