"""The locks of clients. They detect a call that interrupts another call of the thread that holds the lock.

Python runs signal handlers, finalizers (`__del__`) and callbacks of weak references between any two instructions of a
thread, and handlers of `logging` when a call logs. If the thread holds a lock, such code would wait forever for that
lock, or for the event loop, which needs it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from oncelog import errors

INTERRUPTS = "a signal handler, __del__, a weakref callback or a logging handler"

_ALL: dict[int, weakref.ref[Guard]] = {}


class Guard:
    """A lock that reports whether the calling thread holds it. Entering it again raises UsageError."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """An RLock, because only this kind reports its owner. No code acquires it twice."""
        self.owned: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]
        """Whether the calling thread holds the lock."""
        key = id(self)
        _ALL[key] = weakref.ref(self, lambda _: _ALL.pop(key, None))

    def __enter__(self) -> None:
        self.refuse_again("this call")
        self.lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self.lock.release()

    def refuse_again(self, what: str) -> None:
        """Raise UsageError if the calling thread holds the lock. `what` is the call that would wait forever."""
        if self.owned():
            raise _interrupted(what)


class GuardedCondition(threading.Condition):
    """A condition whose lock is that of a guard. By default, the guard is a new one."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard or Guard()
        super().__init__(self.guard.lock)


def refuse_under_guard(what: str) -> None:
    """Raise UsageError if the calling thread holds any guard, because the clients' event loop may wait for it."""
    for found in list(_ALL.values()):
        guard = found()
        if guard is not None and guard.owned():
            raise _interrupted(what)


def _interrupted(what: str) -> errors.UsageError:
    return errors.UsageError(
        f"{what} cannot run inside another call of the same thread, which {INTERRUPTS} has interrupted; set a flag "
        "there, and make the call after the other one has returned"
    )
