"""Call blocking functions in threads of their own, which no other work of the program can occupy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar, cast

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a new daemon thread. The program can end even if the function never returns.

    If the function raises SystemExit or another error that is no Exception, raise RuntimeError: the event loop of the
    coroutine would end otherwise.
    """
    done: Future[tuple[T | None, BaseException | None]] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = function(), None
        except BaseException as error:  # noqa: BLE001 - raised in the coroutine
            outcome = None, error
        done.set_result(outcome)

    threading.Thread(target=run, name="oncelog-call", daemon=True).start()
    result, error = await asyncio.wrap_future(done)
    if isinstance(error, Exception):
        raise error
    if error is not None:
        raise RuntimeError(repr(error)) from error
    return cast(T, result)
