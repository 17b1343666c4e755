"""The pytest hooks that all tests share."""

from __future__ import annotations

from pathlib import Path

from support.hooks import LONGEST, longest_first

ROOT = Path(__file__).parents[2]


def test_long_files_run_first_and_the_others_keep_their_order() -> None:
    last, first = LONGEST[-1], LONGEST[0]
    files = ["tests/b.py", last, "tests/a.py", first, "tests/b.py", first]
    assert [files[index] for index in longest_first(files)] == [
        *(first, first, last),
        *("tests/b.py", "tests/a.py", "tests/b.py"),
    ]


def test_all_long_files_exist() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []
