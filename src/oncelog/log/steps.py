"""Represent long work as a generator. It yields when other work may run, and returns its result."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def at_once(work: Steps[T]) -> T:
    """Run work without a pause, and return its result."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        result: T = done.value
        return result
