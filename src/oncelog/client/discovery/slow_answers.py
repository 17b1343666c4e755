"""Log that a broker does not answer a request. A hung broker keeps its connections, so nothing else fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager

from oncelog.client import troubles


def unanswered(broker: str, request: str, seconds: float) -> str:
    """Return why a client waits for the response of a broker."""
    return f"{broker} has not answered {request} for {seconds:.0f} s. Check that it runs and is not overloaded"


def unconnected(broker: str, advice: str) -> str:
    """Return why a client waits for a connection. `broker` is the subject of the sentence."""
    return f"{broker} accepted a connection for {troubles.SILENT_SECONDS:.0f} s. {advice}"


def noticed(
    waits: troubles.Troubles, subject: Hashable, broker: str, request: str, *, may_take_s: float = 0.0
) -> AbstractContextManager[None]:
    """Record a wait in `waits` if this block, which awaits one response, takes longer than SILENT_SECONDS.

    `may_take_s`: how much longer the broker may take, because the request says so.
    """
    seconds = troubles.SILENT_SECONDS + may_take_s
    return slow(waits, subject, unanswered(broker, request, seconds), seconds)


@contextmanager
def slow(
    waits: troubles.Troubles, subject: Hashable, why: str, seconds: float = troubles.SILENT_SECONDS
) -> Iterator[None]:
    """Record in `waits` why the client waits if this block takes longer than `seconds`."""
    fired = False

    def late() -> None:
        nonlocal fired
        fired = True
        waits.waiting(subject, why, lasted_s=seconds)

    timer = asyncio.get_running_loop().call_later(seconds, late)
    try:
        yield
        if fired:
            waits.over(subject)
    finally:
        timer.cancel()
