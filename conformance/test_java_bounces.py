"""A short form of `scripts/bounce --client java`: Kafka's own producer and copier, while brokers are killed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from stories.bounces.run import Plan, Run


def test_java_client_loses_and_duplicates_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("ONCELOG_BOUNCE_SEED") or secrets.randbelow(10_000))
    print(f"ONCELOG_BOUNCE_SEED={seed}")
    plan = Plan(seed, ("java",), seconds=10, pause_s=(0.5, 2), suspended_s=(0.5, 3))
    with Run(plan, tmp_path, print) as run:
        verdicts = run.go()
    assert run.problems == []
    assert {topic: verdict.examples for topic, verdict in verdicts.items()} == dict.fromkeys(verdicts, ())
    assert run.done
    assert all(verdict.acknowledged for verdict in verdicts.values())
