"""Random walks: far deeper than any exhaustive search, with many faults at once."""

from __future__ import annotations

import random
import time

from spark.explorer.explorer import Explorer
from spark.explorer.worlds import Report


def walk(explorer: Explorer, seed: int, number: int) -> Report:
    """Run so many walks, each to its end, where it must recover."""
    began, report, chance = time.monotonic(), Report(), random.Random(seed)
    seen = set()
    for _ in range(number):
        world, trace = explorer.first(), []
        while moves := list(explorer.expand(world)):
            # Plain steps are preferred; otherwise, all faults occur before anything else has happened.
            plain = [move for move in moves if move[1].budget == world.budget]
            chosen = plain if plain and chance.random() < 0.93 else moves
            label, world = chance.choice(chosen)
            trace.append(label)
            report.transitions += 1
            seen.add(world)
            report.violation = explorer.check(world)
            if report.violation:
                break
            if not plain and chance.random() < 0.5:
                break
        report.violation = report.violation or explorer.recover(world)
        report.recoveries += 1
        if report.violation:
            report.trace = tuple(trace)
            break
    report.states, report.seconds = len(seen), time.monotonic() - began
    return report
