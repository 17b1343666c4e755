"""Choose which tests run against Apache Kafka, and remember those that passed (`scripts/control`).

RECORD has one line for each test file that has passed. The line contains a digest of the file, all that it depends on
(`imported_files`), Apache Kafka, Python and the packages that the tests use to talk to Kafka. The line is valid as long
as the digest does not change. A file with a valid line runs again on one day in SHARES. All other files run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from hashlib import sha256
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from support.apache_kafka import ROOT, kafka_libs
from support.imported_files import SourceTree, digest

CONTROL = (
    "tests/clients",
    "tests/features",
    "tests/spark/test_source.py",
    "tests/spark/test_spark.py",
    "tests/spark/test_typed_source.py",
)
"""Tests that Apache Kafka must pass."""

RECORD = ROOT / "conformance" / "control.txt"
CHOICE = ROOT / ".cache" / "control.json"
"""The digests of the chosen files from before the run. A file that is edited during the run is not recorded."""

SHARES = 7
"""Days in which all remembered tests run again."""

TALKING = frozenset({"aiokafka", "confluent_kafka", "kafka", "kio", "pyspark"})
"""Packages whose version is part of a digest, because the tests use them to talk to Kafka."""

HEADER = """\
# The tests that Apache Kafka has passed, one line for each file. Only scripts/control --record writes here.
# file, tests, day, Apache Kafka, Python, digest of all that the tests depend on, check of the line
"""


class Entry(NamedTuple):
    """One line of RECORD."""

    file: str
    tests: int
    day: str
    kafka: str
    python: str
    digest: str

    def line(self) -> str:
        """Return the line, which ends with a check of its other columns."""
        words = " ".join(map(str, self))
        return f"{words} {_check(words)}"


class Choice(NamedTuple):
    """Which files run, and why."""

    changed: list[str]
    """Files without a valid line."""
    again: list[str]
    """Remembered files that run again today."""
    remembered: list[str]
    """Files that do not run."""


def _check(words: str) -> str:
    return sha256(f"control {words}".encode()).hexdigest()[:12]


def parse(text: str) -> dict[str, Entry]:
    """Return the entries of a record by file. Raise ValueError if `scripts/control` did not write a line."""
    entries: dict[str, Entry] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            continue
        words, _, check = line.rpartition(" ")
        columns = words.split(" ")
        if len(columns) != len(Entry._fields) or check != _check(words):
            raise ValueError(
                f"{RECORD.relative_to(ROOT)}:{number}: this line was not written by scripts/control. "
                f"Remove it and run scripts/control --record."
            )
        file, tests, day, kafka, python, digest = columns
        entries[file] = Entry(file, int(tests), day, kafka, python, digest)
    return entries


def render(entries: Iterable[Entry]) -> str:
    """Return the text of a record."""
    return HEADER + "".join(f"{entry.line()}\n" for entry in sorted(entries))


def choose(digests: Mapping[str, str], entries: Mapping[str, Entry], day: date) -> Choice:
    """Divide the files into those that changed, those that run again on this day, and those that do not run."""
    files = sorted(digests)
    known = [file for file in files if file in entries and entries[file].digest == digests[file]]
    share = files[day.toordinal() % SHARES :: SHARES]
    return Choice(
        changed=[file for file in files if file not in known],
        again=[file for file in known if file in share],
        remembered=[file for file in known if file not in share],
    )


def report(choice: Choice, entries: Mapping[str, Entry], day: date) -> str:
    """Return a text with the numbers of files that run and that are remembered."""
    skipped = sum(entries[file].tests for file in choice.remembered)
    share = day.toordinal() % SHARES + 1
    return (
        f"Run {len(choice.changed)} files that changed or have no record. "
        f"Run {len(choice.again)} remembered files again (share {share} of {SHARES}, by the date {day}). "
        f"Remember {len(choice.remembered)} files with {skipped} tests. "
        f"scripts/control --all runs all, --record writes what passes to {RECORD.relative_to(ROOT)}."
    )


def outcomes(report_xml: Path) -> dict[str, tuple[int, bool]]:
    """Return each file of a JUnit report (pytest's xunit1) with its number of tests and whether all have passed."""
    found: dict[str, tuple[int, bool]] = {}
    for case in ElementTree.parse(report_xml).iter("testcase"):
        file = case.get("file", "")
        tests, passed = found.get(file, (0, True))
        bad = any(case.find(kind) is not None for kind in ("failure", "error", "skipped"))
        found[file] = tests + 1, passed and not bad
    return found


def remember(
    entries: Mapping[str, Entry],
    ran: Mapping[str, tuple[int, bool]],
    before: Mapping[str, str],
    now: Mapping[str, str],
    place: tuple[str, str, str],
) -> list[Entry]:
    """Return the new entries: of files that passed and were not edited during the run, and the old ones that are still
    valid.

    `ran` has the outcomes, `before` and `now` the digests before and after the run, `place` the day and the versions of
    Apache Kafka and Python.
    """
    kept = {file: entry for file, entry in entries.items() if now.get(file) == entry.digest and file not in ran}
    for file, (tests, passed) in ran.items():
        if passed and before.get(file) == now.get(file) is not None:
            kept[file] = Entry(file, tests, *place, digest=now[file])
    return sorted(kept.values())


def kafka_version() -> str:
    """Return the version of the Apache Kafka that the tests start."""
    (jar,) = kafka_libs().glob("kafka_2.13-*.jar")
    return jar.stem.partition("-")[2]


def current_digests(python: str, kafka: str) -> dict[str, str]:
    """Return the digest of each file of the control."""
    tree = SourceTree(ROOT)
    distributions = packages_distributions()
    found = {}
    for place in CONTROL:
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
            closure = tree.closure(file)
            talking = sorted(TALKING & closure.others)
            clients = [f"{name} {version(distributions[name][0])}" for name in talking]
            tools = [f"Apache Kafka {kafka}", f"Python {python}", *clients]
            found[file.relative_to(ROOT).as_posix()] = digest(closure, ROOT, tools)
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the files to run (`choose`), or write RECORD from a JUnit report (`record REPORT`)."""
    parser = argparse.ArgumentParser(prog="support.control")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("choose").add_argument("--all", action="store_true")
    commands.add_parser("record").add_argument("report", type=Path)
    options = parser.parse_args(arguments)
    python = ".".join(map(str, sys.version_info[:2]))
    kafka = kafka_version()
    digests = current_digests(python, kafka)
    entries = parse(RECORD.read_text()) if RECORD.exists() else {}
    today = datetime.now(UTC).date()
    if options.command == "choose":
        choice = choose(digests, {} if options.all else entries, today)
        print(report(choice, entries, today), file=sys.stderr)
        CHOICE.parent.mkdir(exist_ok=True)
        CHOICE.write_text(json.dumps(digests))
        print("\n".join([*choice.changed, *choice.again]))
        return 0
    before = json.loads(CHOICE.read_text())
    ran = outcomes(options.report)
    new = remember(entries, ran, before, digests, (today.isoformat(), kafka, python))
    RECORD.write_text(render(new))
    print(f"{RECORD.relative_to(ROOT)} remembers {len(new)} of {len(digests)} files", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"control: {error}")
