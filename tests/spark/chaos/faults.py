"""What is killed, and when: drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = ("driver", "freeze", "python", "broker", "executor")
"""`freeze`: the driver is stopped, another one takes its place, and the first one wakes up beside it."""


@dataclass(frozen=True)
class Fault:
    """One round: so many seconds after so many batches are in Spark's commit log, this is killed."""

    kind: str
    batch: int
    delay: float


def draw(rng: random.Random, rounds: int, batches: int, kinds: Sequence[str], span: float) -> list[Fault]:
    """Draw one fault a round: the kinds in turn so that none is missing, the moments anywhere in `span` seconds."""
    dealt: list[str] = []
    while len(dealt) < rounds:
        dealt += rng.sample(kinds, len(kinds))
    last = max(batches - 2, 1)
    return [Fault(kind, number * last // rounds, rng.uniform(0, span)) for number, kind in enumerate(dealt[:rounds])]
