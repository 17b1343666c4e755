"""Let the event loop serve other clients in the middle of a long request."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from oncelog.log.steps import Steps

T = TypeVar("T")

ITEMS_A_TURN = 100
"""Partitions or similar items that a request handles before the loop serves others: some ms."""


class Turns:
    """Count the items of one request, and pause after a fixed number of them.

    Turns count items instead of time, so that a simulated run is the same each time.
    """

    __slots__ = ("_items", "_left")

    def __init__(self, items: int = ITEMS_A_TURN) -> None:
        self._left = self._items = items

    async def next(self) -> None:
        """Call this before each item. Returns at once, or after the loop has served others."""
        self._left -= 1
        if self._left < 0:
            self._left = self._items
            await asyncio.sleep(0)


async def in_turns(work: Steps[T], items: int = ITEMS_A_TURN) -> T:
    """Run work that yields after each item, and let the loop serve others in between. Return its result."""
    turns = Turns(items)
    try:
        while True:
            next(work)
            await turns.next()
    except StopIteration as done:
        result: T = done.value
        return result
