"""Run a coroutine's first step without creating a task. Most handlers finish in that step."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def start_eagerly(work: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """Run `work` up to its first wait. Return its result, or an awaitable for the rest. Raises what `work` raises.

    The first step belongs to no task: `asyncio.current_task()` is None there, and `asyncio.timeout` cannot be entered.
    From Python 3.12 on, `asyncio.eager_task_factory` is similar.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    return _rest(work, waits_for)


@coroutine
def _rest(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """Do what `yield from work` does, for a coroutine that already waits."""
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - `work` handles all exceptions, cancellations above all
                waits_for = None  # this frame is in the error's traceback, and that future would hold the error
                waits_for = work.throw(error)
            else:
                waits_for = work.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result
