"""The command of scripts/nightly: it continues at the next seeds, keeps to its time, and reports failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import nightly

PYTHON = f"{sys.executable} -c"
WORKS = nightly.Part(f"{PYTHON} print({{seed}},{{count}})", 10, 0)
FAILS = nightly.Part(f"{PYTHON} exit({{seed}}+3)", 1, 0)
LONG = nightly.Part(f"{PYTHON} print(1)", 1, 1000)
HANGS = nightly.Part(f"{PYTHON} __import__('time').sleep(600)", 1, 0)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, **parts: nightly.Part) -> tuple[int, str]:
    monkeypatch.setattr(nightly, "PARTS", parts)
    report = folder / "report.md"
    status = nightly.main(["--state", str(folder / "state"), "--report", str(report), *arguments])
    return status, report.read_text()


def one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each part run one step: the next ones take longer than the night."""
    ran = nightly.State.ran
    monkeypatch.setattr(nightly.State, "ran", lambda self, name, seed, _: ran(self, name, seed, 1e6))


def test_next_run_continues_at_the_next_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_turn(monkeypatch)
    status, report = run(tmp_path, monkeypatch, "--minutes", "10", works=WORKS, long=LONG)
    assert status == 0
    assert "| works | 0 to 9 | 1 | 0.0 | 0 10 |" in report
    assert "| long | none | 0 | 0.0 | no time |" in report
    (tmp_path / "state" / "state.json").write_text('{"works": {"next": 10, "seconds": 0}}')
    _, report = run(tmp_path, monkeypatch, "--minutes", "10", works=WORKS)
    assert "| works | 10 to 19 | 1 | 0.0 | 10 10 |" in report


def test_failed_step_is_reported_with_its_command_and_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_turn(monkeypatch)
    status, report = run(tmp_path, monkeypatch, "--minutes", "10", fails=FAILS, works=WORKS)
    assert status == 1
    assert "Failed steps: 1." in report
    assert f"- `{PYTHON} exit(0+3)`" in report
    assert (tmp_path / "state" / "fails-0.log").exists()
    assert "| works | 0 to 9 |" in report, "later parts still run"


def test_step_that_hangs_ends_at_the_time_limit_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, report = run(tmp_path, monkeypatch, "--minutes", "0.02", hangs=HANGS)
    assert status == 0
    assert "| hangs | none | 0 |" in report
    assert "ended at its time limit" in report
    assert nightly.State(tmp_path / "state" / "state.json").next_seed("hangs") == 0


def test_interrupted_run_ends_its_step_and_writes_the_report(tmp_path: Path) -> None:
    code = f"""
import sys
from support import nightly
nightly.PARTS = {{"hangs": nightly.Part({HANGS.command!r}, 1, 0)}}
sys.exit(nightly.main(["--state", {str(tmp_path / "state")!r}, "--report", {str(tmp_path / "report.md")!r}]))
"""
    environment = {**os.environ, "PYTHONPATH": str(nightly.ROOT / "tests")}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=nightly.ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "sleep(600)" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130
    assert "The run was interrupted." in output
    assert (tmp_path / "report.md").read_text() in output
