"""Requests that arrive later."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from oncelog.faults.requests import Request
from oncelog.faults.streams import MAX_RESPONSE, CutError, Stream

MOST_HELD = 100
"""Requests that are held at a time, each with its connection to a broker. Further ones are lost."""
DELIVER_S = 60.0
"""How long a held request waits for its response."""

logger = logging.getLogger("oncelog.faults")


class Held(NamedTuple):
    """A request that arrives later, over the connection that it was meant for."""

    upstream: Stream
    request: Request
    seconds: float | None

    async def deliver(self) -> bool:
        """Send the request, and wait for its response. Return False if the broker has closed the connection."""
        try:
            async with asyncio.timeout(DELIVER_S):
                await self.upstream.write_frame(self.request.frame)
                while self.request.answered:
                    answer = await self.upstream.read_frame(MAX_RESPONSE)
                    if answer is None:
                        return False
                    if answer[:4] == self.request.correlation_id.to_bytes(4, "big", signed=True):
                        break
        except (CutError, TimeoutError):
            return False
        finally:
            self.upstream.close()
        return True


class HeldRequests:
    """Keep requests until their time, or until `release`. For one event loop."""

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._deliveries: set[asyncio.Task[bool]] = set()
        """References to tasks, because the event loop keeps none."""

    def keep(self, held: Held) -> bool:
        """Keep a request. Return False if too many are held: it is lost."""
        if len(self._held) >= MOST_HELD:
            logger.warning("%d requests are held, so this one is lost: %s", MOST_HELD, held.request)
            return False
        self._held.append(held)
        if held.seconds is not None:
            asyncio.get_running_loop().call_later(held.seconds, self._deliver_soon, held)
        return True

    async def release(self) -> int:
        """Let those without a time arrive, one after the other. Return how many the brokers have answered."""
        return sum([await self._deliver(each) for each in self._held.copy() if each.seconds is None])

    def close(self) -> None:
        """Close the connections of those that are held."""
        for held in self._held:
            held.upstream.abort()

    async def _deliver(self, held: Held) -> bool:
        if held not in self._held:
            return False
        self._held.remove(held)
        return await held.deliver()

    def _deliver_soon(self, held: Held) -> None:
        task = asyncio.create_task(self._deliver(held))
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)
