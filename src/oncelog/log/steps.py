"""Long work as a generator: it yields where others may have their turn, and returns its result at its end."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def at_once(work: Steps[T]) -> T:
    """Carry out work without a pause; return what it returns."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        result: T = done.value
        return result
