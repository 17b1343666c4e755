"""What a turn may ask for: limits, when lists are read again, and which keys come next. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

LISTED_A_SECOND = 500
"""The partitions, groups or transactional ids in lists that a watcher reads per second, on average.

Lists have no pages: a request returns all of them. So a list of 100,000 groups is read every 200 seconds.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one turn asks for."""

    partitions: int = 1_000
    """Partitions whose offsets and sizes are read."""
    groups: int = 100
    """Groups whose committed offsets are read."""
    holders: int = 200
    """Partitions whose producers are read, because a transaction holds their last stable offset back."""
    transactions: int = 200
    """Transactions that are described."""


LIVE = Limits()
ONCE = Limits(partitions=20_000, groups=2_000, holders=1_000, transactions=1_000)
"""The limits of a reader that takes two turns and ends."""


def seconds_until_next_list(count: int) -> float:
    """Return for how long a list with `count` entries stays valid."""
    return count / LISTED_A_SECOND


def pick(
    keys: Collection[K], read_at: Callable[[K], float | None], is_urgent: Callable[[K], bool], most: int
) -> list[K]:
    """Return the keys to read in this turn, at most `most`.

    Half of them are urgent: those that changed at their last reading, or that lack a second reading for a rate. The
    other places go to the keys whose last reading is the oldest (`read_at`, None before the first). So each key gets
    its turn, however many there are.
    """
    if len(keys) <= most:
        return list(keys)

    def age(key: K) -> float:
        at = read_at(key)
        return float("-inf") if at is None else at

    urgent = nsmallest(most // 2, filter(is_urgent, keys), key=age)
    taken = set(urgent)
    others = nsmallest(most - len(urgent), (key for key in keys if key not in taken), key=age)
    return urgent + others


def chunks(keys: Iterable[K], size: int) -> list[list[K]]:
    """Return the keys in lists of at most `size`."""
    found = list(keys)
    return [found[begin : begin + size] for begin in range(0, len(found), size)]
