"""Log messages about requests and tasks that block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from oncelog.net.eager import start_eagerly
from oncelog.net.server import Chunks, Deferred, Session
from oncelog.net.stalls import StallWatch

LIMIT_MS = 20
HELD_S = 0.1
PEER = Session("here", 1, 7)


def _hold() -> None:
    time.sleep(HELD_S)


@pytest.fixture(autouse=True)
def _captured(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("WARNING", "oncelog.stalls"):
        yield


def _watch() -> StallWatch:
    watch = StallWatch(LIMIT_MS, lambda frame, session: f"request {bytes(frame).decode()} on {session.connection_id}")
    watch.start()
    return watch


def test_request_that_blocks_the_loop_is_logged_with_its_description(caplog: pytest.LogCaptureFixture) -> None:
    def slow(frame: memoryview, session: Session) -> Chunks:
        _hold()
        return [b"answer"]

    async def body() -> None:
        watch = _watch()
        assert watch.handler(slow)(memoryview(b"Fetch"), PEER) == [b"answer"]
        watch.close()

    asyncio.run(body())
    assert caplog.messages[0].startswith("request Fetch on 7 held the event loop for ")


def test_later_step_of_a_request_is_logged_and_its_waits_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def later(hold: bool) -> Chunks:
        await asyncio.sleep(HELD_S)
        if hold:
            _hold()
        return [b"answer"]

    async def body() -> None:
        watch = _watch()
        for hold in (False, True):
            handler = watch.handler(lambda frame, session, hold=hold: Deferred(later(hold)))
            deferred = handler(memoryview(b"%d" % hold), PEER)
            assert isinstance(deferred, Deferred)
            assert await deferred.answer == [b"answer"]
        watch.close()

    asyncio.run(body())
    assert not [text for text in caplog.messages if text.startswith("request 0")]
    assert [text for text in caplog.messages if text.startswith("request 1 on 7 held the event loop for ")]


def test_background_task_that_blocks_the_loop_is_logged_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        _hold()
        return "done"

    async def body() -> None:
        watch = _watch()
        assert await asyncio.create_task(watch.timed(work(), "retention")) == "done"
        watch.close()

    asyncio.run(body())
    assert [text for text in caplog.messages if text.startswith("retention held the event loop for ")]


def test_callback_that_blocks_the_loop_is_logged_with_its_location(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        watch = _watch()
        await asyncio.sleep(HELD_S)
        while not caplog.messages:  # the thread's beat may start after a block: block until it sees one
            asyncio.get_running_loop().call_soon(_hold)
            await asyncio.sleep(HELD_S)
        watch.close()

    asyncio.run(body())
    assert any("a callback held the event loop for " in text and "in _hold (test_stalls.py:" in text
               for text in caplog.messages)  # fmt: skip


def test_cancelled_task_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def body() -> None:
        watch = _watch()
        task = asyncio.create_task(watch.timed(work(), "work"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        watch.close()

    asyncio.run(body())
    assert seen == ["cancelled"]


def test_failed_request_is_freed_without_the_garbage_collector() -> None:
    async def body() -> None:
        watch = _watch()
        for watched in (False, True):
            assert await _is_freed(watch if watched else None), f"watched: {watched}"
        watch.close()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()


class _Held(bytearray):
    """A frame that can be weakly referenced."""


async def _is_freed(watch: StallWatch | None) -> bool:
    """Fail a request in a worker thread. Return whether its frame is freed then."""

    def fails(frame: memoryview) -> None:
        raise ValueError(f"{len(frame)} bytes")

    async def failing(frame: memoryview) -> Chunks:
        await asyncio.to_thread(fails, frame)
        return []

    async def served(frame: memoryview) -> None:
        work = failing(frame)
        with contextlib.suppress(ValueError):
            await start_eagerly(work if watch is None else watch.timed(work, "a request"))  # type: ignore[misc]

    held = _Held(100)
    found = weakref.ref(held)
    await asyncio.create_task(served(memoryview(held)))
    del held
    await asyncio.sleep(0.01)
    return found() is None
