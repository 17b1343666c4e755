"""Wait until the records that one request has appended to several partitions are committed. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from oncelog.cluster.leader import Leadership
from oncelog.cluster.replica import Replica
from oncelog.cluster.waits import WAITS_A_PART, Outcome, Wait
from oncelog.protocol.errors import ErrorCode


class Commits:
    """The waits of one request: `add` one for each of its partitions."""

    __slots__ = ("_done", "_left", "_waits", "errors")

    def __init__(self, count: int, done: Callable[[list[ErrorCode]], object]) -> None:
        """Call `done(errors)` once, when all of `count` partitions are committed or lost, perhaps within `add`.

        If there are none, call it at once.
        """
        self.errors = [ErrorCode.REQUEST_TIMED_OUT] * count
        """The error of each partition in the order of `add`: NONE after the commit, or why its records are lost."""
        self._done: Callable[[list[ErrorCode]], object] | None = done
        self._left = count
        self._waits: list[Wait | None] = []
        if not count:
            self.give_up()

    def add(self, replica: Replica, offset: int, term: Leadership | None = None, *, stored: bool = False) -> None:
        """Wait until the record at `offset` is committed, or with `stored` until it is stored on this broker.

        If other code has run since the append, pass its term: see `Replica.when_committed`.
        """
        ended = partial(Commits._ended, self, len(self._waits))
        self._waits.append(None)
        when = replica.when_stored if stored else replica.when_committed
        self._waits[-1] = when(offset, ended, term)

    def _ended(self, index: int, error: ErrorCode) -> None:
        self.errors[index] = error
        self._left -= 1
        if not self._left:
            self.give_up()

    def give_up(self) -> None:
        """Call `done`, unless it was called: the request waits no longer."""
        done, self._done = self._done, None
        if done is not None:
            done(self.errors)

    def close(self, later: Callable[[Callable[[], None]], object]) -> None:
        """End the waits that are left. `done` is not called any more.

        `later` runs a function after other requests have had their turn.
        """
        self._done = None
        if self._left:
            self._cancel(later)

    def _cancel(self, later: Callable[[Callable[[], None]], object]) -> None:
        some = self._waits[-WAITS_A_PART:]
        del self._waits[-WAITS_A_PART:]
        for wait in some:
            if wait is not None:
                wait.finish(Outcome.CANCELLED)
        if self._waits:
            later(partial(self._cancel, later))
