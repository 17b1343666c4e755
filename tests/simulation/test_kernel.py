"""The simulation's loop, network and disk, each alone."""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog.net.server import Listener, Server
from oncelog.sim.clock import EPOCH_MS
from oncelog.sim.disk import PowerFailure, SimDisk
from oncelog.sim.loop import SimLoop, StalledError
from oncelog.sim.network import HIGH_WATER
from oncelog.sim.world import World

HOUR = 3600.0


def in_world(scenario: Callable[[World], Coroutine[Any, Any, Any]], seed: int = 1) -> Any:
    return World(seed).run(scenario)


# -- the loop ----------------------------------------------------------------------------------------------------------


def test_virtual_time_passes_at_once() -> None:
    async def scenario(world: World) -> list[float]:
        before = time.monotonic(), time.time()
        await asyncio.sleep(1000 * HOUR)
        return [time.monotonic() - before[0], time.time() - before[1], time.time() - EPOCH_MS / 1000]

    assert in_world(scenario) == [1000 * HOUR] * 3
    assert time.time() > EPOCH_MS / 1000 + 1000 * HOUR  # the real clock is restored


def test_callbacks_run_in_the_order_of_their_time() -> None:
    async def scenario(world: World) -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(2, seen.append, "late")
        loop.call_later(1, seen.append, "early")
        loop.call_soon(seen.append, "now")
        await asyncio.sleep(3)
        return seen

    assert in_world(scenario) == ["now", "early", "late"]


def test_scenario_that_waits_for_nothing_stalls() -> None:
    async def scenario(world: World) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StalledError):
        in_world(scenario)


def test_spinning_loop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncelog.sim.loop.STALL_LIMIT", 1000)

    async def scenario(world: World) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StalledError, match="spins"):
        in_world(scenario)


def test_scenario_beyond_its_time_limit_is_ended() -> None:
    async def scenario(world: World) -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError, match="seed 5"):
        World(5).run(scenario, limit_s=HOUR)


def test_randomness_is_determined_by_the_seed() -> None:
    async def scenario(world: World) -> list[Any]:
        return [random.random(), os.urandom(8), uuid.uuid4(), random.SystemRandom().random()]

    assert in_world(scenario, 1) == in_world(scenario, 1)
    assert in_world(scenario, 1) != in_world(scenario, 2)


def test_killed_process_runs_nothing_more_not_even_clean_up() -> None:
    async def scenario(world: World) -> list[str]:
        seen: list[str] = []

        async def victim() -> None:
            try:
                while True:
                    await asyncio.sleep(1)
                    seen.append("alive")
                    asyncio.get_running_loop().call_later(1.2, seen.append, "late")
            finally:
                seen.append("clean up")

        process = world.process("victim")
        world.loop.spawn(process, victim())
        await asyncio.sleep(2.5)
        world.loop.kill(process)
        await asyncio.sleep(10)
        return list(seen)

    assert in_world(scenario) == ["alive", "alive", "late"]


def test_unhandled_error_fails_the_run() -> None:
    async def scenario(world: World) -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(RuntimeError, match="division by zero"):
        in_world(scenario)


def test_errors_in_the_clean_up_of_a_killed_process_are_ignored() -> None:
    """The kernel closes the process's coroutines at the end, and ignores errors of their clean-up."""

    async def scenario(world: World) -> None:
        async def victim() -> None:
            answer = asyncio.get_running_loop().create_future()
            try:
                await asyncio.sleep(1000)
            finally:
                answer.set_exception(ConnectionError("closed"))

        process = world.process("victim")
        world.loop.spawn(process, victim())
        await asyncio.sleep(1)
        world.loop.kill(process)

    in_world(scenario)


def test_executors_run_inline() -> None:
    async def scenario(world: World) -> int:
        with pytest.raises(ValueError, match="x"):
            await asyncio.to_thread(int, "x")
        return await asyncio.to_thread(int, "7")

    assert in_world(scenario) == 7


# -- the network -------------------------------------------------------------------------------------------------------


class Recorder(asyncio.Protocol):
    """Echo if configured, and record all events."""

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.data = b""
        self.events: list[str] = []
        self.pieces = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1
        if self.echo:
            self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append(type(error).__name__)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


async def pair(world: World, *, echo: bool = False) -> tuple[Recorder, Recorder]:
    far = Recorder(echo=echo)
    process = world.process("server")

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(lambda: far, "server", 9092)

    await world.loop.spawn(process, listen())
    _, near = await asyncio.get_running_loop().create_connection(Recorder, "server", 9092)
    await asyncio.sleep(1)
    return near, far


def test_bytes_arrive_in_order_and_in_pieces() -> None:
    async def scenario(world: World) -> None:
        near, far = await pair(world, echo=True)
        sent = b""
        for number in range(200):
            piece = str(number).encode() * 10
            sent += piece
            near.transport.write(piece)
        await asyncio.sleep(1)
        assert near.data == far.data == sent
        assert far.pieces > 200
        assert near.transport.get_extra_info("peername") == ("server", 9092)

    in_world(scenario)


def test_full_pipe_pauses_its_writer() -> None:
    async def scenario(world: World) -> None:
        near, far = await pair(world)
        far.transport.pause_reading()
        near.transport.write(bytes(HIGH_WATER + 1))
        await asyncio.sleep(1)
        assert (near.events, far.data) == (["pause"], b"")
        far.transport.resume_reading()
        await asyncio.sleep(1)
        assert (near.events, len(far.data)) == (["pause", "resume"], HIGH_WATER + 1)

    in_world(scenario)


def test_close_sends_pending_bytes_and_abort_does_not() -> None:
    async def scenario(world: World) -> None:
        near, far = await pair(world)
        near.transport.write(b"last words")
        near.transport.close()
        await asyncio.sleep(1)
        assert (far.data, far.events, near.events) == (b"last words", ["NoneType"], ["NoneType"])

        near, far = await pair_again(world)
        near.transport.write(b"x" * 10)
        near.transport.abort()
        await asyncio.sleep(1)
        assert (far.events, near.events) == (["ConnectionResetError"], ["NoneType"])

    async def pair_again(world: World) -> tuple[Recorder, Recorder]:
        far = Recorder()

        async def listen() -> None:
            await asyncio.get_running_loop().create_server(lambda: far, "other", 1)

        await world.loop.spawn(world.process("other"), listen())
        _, near = await asyncio.get_running_loop().create_connection(Recorder, "other", 1)
        await asyncio.sleep(1)
        return near, far

    in_world(scenario)


def test_partition_of_the_network_holds_bytes_until_it_heals() -> None:
    async def scenario(world: World) -> None:
        near, far = await pair(world)
        world.network.cut("client", "server")
        near.transport.write(b"hello")
        await asyncio.sleep(HOUR)
        assert far.data == b""
        world.network.heal()
        await asyncio.sleep(1)
        assert far.data == b"hello"

    in_world(scenario)


def test_partition_of_the_network_may_be_one_way() -> None:
    async def scenario(world: World) -> None:
        near, far = await pair(world)
        world.network.cut("server", "client", both_ways=False)
        near.transport.write(b"question")
        far.transport.write(b"answer")
        await asyncio.sleep(1)
        assert (far.data, near.data) == (b"question", b"")

    in_world(scenario)


def test_dead_process_resets_its_connections_and_frees_its_port() -> None:
    async def scenario(world: World) -> None:
        near, far = await pair(world)
        process = next(process for process in world._processes if process.name == "server")
        world.loop.kill(process)
        world.network.drop(process)
        near.transport.write(b"anybody?")
        await asyncio.sleep(1)
        assert (near.events, far.events) == (["ConnectionResetError"], [])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(Recorder, "server", 9092)

    in_world(scenario)


def test_both_sides_see_a_reset() -> None:
    async def scenario(world: World) -> None:
        near, far = await pair(world)
        world.network.reset()
        await asyncio.sleep(1)
        assert near.events == far.events == ["ConnectionResetError"]

    in_world(scenario)


def test_our_server_runs_in_the_simulation() -> None:
    async def scenario(world: World) -> None:
        async def start() -> Server:
            server = Server(lambda frame, _: [bytes(frame)[::-1]])
            await server.listen([Listener("server", 9092)])
            return server

        server = await world.loop.spawn(world.process("server"), start())
        assert server.port == 9092
        _, near = await asyncio.get_running_loop().create_connection(Recorder, "server", 9092)
        near.transport.write(b"\x00\x00\x00\x03abc" * 50)
        await asyncio.sleep(1)
        assert near.data == b"\x00\x00\x00\x03cba" * 50
        await world.loop.spawn(world.process("server"), server.close())

    in_world(scenario)


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_files_of_a_killed_process_keep_what_it_wrote() -> None:
    disk = SimDisk(random.Random(1))
    mount = disk.mount()
    mount.mkdir("a/b", parents=True)
    file = mount.open("a/b/c", create=True)
    file.pwrite(b"hello", 0)
    disk.kill()
    for use in (lambda: file.pwrite(b"zombie", 0), lambda: mount.read_file("a/b/c"), lambda: mount.listdir("a")):
        with pytest.raises(PowerFailure):
            use()
    assert disk.mount().read_file("a/b/c") == b"hello"


def test_process_can_die_during_a_write() -> None:
    left = set()
    for seed in range(50):
        disk = SimDisk(random.Random(seed))
        mount = disk.mount()
        file = mount.open("f", create=True)
        deaths: list[str] = []
        disk.die_in(1, lambda deaths=deaths: deaths.append("dead"))  # type: ignore[misc]
        file.pwrite(b"first", 0)
        with pytest.raises(PowerFailure):
            file.pwrite(b"second", 5)
        assert deaths == ["dead"]
        data = disk.mount().read_file("f")
        assert b"firstsecond".startswith(data)
        left.add(len(data))
    assert left == {5, 6, 7, 8, 9, 10, 11}


def test_crashed_machine_keeps_synced_data_and_part_of_the_rest() -> None:
    left = set()
    for seed in range(100):
        disk = SimDisk(random.Random(seed))
        file = disk.mount().open("f", create=True)
        file.pwrite(b"kept", 0)
        file.sync()
        file.pwrite(b"lost", 4)
        disk.crash()
        data = disk.mount().read_file("f")
        assert b"keptlost".startswith(data)
        left.add(len(data))
    assert left == {4, 5, 6, 7, 8}


def test_crashed_machine_may_lose_a_file_that_was_not_synced() -> None:
    survived = set()
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        disk.mount().open("f", create=True)
        disk.crash()
        survived.add(disk.mount().exists("f"))
    assert survived == {True, False}


def test_simulated_disk() -> None:
    disk = SimDisk(random.Random(1)).mount()
    with pytest.raises(FileNotFoundError):
        disk.open("d/f", create=True)
    disk.mkdir("d/e", parents=True)
    assert (disk.exists("d"), disk.exists("d/e"), disk.exists("d/f")) == (True, True, False)
    file = disk.open("d/f", create=True)
    file.pwrite(b"abc", 2)
    assert (file.size(), file.pread(9, 1), disk.size("d/f"), disk.size("d/g")) == (5, b"\0abc", 5, None)
    file.truncate(3)
    assert disk.read_file("d/f") == b"\0\0a"
    disk.atomic_write("d/f", b"new")
    disk.rename("d/f", "d/e/g")
    assert (disk.listdir("d"), disk.listdir("d/e"), disk.listdir("x")) == (["e"], ["g"], [])
    disk.rename("d/e", "d/h")
    assert disk.read_file("d/h/g") == b"new"
    with pytest.raises(FileNotFoundError):
        disk.read_file("d/e/g")
    disk.remove("d/h/g")
    disk.remove("d/h/g")
    disk.remove_tree("d")
    assert disk.listdir("") == []
    with pytest.raises(FileNotFoundError):
        disk.open("nothing")


def test_loop_is_closed_at_the_end() -> None:
    world = World(1)
    world.run(lambda _: asyncio.sleep(1))
    assert isinstance(world.loop, SimLoop)
    assert world.loop.is_closed()
