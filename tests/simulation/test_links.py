"""Links that are cut, slow or limited, and machines without power. A service that relies on the network is caught."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from oncelog.sim.machine import Machine
from oncelog.sim.world import World
from support.toys import Caller, call, run, serve, twice


class Counter:
    """A wrong service: it counts each request that arrives, also those that a client repeats."""

    def __init__(self) -> None:
        self.value = 0

    async def answer(self, _: str) -> str:
        self.value += 1
        return str(self.value)

    async def serve(self, machine: Machine) -> None:
        await serve(machine.name, self.answer)


@pytest.mark.parametrize(("source", "counted"), [(None, 1), ("client", 1), ("counter", 3)])
def test_client_that_retries_is_caught_by_a_cut_of_the_way_back(source: str | None, counted: int) -> None:
    """If the way there is cut, the request arrives late. If only the way back is cut, each retry arrives, too."""

    async def scenario(world: World) -> int:
        counter = Counter()
        await world.machine("counter", counter.serve).start()
        caller = await Caller.connect("counter")
        if source is not None:
            world.network.cut(source, "client" if source == "counter" else "counter", both_ways=False)
        for _ in range(3):
            caller.send("add")  # a client with a fixed connection, which sends again without an answer
            answer = asyncio.create_task(caller.receive())
            await asyncio.sleep(2)
            if answer.done():
                break
            answer.cancel()
            if source == "client":
                break
        world.network.heal()
        await asyncio.sleep(2)
        caller.close()
        return counter.value

    assert twice(scenario) == counted


def test_connect_waits_for_the_end_of_a_cut() -> None:
    async def scenario(world: World) -> None:
        await world.machine("counter", Counter().serve).start()
        await asyncio.sleep(0.1)
        world.network.cut("counter", "client", both_ways=False)
        with pytest.raises(TimeoutError):
            await call("counter", "add", 5)
        waiting = asyncio.create_task(call("counter", "add"))
        await asyncio.sleep(600)
        world.network.heal("client", "counter", both_ways=False)  # the other direction
        await asyncio.sleep(1)
        assert not waiting.done()
        world.network.heal("client", "counter")
        assert await waiting == "1"

    run(scenario)


def register(world: World) -> tuple[Machine, list[int]]:
    """A wrong service: the last value that arrives wins, over whichever connection it arrives."""
    values: list[int] = []

    async def answer(line: str) -> str:
        values.append(int(line))
        return "ok"

    return world.machine("register", lambda _: serve("register", answer)), values


@pytest.mark.parametrize(("slow_s", "caught"), [(0.0, False), (1.0, True)])
def test_register_without_versions_is_caught_by_connections_that_overtake(slow_s: float, caught: bool) -> None:
    async def scenario(world: World) -> tuple[list[int], list[int]]:
        machine, values = register(world)
        await machine.start()
        await asyncio.sleep(0.1)
        callers = [await Caller.connect("register") for _ in range(4)]
        world.network.slow("client", "register", slow_s)
        for number in range(40):
            callers[number % 4].send(str(number))
            await asyncio.sleep(0.01)
        await asyncio.sleep(10)
        for caller in callers:
            caller.close()
        return values, [value for value in values if value % 4 == 0]

    values, of_one_connection = twice(scenario)
    assert of_one_connection == list(range(0, 40, 4)), "one connection keeps its order"
    assert sorted(values) == list(range(40))
    assert (values != sorted(values)) is caught


@pytest.mark.parametrize(("bytes_per_s", "caught"), [(0, False), (1e6, False), (10_000, True)])
def test_failure_detector_is_caught_by_a_full_link(bytes_per_s: float, caught: bool) -> None:
    """A wrong service: it takes its peer for dead after 2 s without a heartbeat, while a copy fills the link."""

    async def scenario(world: World) -> bool:
        last = 0.0

        async def answer(line: str) -> str:
            nonlocal last
            if line == "alive":
                last = world.loop.now
            return "ok"

        await world.machine("detector", lambda _: serve("detector", answer)).start()
        await asyncio.sleep(0.1)
        beats, copy = [await Caller.connect("detector") for _ in range(2)]
        world.network.limit("client", "detector", bytes_per_s)
        silence = 0.0
        for second in range(20):
            if second == 5:
                copy.send("x" * 50_000)
            beats.send("alive")
            await asyncio.sleep(1)
            silence = max(silence, world.loop.now - last)
        beats.close()
        copy.close()
        return silence > 2

    assert twice(scenario) is caught


def test_bandwidth_is_shared() -> None:
    async def scenario(world: World) -> float:
        machine, _ = register(world)
        await machine.start()
        await asyncio.sleep(0.1)
        callers = [await Caller.connect("register") for _ in range(2)]
        world.network.limit("client", "register", 1000, both_ways=False)
        before = world.loop.now
        for caller in callers:
            caller.send("1" * 1999)
        for caller in callers:
            await caller.receive()
            caller.close()
        return world.loop.now - before

    assert run(scenario) == pytest.approx(4, abs=0.05)


# -- machines without power --------------------------------------------------------------------------------------------


def fails(lose: Callable[[Machine], None]) -> str:
    """Return how a caller learns that the service is gone: the error, and when."""

    async def scenario(world: World) -> str:
        machine = world.machine("counter", Counter().serve)
        await machine.start()
        await asyncio.sleep(0.1)
        caller = await Caller.connect("counter")
        lose(machine)
        before = world.loop.now
        for _ in range(2):
            caller.send("add")
            answer = asyncio.create_task(caller.receive())
            await asyncio.wait([answer], timeout=100)
            if answer.done():
                break
            answer.cancel()
            await asyncio.sleep(0)
            await machine.start()
        caller.close()
        with suppress(ConnectionError):
            await call("counter", "add", 1)
        return f"{type(answer.exception()).__name__} after {world.loop.now - before:.0f} s"

    result: str = twice(scenario)
    return result


def test_killed_process_resets_its_peers_and_a_machine_without_power_does_not() -> None:
    assert fails(Machine.kill) == "ConnectionResetError after 0 s"
    assert fails(Machine.crash) == "ConnectionResetError after 100 s"


def test_connect_to_a_machine_without_power_waits() -> None:
    async def scenario(world: World) -> None:
        machine = world.machine("counter", Counter().serve)
        await machine.start()
        await asyncio.sleep(0.1)
        machine.kill()
        with pytest.raises(ConnectionRefusedError):
            await call("counter", "add", 5)
        machine.crash()
        with pytest.raises(TimeoutError):
            await call("counter", "add", 5)
        await machine.start()
        await asyncio.sleep(0.1)
        assert await call("counter", "add", 5) == "1"

    run(scenario)
