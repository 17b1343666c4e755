"""Three replicas under random faults keep the invariants, and each mutation of the machines violates one.

`ReplicaWorld` has the invariants. Run one seed again with `ReplicaWorld(seed).run()`.
"""

from __future__ import annotations

import pytest

from support.checked_patch import CheckedPatch, Patch, can_be_patched
from support.replica_mutations import SEEDS, violation
from support.replica_world import ReplicaWorld

MUTATIONS = list(filter(can_be_patched, SEEDS))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_replicas_keep_the_invariants(first: int) -> None:
    worlds = [ReplicaWorld(seed) for seed in range(first, first + 20)]
    for world in worlds:
        try:
            world.run()
        except Exception as error:
            error.add_note(f"seed {world.seed}")
            raise
    faults = sum((world.faults for world in worlds), start=worlds[0].faults)
    assert sum(len(world.acknowledged) for world in worlds) > 20
    assert {"killed", "truncated", "power lost", "message lost", "session expired"} <= faults.keys()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_mutation_violates_an_invariant(mutation: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, invariant = SEEDS[mutation]
    assert violation(seed) is None
    mutation(CheckedPatch(monkeypatch))
    assert violation(seed) == invariant
