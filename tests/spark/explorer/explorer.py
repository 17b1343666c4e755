"""Explore every interleaving of drivers, tasks and faults within bounds, breadth first.

A driver that is never scheduled again has crashed, and one that is scheduled later is a zombie, so neither needs its
own action. The same holds for tasks. Faults have a cost: their number is bounded, in total and for each kind.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from spark.explorer import kafka as model
from spark.explorer.judge import Judge
from spark.explorer.worlds import DEAD, KINDS, Report, World


class Explorer(Judge):
    """One exploration."""

    def first(self) -> World:
        """Return the first world: one driver and nothing else.

        With `Bounds.begin`, it ran alone until that phase of its first batch.
        """
        nothing = self.kafkas(model.NOTHING)
        drivers = self.drivers((self.planning(0, self.bounds.queries[0].first, self.bounds.copy),))
        world = World(nothing, self.flights(()), drivers, self.tasks(()), ((),), (0,) * (len(KINDS) + 1))
        while self.bounds.begin and self.drivers.values[world.drivers][0].phase != self.bounds.begin:
            _, world = next(self.expand(world))
        return world._replace(budget=self.bounds.budget(), late=self.bounds.torn)

    def expand(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield (what happened, the next world)."""
        for index, driver in enumerate(self.drivers.values[world.drivers]):
            if driver is not DEAD:
                yield from self.driver_moves(world, index, driver)
        for task in self.tasks.values[world.tasks]:
            yield from self.task_moves(world, task)
        yield from self.coordinator_moves(world)
        if world.budget[0] > 0:
            yield from self.faults(world)
        flight = self.flights.values[world.flight]
        for item in flight:
            after = self.land(world.kafka, item)
            if after is not None:
                left = self.flights(tuple(i for i in flight if i is not item))
                yield f"late {item}", world._replace(kafka=after, flight=left)

    def run(self, *, recover_every: int = 0) -> Report:
        """Explore breadth first until the first violation or the end. One in `recover_every` states must recover."""
        with without_collector():
            return self._run(recover_every)

    def _run(self, recover_every: int) -> Report:
        began, report = time.monotonic(), Report()
        first = self.first()
        came: dict[World, tuple[World, str] | None] = {first: None}
        todo = deque([first])
        while todo and not report.violation and len(came) < self.bounds.states:
            world = todo.popleft()
            for label, after in self.expand(world):
                report.transitions += 1
                if after in came:
                    continue
                came[after] = (world, label)
                todo.append(after)
                report.violation = self.check(after)
                if not report.violation and recover_every and len(came) % recover_every == 0:
                    report.recoveries += 1
                    report.violation = self.recover(after)
                if report.violation:
                    report.trace = _way(came, after)
                    break
        report.states, report.complete = len(came), not todo or bool(report.violation)
        report.seconds = time.monotonic() - began
        return report


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable the garbage collector: states have no cycles, and it would scan all of them repeatedly."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
        gc.collect()


def _way(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := came[world]) is not None:
        world, label = before
        steps.append(label)
    return tuple(reversed(steps))
