"""The first step of a coroutine without a task: most that may wait need not, and a task is all that they would cost."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def step(work: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """Run `work` up to its first wait: what it returns, or the rest of it, to be awaited. Raises what it raises.

    That step belongs to no task (`asyncio.current_task()` is None, so `asyncio.timeout` cannot be entered there).
    From Python 3.12 on `asyncio.eager_task_factory` does the like.
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    return _rest(work, waits_for)


@coroutine
def _rest(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """What `yield from work` does, for a coroutine that waits already."""
    try:
        while True:
            try:
                sent = yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # noqa: BLE001 - a cancellation above all: `work` decides
                waits_for = None  # this frame is in the error's traceback, and that future would hold the error
                waits_for = work.throw(error)
            else:
                waits_for = work.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result
