"""Delayed operations: a request waits for an event on some partitions or for its time to be up (Kafka's purgatory)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from oncelog.cluster.replica import Replica


async def wait_until(ready: Callable[[], bool], replicas: Sequence[Replica], timeout_ms: int) -> bool:
    """Waits until `ready()` holds, asked after each append to one of the replicas; False when the time is up first."""
    if ready():
        return True
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()

    def progress() -> None:
        if not done.done() and ready():
            done.set_result(True)

    def expire() -> None:
        if not done.done():
            done.set_result(False)

    for replica in replicas:
        replica.watch(progress)
    timer = loop.call_later(timeout_ms / 1000, expire)
    try:
        return await done
    finally:
        timer.cancel()
        for replica in replicas:
            replica.unwatch(progress)
