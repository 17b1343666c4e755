"""The locks of clients, which code that interrupts their owner may need again.

Python runs signal handlers, finalizers (`__del__`), callbacks of weak references and handlers of `logging` between any
two instructions of a thread. If the thread holds a lock, such code would wait forever for that lock, or for the event
loop, which needs it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from oncelog import errors

INTERRUPTS = "a signal handler, __del__, a weakref callback or a logging handler"

_ALL: dict[int, weakref.ref[Guard]] = {}


class Guard:
    """A lock that knows whether the calling thread owns it. As a context manager, it refuses to be entered again."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Of this kind only because that one can tell its owner; no code acquires it twice."""
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
        """Raise UsageError if the calling thread holds the lock, because the code that interrupts it must not wait."""
        if self.owned():
            raise _interrupted(what)


def refuse_under_guard(what: str) -> None:
    """Raise UsageError if the calling thread holds any guard: then the event loop of all clients may wait for it."""
    for found in list(_ALL.values()):
        guard = found()
        if guard is not None and guard.owned():
            raise _interrupted(what)


def _interrupted(what: str) -> errors.UsageError:
    return errors.UsageError(
        f"{what} cannot run inside another call of the same thread, which {INTERRUPTS} has interrupted; set a flag "
        "there, and make the call after the other one has returned"
    )
