"""The metadata tree in memory, with hooks that fail or precede its changes and reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oncelog.cluster.store import Node, Operation
from oncelog.cluster.store_memory import MemoryStore

Hook = Callable[[Any], object]


def ignore(_: object) -> None:
    """Do nothing, as a hook."""


def fail(error: Exception) -> Callable[..., None]:
    """Return a hook that raises this error."""

    def hook(*_: object) -> None:
        raise error

    return hook


class Once:
    """A hook that calls `work` the first time that `when` is true, or the first `left` times."""

    def __init__(self, work: Callable[[], object], when: Hook = lambda _: True, left: int = 1) -> None:
        self._work = work
        self._when = when
        self.left = left

    def __call__(self, what: object) -> None:
        if self.left and self._when(what):
            self.left -= 1
            self._work()


class FailingStore(MemoryStore):
    """A tree that calls `before` and `after` with the operations of each change, `before_get` with each path read.

    The default hooks do nothing. A hook may raise an error, or change the tree.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: 0, *, before: Hook = ignore) -> None:
        super().__init__(now_ms)
        self.before = before
        self.after: Hook = ignore
        self.before_get: Hook = ignore

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            self.before_get(path)
        return super().get_many(paths)

    def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        self.before(operations)
        super().multi(operations, session=session)
        self.after(operations)
