"""Let one part of a broker tell later parts what happens, without knowing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """Something that happens. A call of the event calls its subscribers, in the order in which they subscribed."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def subscribe(self, *subscribers: Callable[P, object]) -> None:
        """Call these functions each time it happens. They get the arguments of the event."""
        self._subscribers += subscribers

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Say that it happens."""
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)
