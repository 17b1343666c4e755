"""Log that a broker does not answer a request. A hung broker keeps its connections, so nothing else fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from oncelog.client import troubles


def unanswered(broker: str, request: str, seconds: float) -> str:
    """Return why a client waits for the response of a broker."""
    return f"{broker} has not answered {request} for {seconds:.0f} s. Check that it runs and is not overloaded"


@contextmanager
def noticed(waits: troubles.Troubles, subject: Hashable, broker: str, request: str) -> Iterator[None]:
    """Record a wait in `waits` if this block, which awaits one response, takes longer than SILENT_SECONDS."""
    silent = troubles.SILENT_SECONDS
    fired = False

    def late() -> None:
        nonlocal fired
        fired = True
        waits.waiting(subject, unanswered(broker, request, silent), lasted_s=silent)

    timer = asyncio.get_running_loop().call_later(silent, late)
    try:
        yield
        if fired:
            waits.over(subject)
    finally:
        timer.cancel()
