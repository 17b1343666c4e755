"""What a report of a world shows: its outcomes, and what the brokers have counted in their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable

from oncelog.broker.metrics.totals import COUNTED
from oncelog.sim.world import World


async def reported(world: World, run: Awaitable[Counter[str]]) -> Counter[str]:
    """Run a world, and return its outcomes with the counters of its brokers, by the names of the metrics."""
    outcomes = await run
    return outcomes + world.counters()


def lines(outcomes: Counter[str]) -> str:
    """Return the outcomes, and in a second line what the brokers have counted."""
    counted = {name: count for name, count in sorted(outcomes.items()) if name in COUNTED}
    others = {name: count for name, count in outcomes.items() if name not in COUNTED}
    return f"{others}\nthe brokers counted {counted}"
