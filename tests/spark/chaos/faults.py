"""What is killed, and when: random values from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = ("driver", "freeze", "python", "broker", "executor")
"""`freeze`: the driver is suspended, another one replaces it, and the first one continues beside it."""


@dataclass(frozen=True)
class Fault:
    """One round: this is killed so many seconds after so many batches are in Spark's commit log."""

    kind: str
    batch: int
    delay: float


def draw(rng: random.Random, rounds: int, batches: int, kinds: Sequence[str], span: float) -> list[Fault]:
    """Draw one fault for each round.

    The kinds rotate, so that none is missing; the moments are random within `span` seconds.
    """
    dealt: list[str] = []
    while len(dealt) < rounds:
        dealt += rng.sample(kinds, len(kinds))
    last = max(batches - 2, 1)
    return [Fault(kind, number * last // rounds, rng.uniform(0, span)) for number, kind in enumerate(dealt[:rounds])]
