"""Clients and suites of others: what they pass is pinned in `counts.json`, Apache Kafka 4.3.1 beside oncelog.

`ONCELOG_PIN=1` writes the file anew from what was seen.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support import suites
from support.servers import Server

COUNTS = Path(__file__).with_name("counts.json")

SETTINGS = {"num.partitions": "4", "group.min.session.timeout.ms": "1000"}
"""What kafka-python's tests expect of the broker that they usually start themselves."""


def summary(outcomes: suites.Outcomes) -> dict[str, object]:
    """How many ran, passed and were skipped, and which failed."""
    counts = Counter(outcomes.values())
    failed = sorted(name for name, how in outcomes.items() if how == "failed")
    return {
        "run": len(outcomes) - counts["skipped"],
        "passed": counts["passed"],
        "skipped": counts["skipped"],
        "failed": failed,
    }


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("suite", suites.SUITES)
def test_foreign_client(start_server: Callable[..., Server], suite: str) -> None:
    """One that differs runs once more on a new server, and tells.

    kafka-python 3.0.12 loses a subscription now and then: its consumer asks for metadata without topics as it is made,
    and where `subscribe()` falls between that request and its answer, the answer counts as that of the subscription
    (`ClusterMetadata.update_metadata` takes back `need_update`). It asks again after `metadata_max_age_ms`, five
    minutes; until then it has no partitions. In a loop, `test_idempotent_producer_max_in_flight[2]` lost it in 1 of 800
    runs on oncelog and in 3 of 1300 on Apache Kafka 4.3.1; with that answer held back, always on both.
    """
    server = start_server(SETTINGS)
    found = summary(suites.SUITES[suite](server.bootstrap))
    pinned = json.loads(COUNTS.read_text())
    if found != pinned.get(suite, {}).get(server.name):
        print(f"{suite} on {server.name}, the first time: {found}")
        server = start_server(SETTINGS)
        found = summary(suites.SUITES[suite](server.bootstrap))
    if os.environ.get("ONCELOG_PIN"):
        pinned.setdefault(suite, {})[server.name] = found
        COUNTS.write_text(json.dumps(pinned, indent=2, sort_keys=True) + "\n")
    assert found == pinned[suite][server.name]
