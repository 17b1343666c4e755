"""Members of one group keep their partitions through rebalances, while the broker and the members are killed."""

from __future__ import annotations

import pytest

from oncelog.sim.world import World
from support.copying_members import KINDS, Copies

LIMIT_S = 3600.0


def run(seed: int, *kinds: str) -> None:
    World(seed).run(lambda world: Copies(world, *kinds).run(), limit_s=LIMIT_S)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(4))
def test_each_record_is_copied_once(seed: int, strategy: str) -> None:
    run(seed, strategy)


@pytest.mark.parametrize("seed", range(4))
def test_each_record_is_copied_once_in_a_group_of_the_consumer_protocol(seed: int) -> None:
    run(seed, "consumer")


@pytest.mark.parametrize("seed", range(4))
def test_each_record_is_copied_once_while_the_group_moves_between_both_protocols(seed: int) -> None:
    run(seed, *KINDS)
