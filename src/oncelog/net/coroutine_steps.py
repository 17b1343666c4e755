"""Run a coroutine step by step, to measure the time that its steps take on the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


@coroutine
def in_steps(work: Awaitable[T], begins: Callable[[], None], ends: Callable[[], None]) -> Generator[Any, Any, T]:
    """Do what `await work` does. Call `begins` before each step on the event loop, and `ends` after it."""
    steps = work if isinstance(work, Coroutine) else work.__await__()
    sent: Any = None
    failed: list[BaseException] = []  # emptied before the throw: this frame is in the error's traceback
    while True:
        begins()
        try:
            waits_for = steps.throw(failed.pop()) if failed else steps.send(sent)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            ends()
        try:
            sent = yield waits_for
        except GeneratorExit:
            steps.close()
            raise
        except BaseException as error:  # noqa: BLE001 - `work` handles all exceptions, cancellations above all
            waits_for = None  # that future would hold the error, whose traceback has this frame
            failed.append(error)
