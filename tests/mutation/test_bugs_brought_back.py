"""Check the tests themselves: known bugs are reintroduced, and the tests must fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mutation.bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources that a test may change."""
    copy = tmp_path_factory.mktemp("mutation") / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def run(tests: str, sources: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile=mutation"]
    env = {**os.environ, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    return subprocess.run([*command, *tests.split()], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", BUGS)
def test_known_bug_is_caught(name: str, sources: Path) -> None:
    bug = BUGS[name]
    module = sources / "oncelog" / bug.module
    text = module.read_text()
    assert text.count(bug.right) == 1, f"{bug.module} has changed: {bug.right!r} is there {text.count(bug.right)} times"
    module.write_text(text.replace(bug.right, bug.wrong))
    try:
        done = run(bug.caught_by, sources)
    finally:
        module.write_text(text)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, f"{bug.seen}: {name}: not caught\n{done.stdout[-3000:]}"
    assert "\nFAILED " in done.stdout, done.stdout[-3000:]


def test_tests_pass_without_a_bug(sources: Path) -> None:
    done = run(" ".join(sorted({bug.caught_by for bug in BUGS.values() if "::" in bug.caught_by})), sources)
    assert done.returncode == pytest.ExitCode.OK, done.stdout[-3000:]
