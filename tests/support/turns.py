"""Wait in an event loop, and count the turns that it gives to others while a request is served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


async def until(true: Callable[[], object], limit_s: float = 60) -> float:
    """Wait until a condition holds, and return how long. The limit is for a busy machine with a slow disk."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while not true():
        assert loop.time() - begun < limit_s
        await asyncio.sleep(0.005)
    return loop.time() - begun


class Turns:
    """The number of times that another task has run so far."""

    def __init__(self) -> None:
        self.count = 0

    async def take(self) -> None:
        """Take every available turn of the loop."""
        while True:
            self.count += 1
            await asyncio.sleep(0)


@contextmanager
def turns_of_others() -> Iterator[Turns]:
    """Run another task meanwhile, and count its turns. Must be entered in a running loop."""
    turns = Turns()
    task = asyncio.ensure_future(turns.take())
    try:
        yield turns
    finally:
        task.cancel()
