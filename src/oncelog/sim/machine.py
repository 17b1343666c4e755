"""One machine of a world: its clocks, its disk, and the process that runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oncelog.sim.disk import Mount, SimDisk
from oncelog.sim.kernel import Kernel
from oncelog.sim.loop import Process
from oncelog.sim.store import SimStore

T = TypeVar("T")
Program = Callable[["Machine"], Coroutine[Any, Any, Any]]
"""What a machine runs. Each start of the machine calls it once."""


class Machine:
    """A machine that runs one process at a time. Its disk and its clocks outlive the processes."""

    def __init__(self, kernel: Kernel, name: str, program: Program | None = None) -> None:
        self.name = name
        """The machine's host name in the network."""
        self.disk = SimDisk(kernel.stream(f"disk {name}"), lambda what: kernel.note(f"disk {name}: {what}"))
        self.copies: dict[str, dict[str, bytes]] = {}
        """Copies of folders, which a fault may put back later."""
        self.process: Process | None = None
        self.boots = 1
        """How often the machine has been switched on."""
        self.files: Mount
        """The disk as the current process sees it."""
        self.store: SimStore
        """The metadata store as the current process sees it. Its calls block, so use `blocking`."""
        self._kernel = kernel
        self._program = program
        kernel.at_end.append(self.disk.kill)

    @property
    def alive(self) -> bool:
        """Whether the machine's process is alive. A paused process is alive."""
        return self.process is not None and self.process.alive

    @property
    def is_well(self) -> bool:
        """Whether the machine's process runs, reaches the metadata store, and `die_in` has planned no death."""
        runs = self.process is not None and self.process.running
        return runs and not self.disk.is_doomed and not self._kernel.store_link(self.name).is_cut

    async def start(self, *, die_in: int | None = None) -> bool:
        """Start the program in a new process. With `die_in`, call that method before the first disk change."""
        assert self._program is not None
        process = self.boot()
        if die_in is not None:
            self.die_in(die_in)
        self._kernel.loop.spawn(process, self._program(self))
        self._kernel.note(f"{self.name} started")
        return True

    def boot(self) -> Process:
        """Create the next process of the machine. Raises RuntimeError if one is alive."""
        if self.alive:
            raise RuntimeError(f"{self.name} runs already")
        self._kernel.network.power_on(self.name)
        self.process = self._kernel.process(self.name)
        self.files = self.disk.mount()
        self.store = SimStore(self._kernel.store, self._kernel.store_link(self.name), self.process)
        return self.process

    async def blocking(self, work: Callable[..., T], *args: Any) -> T:
        """Run work that blocks in a worker thread of the process, and return its result."""
        return await self._kernel.threads.run(work, *args)

    def kill(self) -> None:
        """Kill the process as with `kill -9`. Its writes remain, and its peers get resets."""
        self.disk.kill()
        self._died()

    def crash(self) -> None:
        """Crash the machine, as in a power failure. Data that is not synced may be lost. Its peers get no resets."""
        self.disk.crash()
        self.boots += 1
        self._kernel.network.power_off(self.name)
        self._died()

    def pause(self) -> None:
        """Stop the process as with SIGSTOP. Its connections stay open, and its leases expire. Ignore a dead process."""
        if self.process is not None and self.process.running:
            self._kernel.note(f"{self.name} paused")
            self._kernel.loop.pause(self.process)

    def resume(self) -> None:
        """Let a paused process continue, as with SIGCONT. Do nothing if it is not paused."""
        if self.process is not None and self.process.alive and not self.process.running:
            self._kernel.note(f"{self.name} resumed")
            self._kernel.loop.resume(self.process)

    def die_in(self, changes: int) -> None:
        """Kill the process in the middle of a disk change, after `changes` further ones."""
        self.disk.die_in(changes, self._died)

    async def died(self) -> None:
        """Wait until the process is dead."""
        if self.process is not None:
            await asyncio.wait({self._kernel.loop.end_of(self.process)})

    def _died(self) -> None:
        if self.process is not None and self.process.alive:
            self._kernel.note(f"{self.name} died")
            self._kernel.loop.kill(self.process)
            self._kernel.network.drop(self.process)
