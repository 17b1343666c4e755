"""A short form of `scripts/bounce`: a few faults, at moments that differ in each run."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from stories.bounces.run import Plan, Run


@pytest.mark.parametrize(
    ("client", "secured"),
    [("confluent", False), ("oncelog", False), ("oncelog", True)],
    ids=["confluent", "oncelog", "oncelog-secured"],
)
def test_each_acknowledged_record_is_read_once(tmp_path: Path, client: str, secured: bool) -> None:
    seed = int(os.environ.get("ONCELOG_BOUNCE_SEED") or secrets.randbelow(10_000))
    print(f"ONCELOG_BOUNCE_SEED={seed}")
    plan = Plan(seed, (client,), seconds=6, pause_s=(0.3, 1.5), suspended_s=(0.5, 3), secured=secured)
    with Run(plan, tmp_path, print) as run:
        verdicts = run.go()
    assert run.problems == []
    assert {topic: verdict.examples for topic, verdict in verdicts.items()} == dict.fromkeys(verdicts, ())
    assert run.done
    assert all(verdict.acknowledged for verdict in verdicts.values())
