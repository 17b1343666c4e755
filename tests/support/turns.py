"""Count the turns that an event loop gives to others while a request is served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


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
