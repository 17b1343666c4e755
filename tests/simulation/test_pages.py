"""Views of files are live, bits flip, and machines lose what is not synced. A service that ignores this is caught."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable

import pytest

from oncelog.sim.disk import SimDisk
from oncelog.sim.machine import Machine, Program
from oncelog.sim.pages import pages_of
from oncelog.sim.world import World
from support.toys import Caller, call, run, serve, twice

DATA = bytes(range(1, 101))


def mapped() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.map_bytes = 10
    return disk


def test_view_shows_what_the_file_contains_now() -> None:
    file = mapped().mount().open("f", create=True)
    file.pwrite(DATA, 0)
    assert isinstance(file.view(9, 0), bytes)
    view = file.view(50, 40)
    assert isinstance(view, memoryview)
    pages = pages_of(view[10:20])
    assert pages is not None
    file.pwrite(b"more", 100)
    assert (view, view.readonly, pages.changed) == (DATA[40:90], True, False)
    file.pwrite(b"xyz", 45)
    assert view == DATA[40:45] + b"xyz" + DATA[48:90]
    file.truncate(60)
    assert (view[:5], pages.there, view[20:] == DATA[60:90]) == (DATA[40:45], 20, False)
    file.pwrite(DATA[60:], 60)
    assert (view[20:], pages.there) == (DATA[60:90], 50)


def test_view_of_a_removed_or_replaced_file_keeps_its_bytes() -> None:
    mount = mapped().mount()
    mount.open("f", create=True).pwrite(DATA, 0)
    views = [mount.open("f").view(20, 0)]
    mount.atomic_write("f", b"new")
    mount.atomic_write("g", DATA)
    views.append(mount.open("g").view(20, 0))
    mount.remove("g")
    assert views == [DATA[:20], DATA[:20]]


class Files(asyncio.Protocol):
    """A wrong service: it sends a view of its file, and truncates the file when it is asked to."""

    def __init__(self, machine: Machine, *, careful: bool) -> None:
        self.file = machine.files.open("f", create=True)
        self.careful = careful
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for request in data:
            if request == ord("r"):
                view = self.file.view(50, 0)
                self.transport.writelines([b"<", bytes(view) if self.careful else view, b">"])
            else:
                self.file.truncate(20)


@pytest.mark.parametrize("careful", [True, False])
def test_service_that_truncates_under_an_unsent_response_is_caught(careful: bool) -> None:
    async def scenario(world: World) -> bytes:
        async def main(machine: Machine) -> None:
            machine.files.open("f", create=True).pwrite(DATA, 0)
            await asyncio.get_running_loop().create_server(lambda: Files(machine, careful=careful), "files", 7)

        machine = world.machine("files", main)
        machine.disk.map_bytes = 1
        await machine.start()
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("files", 7)
        world.network.slow("files", "client", 1.0)
        for request in (b"r", b"t"):
            writer.write(request)
            await asyncio.sleep(0.01)
        try:
            return await reader.readexactly(52)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            assert not machine.alive
            return b""
        finally:
            writer.close()

    if careful:
        assert twice(scenario) == b"<" + DATA[:50] + b">"
    else:
        with pytest.raises(RuntimeError, match="SIGBUS"):
            run(scenario)


def test_connection_that_is_aborted_before_the_truncation_reads_no_pages() -> None:
    async def scenario(world: World) -> None:
        opened: list[Files] = []

        async def main(machine: Machine) -> None:
            machine.files.open("f", create=True).pwrite(DATA, 0)

            def make() -> Files:
                opened.append(Files(machine, careful=False))
                return opened[-1]

            await asyncio.get_running_loop().create_server(make, "files", 7)

        machine = world.machine("files", main)
        machine.disk.map_bytes = 1
        await machine.start()
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("files", 7)
        world.network.slow("files", "client", 1.0)
        writer.write(b"r")
        await asyncio.sleep(0.01)
        opened[0].transport.abort()
        opened[0].file.truncate(20)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(52)
        writer.close()

    run(scenario)


# -- bit flips and power failures --------------------------------------------------------------------------------------


def store(*, checked: bool = False, synced: bool = True) -> Program:
    """A service that keeps one line in a file. It is wrong if it does not check the CRC, or acknowledges too early."""

    async def main(machine: Machine) -> None:
        async def answer(line: str) -> str:
            file = machine.files.open("f", create=True)
            if line != "get":
                file.pwrite(zlib.crc32(line.encode()).to_bytes(4, "big") + line.encode(), 0)
                if synced:
                    file.sync()
                return "ok"
            data = file.pread(1000, 0)
            if checked and zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
                return "damaged"
            return data[4:].decode("latin-1")

        await serve(machine.name, answer)

    return main


@pytest.mark.parametrize("checked", [True, False])
def test_service_without_checksums_is_caught_by_a_flipped_bit(checked: bool) -> None:
    async def scenario(world: World) -> str:
        machine = world.machine("store", store(checked=checked))
        await machine.start()
        await asyncio.sleep(0.1)
        await call("store", "a" * 20)
        machine.disk.flip_bit("nothing")
        machine.disk.flip_bit()
        machine.crash()  # the flip is on the device, too
        await machine.start()
        await asyncio.sleep(0.1)
        return await call("store", "get")

    found = [twice(scenario, seed) for seed in range(5)]
    assert set(found) == {"damaged"} if checked else any(line != "a" * 20 for line in found)


@pytest.mark.parametrize("synced", [True, False])
def test_service_that_acknowledges_before_it_syncs_is_caught_by_a_power_failure(synced: bool) -> None:
    def after(lose: Callable[[Machine], None], seed: int) -> str:
        async def scenario(world: World) -> str:
            machine = world.machine("store", store(synced=synced))
            await machine.start()
            await asyncio.sleep(0.1)
            await call("store", "value")
            lose(machine)
            await machine.start()
            await asyncio.sleep(0.1)
            caller = await Caller.connect("store")
            caller.send("get")
            try:
                return await caller.receive()
            finally:
                caller.close()

        found: str = twice(scenario, seed)
        return found

    assert {after(Machine.kill, seed) for seed in range(5)} == {"value"}
    lost = {after(Machine.crash, seed) for seed in range(5)} - {"value"}
    assert bool(lost) is not synced
