"""Load each page once for all who look at it, and only while somebody does.

A `Watch` belongs to one address. The first viewer starts its loop, the last one ends it. A viewer that is slow gets the
newest state when it is ready, and nothing is kept for it in between. After a load, the loop rests at least as long as
`REST` times the load took, so a cluster that answers slowly is asked less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from oncelog import errors
from oncelog.console.model import Page, PageError, page_error_of

log = logging.getLogger("oncelog.console")

INTERVAL_S = 0.5
"""The shortest time between two loads of an address."""
REST = 3.0
LONGEST_REST_S = 10.0
SHARED_S = 1.0
"""How old a state may be that a new request gets without a load of its own."""
KEPT_S = 30.0
"""How long the state and the memory of an address are kept after the last request for it."""
MOST_WATCHES = 200
MOST_VIEWERS = 200
MOST_WAITING = 64
"""How many requests may wait for the state of a page."""
LOADS_AT_ONCE = 4
LOAD_TIMEOUT_S = 15.0
"""How long a page is waited for. It should end earlier, with what the other brokers know."""


@dataclass(frozen=True)
class Snapshot:
    """A state of an address: its page and the HTML of its content, or why it has none. `number` grows with each state.

    After a failed load, `page_error` comes with the last page that was loaded, if any, at the loop's time `at`.
    """

    number: int
    at: float
    at_ms: int
    page: Page | None
    html: str
    page_error: PageError | None = None


Load = Callable[[dict[str, Any]], Awaitable[Page]]
"""Load a page. The argument is the memory of its watch."""


@dataclass
class Watch:
    """An address, with the viewers that wait for its next state."""

    load: Load
    memory: dict[str, Any] = field(default_factory=dict)
    latest: Snapshot | None = None
    viewers: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked_at: float = 0.0
    loop: asyncio.Task[None] | None = None


class TooManyError(Exception):
    """More viewers or addresses than the console serves."""


class Watches:
    """All addresses that somebody looks at. `render` returns the HTML of a page, `now_ms` the time."""

    def __init__(self, render: Callable[[Page], str], now_ms: Callable[[], int]) -> None:
        self._render = render
        self._now_ms = now_ms
        self._by_address: dict[str, Watch] = {}
        self._turn = asyncio.Semaphore(LOADS_AT_ONCE)
        self._waiting = 0
        self.viewers = 0
        self._stopped = asyncio.Event()

    async def current(self, address: str, load: Load) -> Snapshot:
        """Return a state of an address that is at most `SHARED_S` old. Requests at the same time share one load.

        Raises TooManyError.
        """
        if self._waiting >= MOST_WAITING:
            raise TooManyError(f"{MOST_WAITING} pages wait for the brokers already; try again soon")
        watch, asked = self._watch(address, load), _time()
        self._waiting += 1
        try:
            async with watch.lock:
                latest = watch.latest
                if latest is not None:
                    recent = latest.page_error is None and _time() - latest.at <= SHARED_S
                    if recent or latest.at >= asked:
                        return latest
                return await self._refresh(watch)
        finally:
            self._waiting -= 1

    def require_place(self) -> None:
        """Raise TooManyError if no further viewer is served."""
        if self.viewers >= MOST_VIEWERS:
            raise TooManyError(f"{MOST_VIEWERS} pages are open already; close some of them")

    async def follow(self, address: str, load: Load) -> AsyncGenerator[Snapshot, None]:
        """Yield the present state of an address, and then the newest one whenever it has changed.

        Raises TooManyError.
        """
        self.require_place()
        watch = self._watch(address, load)
        self.viewers += 1
        watch.viewers += 1
        if watch.loop is None:
            watch.loop = asyncio.create_task(self._run(watch))
        try:
            seen = 0
            while not self._stopped.is_set():
                latest = watch.latest
                if latest is not None and latest.number != seen:
                    seen = latest.number
                    yield latest
                    continue
                await watch.changed.wait()
        finally:
            self.viewers -= 1
            watch.viewers -= 1
            watch.asked_at = _time()
            if not watch.viewers and watch.loop is not None:
                watch.loop.cancel()
                watch.loop = None

    def stop(self) -> None:
        """End all that follow an address, because the console ends."""
        self._stopped.set()
        for watch in self._by_address.values():
            watch.changed.set()

    def forget(self) -> None:
        """Load every address again at its next request, because something has just been changed here."""
        for watch in self._by_address.values():
            if watch.latest is not None:
                watch.latest = replace(watch.latest, at=float("-inf"))

    def _watch(self, address: str, load: Load) -> Watch:
        now = _time()
        for other in [
            name for name, each in self._by_address.items() if not each.viewers and now - each.asked_at > KEPT_S
        ]:
            del self._by_address[other]
        watch = self._by_address.get(address)
        if watch is None:
            self._make_room()
            watch = self._by_address[address] = Watch(load)
        watch.asked_at = now
        return watch

    def _make_room(self) -> None:
        """Drop the address that was asked for longest ago, if there are too many."""
        if len(self._by_address) < MOST_WATCHES:
            return
        idle = {name: each.asked_at for name, each in self._by_address.items() if not each.viewers}
        if not idle:
            raise TooManyError(f"{MOST_WATCHES} different pages are open already; close some of them")
        del self._by_address[min(idle, key=lambda name: idle[name])]

    async def _run(self, watch: Watch) -> None:
        rest = INTERVAL_S
        while True:
            begun = _time()
            async with watch.lock:
                latest = watch.latest
                if latest is None or latest.page_error is not None or begun - latest.at >= INTERVAL_S:
                    latest = await self._refresh(watch)
            took = _time() - begun
            rest = min(max(INTERVAL_S, REST * took), LONGEST_REST_S)
            await asyncio.sleep(rest)

    async def _refresh(self, watch: Watch) -> Snapshot:
        """Load the page, and give its state to the viewers if it differs from the last one."""
        before = watch.latest
        async with self._turn:
            page, html, page_error = await self._loaded(watch)
        if page is None and before is not None:
            page, html = before.page, before.html
        now, now_ms = _time(), self._now_ms()
        same = before is not None and before.html == html and before.page_error == page_error
        if page_error is not None and before is not None and before.page is not None:
            now_ms = before.at_ms  # the time of what is still shown
        number = 1 if before is None else before.number + (not same)
        watch.latest = Snapshot(number, now, now_ms, page, html, page_error)
        if not same:
            woken, watch.changed = watch.changed, asyncio.Event()
            woken.set()
        return watch.latest

    async def _loaded(self, watch: Watch) -> tuple[Page | None, str, PageError | None]:
        """Return a page and its HTML, or why there is none."""
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                page = await watch.load(watch.memory)
            return page, self._render(page), None
        except TimeoutError:
            text = f"The brokers have not answered within {LOAD_TIMEOUT_S:g} s."
            return None, "", PageError(503, "The brokers do not answer", text)
        except errors.OncelogError as error:
            return None, "", page_error_of(error)
        except Exception:
            log.exception("a page cannot be shown")
            watch.memory.clear()
            return None, "", PageError(500, "The console has failed", "Its log has the reason.")


def _time() -> float:
    return asyncio.get_running_loop().time()
