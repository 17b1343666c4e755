"""Keep the counts of each topic."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Generic, Protocol, TypeVar

from oncelog.client.metrics.stats import Stat, Windows


class Recorder(Protocol):
    """Counts the records of one topic in `stats`."""

    @property
    def stats(self) -> Iterable[Stat]:
        """Return all `Stat`s of this recorder."""


R = TypeVar("R", bound=Recorder)


class ByTopic(Generic[R]):
    """The recorders of a client's topics. `make` creates that of a new topic. Any thread may call all methods."""

    def __init__(self, windows: Windows, make: Callable[[Windows], R]) -> None:
        self._windows = windows
        self._make = make
        self._found: dict[str, R] = {}

    def __getitem__(self, topic: str) -> R:
        found = self._found.get(topic)
        return self._added(topic) if found is None else found

    def _added(self, topic: str) -> R:
        made = self._make(self._windows)
        found = self._found.setdefault(topic, made)
        if found is not made:  # another thread was faster
            self._windows.drop(made.stats)
        return found

    def items(self) -> list[tuple[str, R]]:
        """Return (topic, recorder) of all topics."""
        return list(self._found.copy().items())

    def keep(self, topics: Container[str]) -> None:
        """Drop the counts of all other topics."""
        for topic in self._found.copy():
            if topic not in topics:
                self.drop(topic)

    def drop(self, topic: str) -> None:
        """Drop the counts of a topic."""
        found = self._found.pop(topic, None)
        if found is not None:
            self._windows.drop(found.stats)
