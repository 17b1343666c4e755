"""One client's connection through the proxy, and its connection to the broker.

Responses keep the order of their requests, as Kafka's clients require: a response of the proxy waits for those before
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from oncelog.faults.held import Held
from oncelog.faults.requests import Request
from oncelog.faults.rules import Action, Fault
from oncelog.faults.streams import MAX_REQUEST, MAX_RESPONSE, CutError, Stream

MOST_UNANSWERED = 1_000
"""Requests of a connection that may wait for their responses. Then the proxy reads no more of them."""


class Proxying(Protocol):
    """What a link uses of its proxy."""

    def decide(self, frame: bytes) -> tuple[Request, Fault]:
        """Return the request in a frame, and its fault."""

    async def rewrite(self, request: Request, frame: bytes, host: str) -> bytes:
        """Return the response with the proxy's addresses, which clients reach at `host`."""

    def hold(self, held: Held) -> bool:
        """Keep a request that arrives later. Return False if too many are held: it is lost."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A response that the client or the proxy waits for."""

    request: Request
    instead: bytes | None = None
    """What the client gets instead of the broker's response."""
    seconds: float = 0
    """How long the client waits for that."""
    arrives: bool = True
    """Whether the broker answers."""
    drop: bool = False
    lose: bool = False


class Link:
    """Forward between a client and a broker until one of them closes its connection, or a fault does."""

    def __init__(self, proxy: Proxying, client: Stream, upstream: Stream) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream = upstream
        self._host: str = client.writer.get_extra_info("sockname")[0]
        self._expected: asyncio.Queue[_Expected] = asyncio.Queue(MOST_UNANSWERED)
        self._frames: asyncio.Queue[bytes] = asyncio.Queue(1)
        """What the broker has sent, for `_forward_responses`."""
        self._silent = False
        self._held: Held | None = None

    async def run(self) -> str:
        """Return why the link has ended, if that is worth a line."""
        work = self._forward_requests(), self._read_responses(), self._forward_responses()
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:  # the proxy closes, and ends the tasks
            self._client.abort()
            self._upstream.abort()
            raise
        if self._held is None or not self._proxy.hold(self._held):  # nothing else reads from the broker now
            self._upstream.close()
        self._client.close()
        return "; ".join(filter(None, (str(task.exception() or "") for task in done)))

    async def _forward_requests(self) -> None:
        while (frame := await self._client.read_frame(MAX_REQUEST)) is not None:
            if self._silent:
                continue
            request, fault = self._proxy.decide(frame)
            await _STEPS[fault.action](self, request, fault)

    async def _read_responses(self) -> None:
        """Read until the broker closes its connection, also while no response is expected. Then the link ends."""
        while (frame := await self._upstream.read_frame(MAX_RESPONSE)) is not None:
            await self._frames.put(frame)
        await self._frames.join()
        if self._silent:
            await asyncio.get_running_loop().create_future()  # the client must not notice

    async def _forward_responses(self) -> None:
        while True:
            expected = await self._expected.get()
            frame = await self._frames.get() if expected.arrives else b""
            if expected.lose:
                return
            if expected.instead is not None:
                await asyncio.sleep(expected.seconds)
                await self._client.write_frame(expected.instead)
            elif not expected.drop:
                await self._client.write_frame(await self._proxy.rewrite(expected.request, frame, self._host))
            if expected.arrives:
                self._frames.task_done()

    # -- what happens to a request ------------------------------------------------------------------------------------

    async def _forward(self, expected: _Expected) -> None:
        await self._upstream.write_frame(expected.request.frame)
        if expected.request.answered:
            await self._expected.put(expected)

    async def _pass(self, request: Request, fault: Fault) -> None:
        await self._forward(_Expected(request))

    async def _close(self, request: Request, fault: Fault) -> None:
        raise CutError

    async def _lose_answer(self, request: Request, fault: Fault) -> None:
        await self._forward(_Expected(request, lose=True))
        self._require_answer(request)

    async def _cut(self, request: Request, fault: Fault) -> None:
        await self._upstream.write_frame(request.frame)
        raise CutError

    async def _hold(self, request: Request, fault: Fault) -> None:
        self._held = Held(self._upstream, request, fault.seconds)
        raise CutError

    async def _delay(self, request: Request, fault: Fault) -> None:
        await asyncio.sleep(fault.seconds or 0)
        await self._forward(_Expected(request))

    async def _duplicate(self, request: Request, fault: Fault) -> None:
        await self._forward(_Expected(request))
        await self._forward(_Expected(request, drop=True))

    async def _answer(self, request: Request, fault: Fault) -> None:
        error = request.error(fault.code)
        if error is None or not request.answered:
            raise CutError
        await self._expected.put(_Expected(request, error, fault.seconds or 0, arrives=False))

    async def _answer_after(self, request: Request, fault: Fault) -> None:
        error = request.error(fault.code)
        await self._forward(_Expected(request, error, fault.seconds or 0, lose=error is None))
        self._require_answer(request)

    def _require_answer(self, request: Request) -> None:
        """Close the connection after a Produce with acks=0, as brokers do if it fails."""
        if not request.answered:
            raise CutError

    async def _swallow(self, request: Request, fault: Fault) -> None:
        self._silent = True


_STEPS: dict[Action, Callable[[Link, Request, Fault], Awaitable[None]]] = {
    Action.PASS: Link._pass,
    Action.LOSE_REQUEST: Link._close,
    Action.LOSE_ANSWER: Link._lose_answer,
    Action.CUT: Link._cut,
    Action.HOLD: Link._hold,
    Action.DELAY: Link._delay,
    Action.DUPLICATE: Link._duplicate,
    Action.ERROR: Link._answer,
    Action.ERROR_AFTER: Link._answer_after,
    Action.SILENCE: Link._swallow,
}
