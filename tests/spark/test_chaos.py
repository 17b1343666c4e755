"""A short form of `scripts/chaos`: faults of two rounds, at moments that differ in each run."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from spark.chaos.run import Plan, Run
from support.secured_cluster import SecuredCluster


@pytest.mark.timeout(400)
@pytest.mark.parametrize("brokers", ["oncelog", SecuredCluster.name])
def test_nothing_is_lost_or_duplicated(tmp_path: Path, brokers: str) -> None:
    seed = int(os.environ.get("ONCELOG_CHAOS_SEED") or secrets.randbelow(10_000))
    print(f"ONCELOG_CHAOS_SEED={seed}")
    plan = Plan(brokers, "local[2,4]", "oncelog", rounds=2, records=6_000, seed=seed)
    with Run(plan, tmp_path, print) as run:
        counted = run.go()
        assert run.killed
    assert counted == (6_000, 6_000, 0, 0, 0)
