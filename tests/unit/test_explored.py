"""The explorer of the sink's protocol runs again when a file that it depends on has changed, and only then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support import explored
from support.imported_files import SourceTree

PROTOCOL, MODEL, OTHER = "src/oncelog/spark/commit/plan.py", "tests/spark/explorer/moves.py", "src/oncelog/other.py"


def test_record_is_valid_until_a_file_of_the_explorer_changes(tmp_path: Path) -> None:
    closure = SourceTree(explored.ROOT).closure(explored.ROOT / explored.FILE, imports_only=True)
    files = {path.relative_to(explored.ROOT).as_posix() for path in closure.files}
    assert {PROTOCOL, MODEL, explored.FILE} <= files
    assert not any(name.startswith(("src/oncelog/broker", "src/oncelog/spark/writing")) for name in files)
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(explored.ROOT / name, tmp_path / name)
    (tmp_path / explored.RECORD).write_text(f"{explored.HEADER}{explored.current_digest(tmp_path)}\n")
    for changed, passed in ((OTHER, True), (PROTOCOL, False), (MODEL, False)):
        before = b"" if passed else (explored.ROOT / changed).read_bytes()
        (tmp_path / changed).write_bytes(before + b"# changed\n")
        assert explored.has_passed(tmp_path) is passed
        (tmp_path / changed).write_bytes(before)


def test_explorer_runs_without_a_record(tmp_path: Path) -> None:
    assert not explored.has_passed(tmp_path)


def test_run_with_an_edited_file_is_not_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert explored.main(["record", "the digest of another content"]) == 1
    assert "was edited during the run" in capsys.readouterr().err
