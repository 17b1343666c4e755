"""Admit the connections of a server: tell each one the decision of `Admission`, and log the refusals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from oncelog.net.admission import INSIDE, MOST_WAITING, REFUSED, WAITS, Admission, Arrival, ConnectionQuotas
from oncelog.net.repeated_lines import RepeatedLines
from oncelog.net.session import CLOSED, OUTSIDE, Session


class Admitted(Protocol):
    """A connection."""

    session: Session


T = TypeVar("T", bound=Admitted)


def most_idle(connections: Iterable[T], protected: str, count: int) -> list[T]:
    """Return the open connections of listeners that are not protected which will be idle first, at most `count`."""
    others = [
        each
        for each in connections
        if each.session.listener.name != protected and not each.session.muted & (CLOSED | OUTSIDE)
    ]
    return sorted(others, key=lambda each: each.session.idle_from)[:count]


class Entrance:
    """Where connections wait. `shed(n)` closes the `n` most idle connections of listeners that are not protected."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        quotas: ConnectionQuotas,
        lines: RepeatedLines,
        shed: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._lines = lines
        self._shed = shed
        self._admission = Admission(quotas)
        self._timer: asyncio.TimerHandle | None = None
        self._delayed = 0
        """The number of connections whose refusal is delayed."""

    @property
    def quotas(self) -> ConnectionQuotas:
        """The limits that apply now."""
        return self._admission.quotas

    @property
    def waiting(self) -> int:
        """The number of connections that wait."""
        return self._admission.waiting

    @property
    def protected(self) -> str:
        """The listener of the brokers, if there is another one; otherwise empty."""
        return self._admission.protected

    def protect(self, listener: str) -> None:
        """Protect the listener of the brokers."""
        self._admission.protected = listener

    def limit(self, quotas: ConnectionQuotas) -> None:
        """Apply other limits. If there are too many connections now, the most idle ones are closed."""
        self._admission.quotas = quotas
        self._act(self._admission.settle(self._loop.time()))

    def arrive(self, arrival: Arrival) -> None:
        """Decide about a new connection now or later: its state is INSIDE or REFUSED when `decided` is called."""
        self._act(self._admission.arrive(self._loop.time(), arrival))
        if arrival.state == WAITS:
            text = f"connections of listener {arrival.listener} wait: {arrival.reason}"
            self._lines.log("waiting connections", arrival.address, text, level=logging.WARNING)

    def leave(self, arrival: Arrival) -> None:
        """Remove a connection that has ended or no longer waits. A second call has no effect."""
        self._act(self._admission.leave(self._loop.time(), arrival))

    def close(self) -> None:
        """Decide nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _act(self, decided: list[Arrival]) -> None:
        for arrival in decided:
            if arrival.state == REFUSED:
                self._refuse(arrival)
            elif arrival.state == INSIDE:
                arrival.decided(arrival)
        if (excess := self._admission.excess) > 0:
            self._shed(excess)
        self._schedule()

    def _refuse(self, arrival: Arrival) -> None:
        text = f"refused a connection of {arrival.address} to listener {arrival.listener}: {arrival.reason}"
        self._lines.log("refused connections", arrival.address, text, level=logging.WARNING)
        if arrival.delay_s and self._delayed < MOST_WAITING:
            self._delayed += 1
            self._loop.call_later(arrival.delay_s, self._refuse_now, arrival)
        else:
            arrival.decided(arrival)

    def _refuse_now(self, arrival: Arrival) -> None:
        self._delayed -= 1
        arrival.decided(arrival)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self._admission.next_at(self._loop.time())
        if at is not None:
            self._timer = self._loop.call_at(at, self._due)

    def _due(self) -> None:
        self._timer = None
        self._act(self._admission.settle(self._loop.time()))
