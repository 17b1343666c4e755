"""Give other clients their turn in the middle of a long request."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from oncelog.log.steps import Steps
from oncelog.log.steps import at_once as at_once

T = TypeVar("T")

ITEMS_A_TURN = 100
"""Partitions, or items of the like, that a request works on before others have their turn: some ms."""


class Turns:
    """Counts the items of one request; awaited before each.

    The count is of items and not of time, so that a simulated run is the same each time.
    """

    __slots__ = ("_items", "_left")

    def __init__(self, items: int = ITEMS_A_TURN) -> None:
        self._left = self._items = items

    async def next(self) -> None:
        """Return at once, or after others had their turn."""
        self._left -= 1
        if self._left < 0:
            self._left = self._items
            await asyncio.sleep(0)


async def in_turns(work: Steps[T], items: int = ITEMS_A_TURN) -> T:
    """Carry out work that yields after each item; others have their turn in between. Return what it returns."""
    turns = Turns(items)
    try:
        while True:
            next(work)
            await turns.next()
    except StopIteration as done:
        result: T = done.value
        return result
