"""The metadata store is far away: calls take time, answers get lost, sessions expire. Wrong users of it are caught."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog.cluster.store import ANY, BadVersionError, OutcomeUnknownError, SessionExpiredError, UnavailableError
from oncelog.sim.loop import ProcessDied
from oncelog.sim.machine import Machine
from oncelog.sim.store import TIMEOUT_S
from oncelog.sim.threads import pause
from oncelog.sim.world import World

LATENCY_S = 0.001, 0.02
PATH = "/counter"


def twice(scenario: Callable[[World], Coroutine[Any, Any, Any]], seed: int = 1) -> Any:
    worlds = [World(seed, store_latency_s=LATENCY_S) for _ in range(2)]
    results = [world.run(scenario, limit_s=3600) for world in worlds]
    assert results[0] == results[1]
    assert worlds[0].trace == worlds[1].trace
    assert worlds[0].digest() == worlds[1].digest()
    return results[0]


async def idle(_: Machine) -> None:
    pass


async def machines(world: World, count: int = 2) -> list[Machine]:
    """Start machines without a program. Tests use their store."""
    made = [world.machine(f"m{number}", idle) for number in range(count)]
    for machine in made:
        await machine.start()
    return made


def on(world: World, machine: Machine, work: Callable[[], Any]) -> asyncio.Task[Any]:
    """Run blocking work in the machine's process."""
    assert machine.process is not None
    return world.loop.spawn(machine.process, machine.blocking(work))


def add(machine: Machine, *, careful: bool) -> None:
    """Add 1 to the counter. A wrong user reads and writes without the version."""
    while True:
        node = machine.store.get(PATH)
        try:
            machine.store.set(PATH, b"%d" % (int(node.data) + 1), node.version if careful else ANY)
        except BadVersionError:
            continue
        return


@pytest.mark.parametrize("careful", [True, False])
def test_user_that_ignores_versions_is_caught_by_the_time_between_two_calls(careful: bool) -> None:
    async def scenario(world: World) -> int:
        world.store.create(PATH, b"0")

        def add_ten(machine: Machine) -> None:
            for _ in range(10):
                add(machine, careful=careful)

        await asyncio.gather(*[on(world, each, lambda each=each: add_ten(each)) for each in await machines(world, 3)])
        return int(world.store.get(PATH).data)

    total = twice(scenario)
    assert total == 30 if careful else total < 30


@pytest.mark.parametrize("careful", [True, False])
def test_user_that_repeats_a_write_of_unknown_outcome_is_caught_by_a_lost_answer(careful: bool) -> None:
    def add_until_it_succeeds(machine: Machine) -> None:
        before = int(machine.store.get(PATH).data)
        while True:
            try:
                add(machine, careful=True)
            except OutcomeUnknownError:
                if careful and int(machine.store.get(PATH).data) > before:  # it is the only user
                    return
                continue
            return

    async def scenario(world: World) -> int:
        world.store.create(PATH, b"0")
        [machine] = await machines(world, 1)
        world.store_link("m0").lose_answers = 2
        await on(world, machine, lambda: add_until_it_succeeds(machine))
        return int(world.store.get(PATH).data)

    assert twice(scenario) == (1 if careful else 3)


def write_twice(machine: Machine) -> None:
    machine.store.set(PATH, b"1")
    machine.store.set(PATH, b"2")


def test_paused_process_sends_its_next_request_after_it_resumes() -> None:
    """The first request arrives after 0.1 s, its answer after 0.2 s, and the second request after 0.3 s."""

    async def scenario(world: World) -> None:
        world.store.create(PATH, b"0")
        [machine] = await machines(world, 1)
        world.store_link("m0").latency_s = 0.1, 0.1
        work = on(world, machine, lambda: write_twice(machine))
        await asyncio.sleep(0.15)
        machine.pause()
        await asyncio.sleep(1)
        machine.resume()
        await asyncio.sleep(0.05)
        assert world.store.get(PATH).data == b"1"
        await work
        assert world.store.get(PATH).data == b"2"

    twice(scenario)


def test_store_is_quiet_until_a_watched_node_changes_or_the_link_is_cut() -> None:
    async def scenario(world: World) -> None:
        world.store.create(PATH, b"0")
        [machine] = await machines(world, 1)
        await on(world, machine, lambda: machine.store.watch(PATH, lambda _path: None))
        link = world.store_link("m0")
        assert machine.store.is_quiet()
        link.cut_requests = True
        assert not machine.store.is_quiet()
        link.cut_requests = False
        world.store.set(PATH, b"1")
        assert not machine.store.is_quiet()
        await on(world, machine, machine.store.poll)
        assert machine.store.is_quiet()

    twice(scenario)


def test_unreachable_store_fails_after_a_time() -> None:
    async def scenario(world: World) -> None:
        world.store.create(PATH, b"0")
        [machine] = await machines(world, 1)
        link = world.store_link("m0")
        link.cut_requests = True
        before = world.loop.now
        with pytest.raises(UnavailableError, match="no connection"):
            await on(world, machine, lambda: machine.store.set(PATH, b"1"))
        assert TIMEOUT_S <= world.loop.now - before < TIMEOUT_S + 1
        assert world.store.get(PATH).data == b"0"
        link.cut_requests, link.cut_answers = False, True
        with pytest.raises(UnavailableError, match="no answer"):
            await on(world, machine, lambda: machine.store.get(PATH))
        with pytest.raises(OutcomeUnknownError, match="no answer"):
            await on(world, machine, lambda: machine.store.set(PATH, b"2"))
        assert world.store.get(PATH).data == b"2"
        link.cut_answers = False
        assert (await on(world, machine, lambda: machine.store.get(PATH))).data == b"2"

    twice(scenario)


def claim(machine: Machine, *, careful: bool, writes: list[str], stop: Callable[[], bool]) -> None:
    """Hold /leader through a session, and write while it seems to be held. A wrong holder does not name its session."""
    session = machine.store.open_session(machine.name, 3000)
    machine.store.create("/leader", machine.name.encode(), session=session)
    while not stop():
        try:
            machine.store.renew(session)
        except SessionExpiredError:
            return
        pause(1)
        try:
            machine.store.multi([], session=session) if careful else None
        except SessionExpiredError:
            return
        writes.append(machine.name)


@pytest.mark.parametrize("careful", [True, False])
def test_holder_that_does_not_name_its_session_is_caught_by_its_expiry(careful: bool) -> None:
    def zombie_writes(seed: int) -> int:
        async def scenario(world: World) -> int:
            writes: list[str] = []
            [machine] = await machines(world, 1)
            task = on(
                world, machine, lambda: claim(machine, careful=careful, writes=writes, stop=lambda: len(writes) > 50)
            )
            await asyncio.sleep(world.stream("expiry").uniform(5, 6))
            assert world.store.exists("/leader")
            world.store_link("m0").expire_sessions()
            assert not world.store.exists("/leader")
            before = len(writes)
            await task
            return len(writes) - before

        found: int = twice(scenario, seed)
        return found

    zombies = sum(zombie_writes(seed) for seed in range(3))
    assert zombies == 0 if careful else zombies > 0


def test_session_of_a_paused_process_expires() -> None:
    async def scenario(world: World) -> None:
        writes: list[str] = []
        [machine] = await machines(world, 1)
        task = on(world, machine, lambda: claim(machine, careful=True, writes=writes, stop=lambda: False))
        await asyncio.sleep(2)
        machine.pause()
        before = len(writes)
        await asyncio.sleep(10)
        world.store.poll()
        assert not world.store.exists("/leader")
        machine.resume()
        await task
        assert len(writes) == before

    twice(scenario)


def test_watches_fire_in_the_process_that_polls() -> None:
    async def scenario(world: World) -> None:
        world.store.create(PATH)
        seen: list[str] = []
        one, two = await machines(world)
        for each in (one, two):
            await on(world, each, lambda each=each: each.store.watch(PATH, lambda _: seen.append(each.name)))
        await on(world, one, lambda: one.store.set(PATH, b"x"))
        assert seen == []
        await on(world, two, two.store.poll)
        assert seen == ["m1"]
        world.store_link("m0").cut_answers = True
        with pytest.raises(UnavailableError):
            await on(world, one, one.store.poll)
        world.store_link("m0").cut_answers = False
        await on(world, two, two.store.poll)
        await on(world, one, one.store.poll)
        assert seen == ["m1", "m0"], "a lost answer loses no change"
        one.kill()
        with pytest.raises(ProcessDied):
            one.store.poll()

    twice(scenario)


def test_work_of_a_killed_process_ends_between_two_calls() -> None:
    threads = threading.active_count()

    async def scenario(world: World) -> tuple[int, list[str]]:
        world.store.create(PATH, b"0")
        seen: list[str] = []
        [machine] = await machines(world, 1)

        def work() -> None:
            try:
                while True:
                    add(machine, careful=True)
            finally:
                seen.append("clean up")  # happens when the world ends, where it has no effect
                machine.store.set(PATH, b"-1")

        on(world, machine, work)
        await asyncio.sleep(1)
        machine.kill()
        count = int(world.store.get(PATH).data)
        await asyncio.sleep(10)
        assert seen == []
        return int(world.store.get(PATH).data) - count, seen

    assert twice(scenario) == (0, ["clean up"])
    assert threading.active_count() == threads


def test_cancelled_call_continues_in_its_thread() -> None:
    async def scenario(world: World) -> None:
        world.store.create(PATH, b"0")
        [machine] = await machines(world, 1)
        task = on(world, machine, lambda: add(machine, careful=True))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(1)
        assert (task.cancelled(), world.store.get(PATH).data) == (True, b"1")

    twice(scenario)
