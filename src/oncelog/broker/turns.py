"""Let the event loop serve other clients in the middle of a long request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from oncelog.log.steps import Steps

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)

ITEMS_A_TURN = 100
"""The partitions or similar items that a request handles before the loop serves other requests, within a few ms."""
KEYS_A_TURN = 5000
"""The names or similar keys that a request reads before the loop serves other requests, within a few ms."""
NEW_LOG_ITEMS = 20
"""The weight of an append that creates the files of a log: it takes as long as this many other items."""


class Yielder:
    """Count the items of one request, and pause after a fixed number of them.

    It counts items instead of time, so that a simulated run is the same each time.
    """

    __slots__ = ("_items", "_left")

    def __init__(self, items: int = ITEMS_A_TURN) -> None:
        self._left = self._items = items

    async def next(self, items: int = 1) -> None:
        """Return at once, or after the loop has served other requests. Call this before each item or every few."""
        self._left -= items
        if self._left < 0:
            self._left = self._items
            await asyncio.sleep(0)


def soon(work: Callable[[], None]) -> None:
    """Run `work` after the loop has served other requests."""
    asyncio.get_running_loop().call_soon(work)


async def in_turns(work: Steps[T], items: int = ITEMS_A_TURN) -> T:
    """Run work that yields after each item, and let the loop serve other requests in between. Return its result."""
    try:
        while True:
            for _ in range(items):  # cheaper than an await for each item
                next(work)
            await asyncio.sleep(0)
    except StopIteration as done:
        result: T = done.value
        return result


async def mapped(items: Iterable[T], make: Callable[[T], R]) -> list[R]:
    """Return `make(item)` of each item of a request, and let the loop serve other requests in between."""
    yielder = Yielder()
    made = []
    for item in items:
        await yielder.next()
        made.append(make(item))
    return made


async def filtered(items: Iterable[T], keep: Callable[[T], bool]) -> list[T]:
    """Return the items for which `keep(item)` is true, and let the loop serve other requests in between."""
    yielder = Yielder()
    kept = []
    for item in items:
        await yielder.next()
        if keep(item):
            kept.append(item)
    return kept


async def listed(items: Iterable[T]) -> list[T]:
    """Return the items of an iterator, and let the loop serve other requests in between."""
    return await mapped(items, lambda item: item)


async def counted(keys: Iterable[K]) -> Counter[K]:
    """Count how often each key occurs in a request, and let the loop serve other requests in between."""
    yielder = Yielder(KEYS_A_TURN)
    named: Counter[K] = Counter()
    for key in keys:
        await yielder.next()
        named[key] += 1
    return named


async def by_key(items: Iterable[T], key: Callable[[T], K]) -> dict[K, T]:
    """Return the last item of each key of a request, and let the loop serve other requests in between."""
    yielder = Yielder(KEYS_A_TURN)
    found: dict[K, T] = {}
    for item in items:
        await yielder.next()
        found[key(item)] = item
    return found
