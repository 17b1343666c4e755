"""Compare the outcomes of foreign test suites with those pinned in `conformance/counts.json`.

COUNTS has an entry for each suite and server: how many tests run, pass and are skipped, and which fail. `varies` names
tests whose outcome depends on chance on that server; they count as run only. The entry of an Apache Kafka has a digest
of all that its counts depend on. While the digest is current, the suite runs on that Apache Kafka on request only.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from hashlib import sha256
from typing import Any

from support import suites
from support.apache_kafka import ROOT
from support.servers import Server
from support.suites import HERE, Outcomes, locked, suite_digest

COUNTS = HERE / "counts.json"

SETTINGS = {"num.partitions": "4", "group.min.session.timeout.ms": "1000"}
"""Settings of a broker that kafka-python's tests usually start themselves."""

OURS = ("oncelog", "oncelog-3")
CONTROLS = {
    "apache-kafka": ("conformance/pom.xml", "tests/support/apache_kafka.py"),
    "apache-kafka-3": ("conformance/pom.xml", "tests/support/apache_kafka.py", "tests/support/kafka_nodes.py"),
}
"""The files with the version and the start of each Apache Kafka."""

REPEATS = 8
"""How often a test that fails unexpectedly runs again.

Some tests read a new topic from another broker at once. Each Apache Kafka and each broker of ours learns of the topic
some milliseconds later, so such a test fails on three brokers now and then.
"""


def pinned() -> dict[str, Any]:
    """Return the content of COUNTS."""
    found: dict[str, Any] = json.loads(COUNTS.read_text())
    return found


def control_digest(suite: str, server: str) -> str:
    """Return a digest of all that the counts of an Apache Kafka depend on."""
    texts = [(ROOT / file).read_text() for file in CONTROLS[server]]
    return sha256("\n".join([suite_digest(suite), json.dumps(SETTINGS), *texts]).encode()).hexdigest()[:16]


def servers_to_run(names: Iterable[str]) -> list[str]:
    """Return the servers for these suites: ours, and each Apache Kafka with a digest that is not current."""
    counts = pinned()
    changed = [
        server
        for server in CONTROLS
        if any(counts[suite].get(server, {}).get("digest") != control_digest(suite, server) for suite in names)
    ]
    return [*changed, *OURS]


def summary(outcomes: Outcomes, varies: Collection[str] = ()) -> dict[str, object]:
    """Return how many tests ran, passed and were skipped, and which failed."""
    counts = Counter(how for name, how in outcomes.items() if name not in varies)
    failed = sorted(name for name, how in outcomes.items() if how == "failed" and name not in varies)
    return {
        "run": len(outcomes) - list(outcomes.values()).count("skipped"),
        "passed": counts["passed"],
        "skipped": counts["skipped"],
        "failed": failed,
        **({"varies": sorted(varies)} if varies else {}),
    }


def check_counts(suite: str, start_server: Callable[..., Server]) -> None:
    """Run a suite and compare its counts with COUNTS. Tests that fail unexpectedly run again, on the same server.

    If `ONCELOG_PIN` is set, write the counts of this run to COUNTS first.
    """
    server = start_server(SETTINGS)
    address = server.bootstrap.partition(",")[0]  # the programs take one address
    run = suites.SUITES[suite]
    before = pinned().get(suite, {}).get(server.name, {})
    varies = before.get("varies", [])
    outcomes = run(address, [])
    for number in range(1, REPEATS + 1):
        bad = {name for name, how in outcomes.items() if how == "failed"} - {*before.get("failed", []), *varies}
        if not bad:
            break
        print(f"{suite} on {server.name}, run {number}: {sorted(bad)} failed and run again")
        again = run(address, sorted(bad))
        outcomes |= {name: again.get(name, "failed") for name in bad}
    found = summary(outcomes, varies)
    with locked("counts"):
        counts = pinned()
        if os.environ.get("ONCELOG_PIN"):
            digest = {"digest": control_digest(suite, server.name)} if server.name in CONTROLS else {}
            counts.setdefault(suite, {})[server.name] = {**found, **digest}
            COUNTS.write_text(json.dumps(counts, indent=2, sort_keys=True) + "\n")
    expected = {key: value for key, value in counts.get(suite, {}).get(server.name, {}).items() if key != "digest"}
    assert found == expected, f"{suite} on {server.name}: {found}, but {COUNTS.name} has {expected}"
