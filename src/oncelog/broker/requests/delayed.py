"""Delayed operations: a request waits for an event on its partitions until it times out (Kafka's purgatory)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from oncelog.cluster.replica import Replica


async def wait_until(
    ready: Callable[[Replica], bool],
    replicas: Sequence[Replica],
    timeout_ms: int,
    on_disconnect: list[Callable[[], None]],
) -> bool:
    """Wait until `ready(replica)` is true for one of the replicas, and return True.

    Each replica is checked once, and again after each append or sync, and when it fails or is closed. Return False if
    the wait times out or the client disconnects.
    """
    if any(map(ready, replicas)):
        return True
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()

    def watcher(replica: Replica) -> Callable[[], None]:
        def progress() -> None:
            if not done.done() and ready(replica):
                done.set_result(True)

        return progress

    def expire() -> None:
        if not done.done():
            done.set_result(False)

    watchers = [(replica, watcher(replica)) for replica in dict.fromkeys(replicas)]
    for replica, progress in watchers:
        replica.watch(progress)
    on_disconnect.append(expire)
    timer = loop.call_later(timeout_ms / 1000, expire)
    try:
        return await done
    finally:
        timer.cancel()
        on_disconnect.remove(expire)
        for replica, progress in watchers:
            replica.unwatch(progress)
