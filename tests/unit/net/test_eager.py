"""Run the first step of a coroutine, and the rest in a task."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.net.eager import start_eagerly


async def _answer(value: str) -> str:
    return value


def test_coroutine_that_does_not_wait_completes_without_a_loop() -> None:
    assert start_eagerly(_answer("now")) == "now"


def test_error_of_the_first_step_is_raised() -> None:
    async def fails() -> str:
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        start_eagerly(fails())


def test_remaining_steps_run_in_a_task() -> None:
    async def body() -> None:
        gates = [asyncio.get_running_loop().create_future() for _ in range(2)]
        seen: list[str] = []

        async def waits() -> str:
            for gate in gates:
                seen.append(await gate)
                await asyncio.sleep(0)
            return "".join(seen)

        rest = start_eagerly(waits())
        assert not isinstance(rest, str)
        task = asyncio.ensure_future(rest)
        gates[0].set_result("a")
        gates[1].set_result("b")
        assert await task == "ab"

    asyncio.run(body())


def test_errors_and_cancellations_reach_a_waiting_coroutine() -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        cleaned: list[str] = []

        async def recovers(gate: asyncio.Future[str]) -> str:
            try:
                return await gate
            except LookupError:
                return await _answer("recovered")
            finally:
                cleaned.append("left")

        gate: asyncio.Future[str] = loop.create_future()
        rest = start_eagerly(recovers(gate))
        assert not isinstance(rest, str)
        gate.set_exception(LookupError())
        assert await rest == "recovered"

        rest = start_eagerly(recovers(loop.create_future()))
        assert not isinstance(rest, str)
        task = asyncio.ensure_future(rest)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == ["left", "left"]

    asyncio.run(body())
