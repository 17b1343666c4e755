"""Apply the faults of a plan at their times, and end them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from oncelog.sim.faults import AnyFault, Lasting, Skew
from oncelog.sim.plan import Plan
from oncelog.sim.world import World


class Nemesis:
    """The faults of one world. Create it before the first machine starts, because clocks are wrong from the start."""

    def __init__(
        self, world: World, plan: Plan, admit: Callable[[AnyFault], AnyFault | None] = lambda fault: fault
    ) -> None:
        """`admit` returns the fault to apply in place of one that is due, or None if it must not happen now."""
        self._admit = admit
        self._world = world
        self._plan = plan
        self._active: list[Lasting] = []
        self._ends: list[asyncio.Task[None]] = []
        self._healing = asyncio.Event()
        self.struck = 0
        """How many faults have happened."""
        for fault in plan.faults:
            if isinstance(fault, Skew):
                fault.strike(world)
                self.struck += 1

    async def run(self) -> None:
        """Apply the faults until the plan's time is over. Then end all faults that are not permanent."""
        world = self._world
        faults = sorted((fault for fault in self._plan.faults if not isinstance(fault, Skew)), key=lambda each: each.at)
        begun = world.loop.now
        for planned in faults:
            if planned.at >= self._plan.seconds:
                break
            await asyncio.sleep(begun + planned.at - world.loop.now)
            fault = self._admit(planned)
            if fault is None:
                continue
            world.note(f"fault {fault}")
            fault.strike(world)
            self.struck += 1
            if isinstance(fault, Lasting):
                self._active.append(fault)
                if fault.seconds is not None:
                    self._ends.append(asyncio.create_task(self._end_later(fault, fault.seconds)))
        await asyncio.sleep(begun + self._plan.seconds - world.loop.now)
        await self.heal()

    async def heal(self) -> None:
        """End all faults that are not permanent, and start the machines that are dead for another reason."""
        self._world.note("healing")
        self._healing.set()
        await asyncio.gather(*self._ends)
        stopped = {fault.key() for fault in self._active}
        for name, machine in self._world.machines.items():
            machine.disk.spare()
            while ("process", name) not in stopped and not machine.alive:
                await machine.start()

    async def _end_later(self, fault: Lasting, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._healing.wait()
        await self._end(fault)

    async def _end(self, fault: Lasting) -> None:
        """End a fault, but keep the effect of other active faults with the same key: apply link faults again."""
        self._active.remove(fault)
        others = [other for other in self._active if other.key() == fault.key()]
        if others and fault.key()[0] in ("process", "pause"):
            return
        self._world.note(f"end of {fault}")
        await fault.end(self._world)
        for other in others:
            other.strike(self._world)
