"""The control's record, and its choice of files to run."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from support import control
from support.control import SHARES, Entry, choose, outcomes, parse, remember, render, report
from support.imported_files import Closure, digest

DAY = date(2026, 11, 22)
PLACE = (DAY.isoformat(), "4.3.1", "3.11")
FILES = [f"tests/clients/test_{number:02}.py" for number in range(20)]
DIGESTS = {file: f"digest of {file}".replace(" ", "-") for file in FILES}
ENTRIES = {file: Entry(file, 3, *PLACE, digest=DIGESTS[file]) for file in FILES}


def test_record_round_trips() -> None:
    text = render(ENTRIES.values())
    assert parse(text) == ENTRIES
    assert parse(render([])) == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("test_03.py 3", "test_03.py 4"),
        ("digest-of-tests/clients/test_03.py", "digest-of-tests/clients/test_04.py"),
        ("test_03.py 3 2026-11-22", "test_03.py 3 2026-11-23"),
        (" 4.3.1 3.11 digest-of-tests/clients/test_03.py", " 4.4.0 3.11 digest-of-tests/clients/test_03.py"),
        ("tests/clients/test_03.py 3 ", "tests/clients/test_03.py "),
    ],
)
def test_edited_record_is_rejected(old: str, new: str) -> None:
    text = render(ENTRIES.values())
    assert old in text
    with pytest.raises(ValueError, match=r"conformance/control.txt:6: this line was not written by scripts/control"):
        parse(text.replace(old, new, 1))


def test_files_without_a_valid_record_run() -> None:
    changed = {FILES[2]: "another", FILES[5]: "another", "tests/clients/test_new.py": "new"}
    choice = choose(DIGESTS | changed, ENTRIES, DAY)
    assert choice.changed == sorted(changed)
    assert not set(choice.again + choice.remembered) & set(changed)
    assert choose(DIGESTS, {}, DAY).changed == FILES


def test_all_remembered_files_run_again_within_the_shares() -> None:
    again = [choose(DIGESTS, ENTRIES, DAY + timedelta(days)).again for days in range(SHARES)]
    assert sorted(file for each in again for file in each) == FILES
    assert {len(each) for each in again} == {len(FILES) // SHARES, len(FILES) // SHARES + 1}


def test_report_counts_the_files_and_names_the_day() -> None:
    text = report(choose(DIGESTS | {FILES[0]: "another"}, ENTRIES, DAY), ENTRIES, DAY)
    remembered = len(choose(DIGESTS, ENTRIES, DAY).remembered)
    assert "Run 1 files" in text
    assert "by the date 2026-11-22" in text
    assert f"Remember {remembered} files with {3 * remembered} tests" in text


def test_digest_changes_with_each_part(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("one")
    second.write_text("two")
    seen = {
        digest(Closure(frozenset(files), frozenset()), tmp_path, tools)
        for files in ([first], [first, second])
        for tools in ([], ["Apache Kafka 4.3.1"], ["Apache Kafka 4.3.1", "aiokafka 0.12"])
    }
    first.write_text("three")
    seen.add(digest(Closure(frozenset([first]), frozenset()), tmp_path, []))
    first.rename(tmp_path / "c.py")
    seen.add(digest(Closure(frozenset([tmp_path / "c.py"]), frozenset()), tmp_path, []))
    assert len(seen) == 8


def test_only_files_whose_tests_have_all_passed_are_remembered() -> None:
    ran = {FILES[0]: (4, True), FILES[1]: (3, False), FILES[2]: (3, True), "tests/clients/test_new.py": (2, True)}
    now = DIGESTS | {"tests/clients/test_new.py": "new", FILES[3]: "changed since"}
    before = now | {FILES[2]: "edited during the run"}
    del now[FILES[4]]  # the file was deleted
    new = {entry.file: entry for entry in remember(ENTRIES, ran, before, now, PLACE)}
    assert new.keys() == {*FILES, "tests/clients/test_new.py"} - {FILES[1], FILES[2], FILES[3], FILES[4]}
    assert new[FILES[0]].tests == 4
    assert new["tests/clients/test_new.py"] == Entry("tests/clients/test_new.py", 2, *PLACE, digest="new")


def test_outcomes_of_a_report(tmp_path: Path) -> None:
    xml = tmp_path / "report.xml"
    xml.write_text(
        "<testsuites><testsuite>"
        '<testcase file="a.py" name="x"/><testcase file="a.py" name="y"/>'
        '<testcase file="b.py" name="x"/><testcase file="b.py" name="y"><failure>no</failure></testcase>'
        '<testcase file="c.py" name="x"><error>no</error></testcase>'
        '<testcase file="d.py" name="x"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    assert outcomes(xml) == {"a.py": (2, True), "b.py": (2, False), "c.py": (1, False), "d.py": (1, False)}


def test_committed_record_is_valid() -> None:
    if control.RECORD.exists():
        assert parse(control.RECORD.read_text())
