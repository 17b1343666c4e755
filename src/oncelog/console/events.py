"""Send the states of a page to a browser as server-sent events.

An event `page` has JSON with the HTML of the content, the time of the state, and a notice if the brokers do not answer.
A browser that does not read for `STALL_S` is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oncelog.console.watches import Snapshot, TooManyError

STALL_S = 20.0
QUIET_S = 15.0
"""After this time without an event, a comment shows whether the browser is still there."""


class EventStream(Response):
    """Stream the events of an address until the browser leaves. `notice` returns an error as HTML,
    and `cost` what the console costs."""

    media_type = "text/event-stream"

    def __init__(
        self, states: AsyncGenerator[Snapshot, None], notice: Callable[[Snapshot], str], cost: Callable[[], str]
    ) -> None:
        super().__init__(media_type=self.media_type)
        self._states = states
        self._notice = notice
        self._cost = cost
        del self.headers["content-length"]
        self.headers["x-accel-buffering"] = "no"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until one side ends."""
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._states) as states:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send(send, b"retry: 1000\n\n")
            waiting = asyncio.ensure_future(anext(states))
            try:
                while True:
                    done, _ = await asyncio.wait((waiting,), timeout=QUIET_S)
                    if not done:
                        await _send(send, b":\n\n")
                        continue
                    state = waiting.result()
                    await _send(send, self._event(state))
                    if state.page is not None and not state.page.live:
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                        return
                    waiting = asyncio.ensure_future(anext(states))
            except (StopAsyncIteration, TooManyError):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, TooManyError):
                    await waiting

    def _event(self, state: Snapshot) -> bytes:
        notice = self._notice(state)
        data = {
            "at": state.at_ms,
            "live": state.page is None or state.page.live,
            "title": "" if state.page is None else state.page.title,
            "html": notice if state.page is None else state.html,
            "notice": "" if state.page is None else notice,
            "cost": self._cost(),
        }
        return f"id: {state.number}\nevent: page\ndata: {json.dumps(data)}\n\n".encode()


async def _send(send: Send, body: bytes) -> None:
    async with asyncio.timeout(STALL_S):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
