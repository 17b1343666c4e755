"""Viewers of an address share its loads, and nothing is loaded without a viewer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog import errors
from oncelog.console import watches as module
from oncelog.console.model import Page
from oncelog.console.watches import Snapshot, TooManyError, Watches


class Source:
    """Pages that count how often they were loaded."""

    def __init__(self) -> None:
        self.loads = 0
        self.error: Exception | None = None

    async def load(self, memory: dict[str, Any]) -> Page:
        self.loads += 1
        memory["loads"] = self.loads
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return Page(f"page {self.loads}", "none.html")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    return Source()


def test_requests_at_the_same_time_share_a_load(source: Source) -> None:
    async def run() -> list[Snapshot]:
        made = Watches(lambda page: page.title, lambda: 0)
        return await asyncio.gather(*(made.current("/", source.load) for _ in range(20)))

    assert {state.html for state in asyncio.run(run())} == {"page 1"}
    assert source.loads == 1


def test_slow_viewer_gets_the_newest_state_only(source: Source) -> None:
    async def run() -> tuple[str, str, int]:
        made = Watches(lambda page: page.title, lambda: 0)
        states = made.follow("/", source.load)
        first = (await anext(states)).html
        while source.loads < 10:
            await asyncio.sleep(0.01)
        second = (await anext(states)).html
        await states.aclose()
        loads = source.loads
        await asyncio.sleep(0.1)
        assert source.loads <= loads + 1, "nothing is loaded without a viewer"
        return first, second, made.viewers

    first, second, viewers = asyncio.run(run())
    assert first == "page 1"
    assert int(second.removeprefix("page ")) >= 9
    assert viewers == 0


@pytest.mark.parametrize("error", [errors.ConnectionFailedError("gone"), RuntimeError("a bug")])
def test_failed_load_keeps_the_page_and_says_so(source: Source, error: Exception) -> None:
    async def run() -> Snapshot:
        made = Watches(lambda page: page.title, lambda: 0)
        await made.current("/", source.load)
        source.error = error
        made.forget()
        return await made.current("/", source.load)

    state = asyncio.run(run())
    assert state.html == "page 1"
    assert state.page_error is not None
    assert state.page_error.status in (500, 503)


def test_page_that_cannot_be_rendered_is_an_error(source: Source) -> None:
    def render(page: Page) -> str:
        raise KeyError(page.title)

    async def run() -> Snapshot:
        return await Watches(render, lambda: 0).current("/", source.load)

    state = asyncio.run(run())
    assert state.page is None
    assert state.page_error is not None
    assert state.page_error.status == 500


def test_addresses_and_viewers_are_bounded(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WATCHES", 5)
    monkeypatch.setattr(module, "MOST_VIEWERS", 5)

    async def run() -> None:
        made = Watches(lambda page: page.title, lambda: 0)
        for number in range(50):
            await made.current(f"/{number}", source.load)
        assert len(made._by_address) <= 5
        viewers = [made.follow(f"/seen/{number}", source.load) for number in range(5)]
        for each in viewers:
            await anext(each)
        with pytest.raises(TooManyError):
            await anext(made.follow("/seen/0", source.load))
        with pytest.raises(TooManyError):
            await made.current("/another", source.load)
        for each in viewers:
            await each.aclose()
        await made.current("/another", source.load)

    asyncio.run(run())


def test_requests_at_the_same_time_share_a_failed_load(source: Source) -> None:
    source.error = errors.KafkaError("no")

    async def run() -> None:
        made = Watches(lambda page: page.title, lambda: 0)
        await asyncio.gather(*(made.current("/", source.load) for _ in range(20)))

    asyncio.run(run())
    assert source.loads == 1


def test_requests_that_wait_for_a_load_are_bounded(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 5)

    async def run() -> int:
        made = Watches(lambda page: page.title, lambda: 0)
        found = await asyncio.gather(
            *(made.current(f"/{number}", source.load) for number in range(20)), return_exceptions=True
        )
        assert (await made.current("/", source.load)).html == "page 6", "later ones are served"
        return sum(isinstance(each, TooManyError) for each in found)

    assert asyncio.run(run()) == 15
