"""Let one part of a broker call later parts when something happens, without knowing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """Functions to call when something happens, in the order in which they subscribed."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def subscribe(self, *subscribers: Callable[P, object]) -> None:
        """Add functions. They get the arguments of each call of the event."""
        self._subscribers += subscribers

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all subscribers."""
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)
