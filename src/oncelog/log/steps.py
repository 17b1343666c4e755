"""Represent long work as a generator. It yields when other work may run, and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]

BATCHES_A_STEP = 300
"""Batches that are read in one step, which takes some ms. Other work costs as much as a number of batches."""
FILE_REMOVED = 6
"""The cost of removing a file, for `Pace`. The unit is the cost of reading a batch."""


def at_once(work: Steps[T]) -> T:
    """Run work without a pause, and return its result."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        result: T = done.value
        return result


class Pace:
    """Decide when long work must pause. Costs are added up, so that one step has many short pieces of work."""

    __slots__ = ("_budget", "_cost")

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._cost = 0

    def is_due(self, cost: int) -> bool:
        """Add the cost of a piece of work, and return whether the work has used up its budget."""
        self._cost += cost
        if self._cost < self._budget:
            return False
        self._cost = 0
        return True
