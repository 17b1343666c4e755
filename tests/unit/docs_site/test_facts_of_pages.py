"""Facts of pages that no block of a page can show: counts, versions, limits, and words of log lines."""

from __future__ import annotations

import json
import re

import pytest

from oncelog.broker.handlers.groups import MOST_PROTOCOLS
from oncelog.broker.metadata.alterations import MOST_SETTINGS
from oncelog.broker.requests.delayed import MOST_WAITING
from oncelog.broker.requests.fetch_sessions import MOST_IN_ALL_SESSIONS, MOST_IN_SESSION
from oncelog.broker.requests.large_messages import MOST_ITEMS
from oncelog.log.validate import MOST_NAMED
from oncelog.spark.option_tables import SHARED_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from support.docs_blocks import ROOT
from support.suite_counts import COUNTS
from support.suites import KAFKA_PYTHON

COMPATIBILITY = (ROOT / "docs/compatibility.md").read_text()
MONITORING = (ROOT / "docs/operations/monitoring.md").read_text()
TYPED_DATA = (ROOT / "docs/typed-data.md").read_text()


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of each row of the first table after a line that begins with `heading`."""
    _, table, *_ = re.split(r"\n\n(?=\|)", page[page.index(f"\n{heading}") :], maxsplit=1)
    lines = table.split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_compatibility_page_has_the_pinned_counts() -> None:
    pinned = json.loads(COUNTS.read_text())
    shown = {name.split("'")[0]: counts for name, *counts in rows(COMPATIBILITY, "`conformance/counts.json`")}
    expected = {
        suite: [
            f"{found[server]['passed']} of {found[server]['run']}" if server in found else "not run"
            for server in ("apache-kafka", "oncelog", "apache-kafka-3", "oncelog-3")
        ]
        for suite, found in pinned.items()
    }
    assert shown == expected


def test_compatibility_page_has_the_tested_versions() -> None:
    shown = {name: version for name, version, _ in rows(COMPATIBILITY, "## Clients and tools")}
    files = {
        "Apache Kafka's Java clients and command line": ("pom.xml", r"kafka-tools</artifactId><version>(.*?)<"),
        "Apache Kafka's Java client of 2018": ("java/pom.xml", r"kafka-clients</artifactId><version>(.*?)<"),
        "franz-go": ("go/go.mod", r"twmb/franz-go v(\S+)"),
        "kafkajs": ("js/package.json", r'"kafkajs": "(.*?)"'),
        "rskafka": ("rust/Cargo.toml", r'rskafka = "=(.*?)"'),
    }
    expected = {"kafka-python": KAFKA_PYTHON}
    for name, (path, pattern) in files.items():
        match = re.search(pattern, (ROOT / "conformance" / path).read_text())
        assert match, path
        expected[name] = match[1]
    assert {name: shown[name] for name in expected} == expected


def test_compatibility_page_has_the_limits_of_the_code() -> None:
    shown = {name: limit for name, limit, _ in rows(COMPATIBILITY, "## Limits")}
    assert shown["array elements in one request (topics, partitions, keys)"] == f"{MOST_ITEMS:,}"
    assert shown["partitions in a Fetch with a session"] == f"{MOST_IN_SESSION:,}"
    assert shown["partitions in all fetch sessions of a broker"] == f"{MOST_IN_ALL_SESSIONS:,}"
    assert shown["partitions for which all Fetches of a broker wait"] == f"{MOST_WAITING:,}"
    assert shown["protocols in a JoinGroup"] == f"{MOST_PROTOCOLS:,}"
    assert shown["settings of one resource in an AlterConfigs"] == f"{MOST_SETTINGS:,}"
    assert f"names at most {MOST_NAMED:,} invalid records" in COMPATIBILITY


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/design/log.md", "docs/design/simulation.md"])
def test_pages_of_the_design_name_files_that_exist(page: str) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text())
    named = {code for code in re.findall("`([^`]+)`", text) if re.fullmatch(r"[a-z_./]+/[a-z_]+(\.py|/)?", code)}
    places = [ROOT, ROOT / "src/oncelog", ROOT / "src/oncelog/log", ROOT / "src/oncelog/client"]
    assert [path for path in sorted(named) if not any((place / path).exists() for place in places)] == []


def test_monitoring_page_has_the_words_of_log_lines() -> None:
    sources = "\n".join(path.read_text() for path in sorted((ROOT / "src/oncelog").rglob("*.py")))
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)  # a message may be written as several literals
    cells = [cell for cell, *_ in rows(MONITORING, "## What the log lines mean")]
    words = [part.strip() for cell in cells for code in re.findall("`(.*?)`", cell) for part in code.split("...")]
    assert len(words) > 15
    assert [part for part in words if part not in sources] == []


def test_page_about_typed_data_has_all_options_with_their_defaults() -> None:
    shown = {
        name.strip("` "): (of, default.replace("`", ""))
        for names, default, of, _ in rows(TYPED_DATA, "### Options")
        for name in names.split(",")
    }
    sides = {"source": SOURCE_OPTIONS, "sink": SINK_OPTIONS, "both": SHARED_OPTIONS}
    assert shown.keys() - {"schemaIdsInHeaders", "flatten", "badRecords", "autoRegister"} == SHARED_OPTIONS.keys() - {
        "bootstrapTimeoutMs"
    }
    for name, (of, default) in shown.items():
        assert sides[of][name].default in default, name
