"""Processes that are paused, and machines with clocks of their own. A service that relies on them is caught."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog.sim.clock import EPOCH_MS, Clock
from oncelog.sim.machine import Machine
from oncelog.sim.world import World
from support.toys import Caller, run, serve

LEASE_S = 10.0


# -- pauses ------------------------------------------------------------------------------------------------------------


async def tick(seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        seen.append(time.monotonic())


def test_paused_process_continues_after_it_resumes() -> None:
    async def scenario(world: World) -> None:
        seen: list[float] = []
        machine = world.machine("a", lambda _: tick(seen))
        await machine.start()
        await asyncio.sleep(2.5)
        machine.pause()
        machine.pause()
        await asyncio.sleep(10)
        assert (seen, machine.alive) == ([1, 2], True)
        machine.resume()
        machine.resume()
        await asyncio.sleep(2)
        assert seen == [1, 2, 12.5, 13.5]

    run(scenario)


def test_callbacks_of_a_pause_run_in_order_unless_they_are_cancelled() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def main(_: Machine) -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(3, seen.append, "late")
            cancelled = loop.call_later(2, seen.append, "cancelled")
            loop.call_later(1, lambda: (seen.append("early"), cancelled.cancel()))

        machine = world.machine("a", main)
        await machine.start()
        await asyncio.sleep(0.5)
        machine.pause()
        await asyncio.sleep(10)
        machine.resume()
        await asyncio.sleep(0.1)
        assert seen == ["early", "late"]

    run(scenario)


def test_killed_process_does_not_resume() -> None:
    async def scenario(world: World) -> None:
        seen: list[float] = []
        machine = world.machine("a", lambda _: tick(seen))
        await machine.start()
        machine.pause()
        await asyncio.sleep(5)
        machine.kill()
        machine.resume()
        await asyncio.sleep(5)
        assert (seen, machine.alive) == ([], False)
        await machine.start()
        with pytest.raises(RuntimeError, match="runs already"):
            await machine.start()
        await asyncio.sleep(1.5)
        assert seen == [11]

    run(scenario)


def test_paused_server_accepts_connections_and_answers_later() -> None:
    async def scenario(world: World) -> None:
        async def echo(line: str) -> str:
            return line

        machine = world.machine("a", lambda _: serve("a", echo))
        await machine.start()
        await asyncio.sleep(0.1)
        machine.pause()
        caller = await Caller.connect("a")
        caller.send("hello")
        answer = asyncio.create_task(caller.receive())
        await asyncio.sleep(60)
        assert not answer.done()
        machine.resume()
        assert await answer == "hello"
        caller.close()

    run(scenario)


# -- clocks ------------------------------------------------------------------------------------------------------------


def test_machines_have_clocks_of_their_own() -> None:
    async def scenario(world: World) -> list[list[float]]:
        seen: list[list[float]] = []

        async def main(_: Machine) -> None:
            before = time.monotonic(), time.time()
            await asyncio.sleep(100)
            seen.append([before[0], time.monotonic(), before[1] - EPOCH_MS / 1000, time.time() - EPOCH_MS / 1000])
            seen.append([asyncio.get_running_loop().time(), (world.now_ms() - EPOCH_MS) / 1000, world.loop.now])

        world.skew("fast", rate=2.0, boot_s=5000, drift=0.5, wall_ms=-7000)
        await world.machine("fast", main).start()
        await asyncio.sleep(51)
        world.set_clock(3000, "fast")
        assert [time.monotonic(), time.time() - EPOCH_MS / 1000] == [51, 51]  # the client's are right
        with pytest.raises(RuntimeError, match="has a clock already"):
            world.skew("fast")
        return seen

    assert run(scenario) == [[5000, 5100, -7, 143], [5100, 143, 50]]


def test_timers_never_fire_early_by_the_clock_of_their_process() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        clock = Clock(rate=rng.uniform(0.5, 2), boot_s=rng.uniform(0, 1e6))
        local = clock.monotonic(rng.uniform(0, 1000)) + rng.uniform(0, 100)
        assert 0 <= clock.monotonic(clock.when(local)) - local < 1e-6
    for wrong in ({"rate": 0.0}, {"rate": float("nan")}, {"drift": -1.0}):
        with pytest.raises(ValueError, match="rate > 0"):
            Clock(**wrong)


# -- a wrong service ---------------------------------------------------------------------------------------------------


class Lock:
    """A lock whose holder may write for a time. It sees two holders at work at the same time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.holder = ""
        self.until = 0.0
        self.overlaps: list[str] = []

    def acquire(self, name: str) -> bool:
        if self.holder != name and self.world.loop.now < self.until:
            return False
        self.holder, self.until = name, self.world.loop.now + LEASE_S
        return True

    def write(self, name: str) -> None:
        if self.holder != name:
            self.overlaps.append(name)


def worker(lock: Lock) -> Callable[[Machine], Coroutine[Any, Any, None]]:
    """A wrong service: it trusts its own clock to tell it whether it still has the lock."""

    async def work(machine: Machine) -> None:
        until = 0.0
        while True:
            if time.monotonic() < until:
                await asyncio.sleep(0.1)  # it computes what to write
                lock.write(machine.name)
            elif lock.acquire(machine.name):
                until = time.monotonic() + LEASE_S - 1
            await asyncio.sleep(0.5)

    return work


def overlaps(
    fault: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1, rate: float = 1.0
) -> tuple[list[str], str]:
    world = World(seed)

    async def scenario(world: World) -> list[str]:
        lock = Lock(world)
        world.skew("a", rate=rate)
        for name in "ab":
            await world.machine(name, worker(lock)).start()
            await asyncio.sleep(0.1)
        await fault(world)
        await asyncio.sleep(30)
        return lock.overlaps

    return world.run(scenario), world.digest()


async def nothing(_: World) -> None:
    pass


async def pause(world: World) -> None:
    """Pause the holder of the lock at a random moment, perhaps between its look at the clock and its write."""
    await asyncio.sleep(world.fork().uniform(0, 5))
    world.machines["a"].pause()
    await asyncio.sleep(LEASE_S + 1)
    world.machines["a"].resume()


def test_worker_that_trusts_its_clock_is_caught_by_a_pause() -> None:
    assert overlaps(nothing)[0] == []
    caught = [seed for seed in range(30) if overlaps(pause, seed)[0]]
    assert 0 < len(caught) < 30
    assert overlaps(pause, caught[0]) == overlaps(pause, caught[0])


def test_worker_that_trusts_its_clock_is_caught_by_a_slow_clock() -> None:
    assert overlaps(nothing, rate=0.95)[0] == []
    found, digest = overlaps(nothing, rate=0.5)
    assert found
    assert overlaps(nothing, rate=0.5) == (found, digest)
