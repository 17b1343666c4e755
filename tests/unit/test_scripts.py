"""The scripts: help without an installation, an interrupted installation, an interrupted run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if path.suffix == "")

FAKE_PYTHON = """#!/bin/sh
# Replaces Python: it notes what it creates and installs, and can hang during an installation.
case $*  in
"-m venv --clear "*)
    echo made >>"$LOG"
    rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
"-m pip "*)
    echo $$ >"$LOG.pip"
    while [ -e "$LOG.hang" ]; do sleep 0.05; done
    echo installed >>"$LOG"
    for word; do :; done; echo "$word" >>"$LOG.extras" ;;
"-m pytest"*)
    echo tested >>"$LOG"; echo "$*" >>"$LOG.arguments"
    if [ -e "$LOG.status" ]; then status=$(cat "$LOG.status"); rm "$LOG.status"; exit "$status"; fi ;;
"-m support.control choose"*) echo tests/a.py tests/b.py ;;
"-m support.control record"*) echo recorded >>"$LOG" ;;
"-u "*) echo shown >>"$LOG" ;;
esac
"""
HANGING_TEST = """
import pathlib, threading
def test_waits(oncelog_cluster):
    pids = f"{oncelog_cluster.process.pid} {oncelog_cluster.broker_pid()}"
    pathlib.Path("pids.new").write_text(pids)
    pathlib.Path("pids.new").rename("pids")
    threading.Event().wait()
"""


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "it ended too early"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create a folder with the scripts and pyproject.toml, without .venv."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.fixture
def begin(checkout: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a script of the checkout, and stop it at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [checkout / "scripts" / command[0], *command[1:]],
            cwd="/",
            env={**os.environ, "LOG": str(checkout / "log"), **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("arguments", [("--help",), ("something", "-h")], ids=" ".join)
def test_help_installs_nothing(checkout: Path, script: str, arguments: tuple[str, ...]) -> None:
    before = sorted(checkout.iterdir())
    shown = subprocess.run(
        [checkout / "scripts" / script, *arguments],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0
    assert shown.stderr == ""
    first = (ROOT / "scripts" / script).read_text().splitlines()[1]
    assert shown.stdout.splitlines()[0] == first.removeprefix("# ")
    assert "set -" not in shown.stdout
    assert sorted(checkout.iterdir()) == before


def test_interrupted_installation_is_repeated(checkout: Path, begin: Callable[..., subprocess.Popen[bytes]]) -> None:
    python = checkout / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    hang, pip, log = checkout / "log.hang", checkout / "log.pip", checkout / "log"
    hang.touch()
    process = begin("test", PYTHON=str(python))
    wait_for(lambda: pip.exists() and pip.read_text().endswith("\n"), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    assert not is_running(int(pip.read_text()))
    assert log.read_text().split() == ["made"]

    hang.unlink()
    assert begin("test", PYTHON=str(python)).wait() == 0
    assert log.read_text().split() == ["made", "made", "installed", "tested"]
    assert begin("test", PYTHON=str(python)).wait() == 0
    assert log.read_text().split()[4:] == ["tested"]


def test_killed_installation_is_repeated(checkout: Path, begin: Callable[..., subprocess.Popen[bytes]]) -> None:
    python = checkout / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    hang, pip, log = checkout / "log.hang", checkout / "log.pip", checkout / "log"
    hang.touch()
    process = begin("test", PYTHON=str(python))
    wait_for(lambda: pip.exists() and pip.read_text().endswith("\n"), process)
    process.kill()
    process.wait()
    os.kill(int(pip.read_text()), signal.SIGKILL)
    hang.unlink()
    assert begin("test", PYTHON=str(python)).wait() == 0
    assert log.read_text().split() == ["made", "made", "installed", "tested"]


@pytest.mark.parametrize(
    ("order", "extras"), [(("demo", "test"), [".[demo]", ".[dev]"]), (("test", "demo"), [".[dev]"])], ids=str
)
def test_demo_installs_less_than_the_tests(
    checkout: Path, begin: Callable[..., subprocess.Popen[bytes]], order: tuple[str, str], extras: list[str]
) -> None:
    python = checkout / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    for script in (*order, *order):
        assert begin(script, PYTHON=str(python)).wait() == 0
    assert (checkout / "log.extras").read_text().split() == extras
    done = {"demo": "shown", "test": "tested"}
    log = (checkout / "log").read_text().split()
    assert [word for word in log if word in done.values()] == [done[script] for script in order] * 2
    assert log.count("made") == 1


def test_tests_run_with_the_requested_python(checkout: Path, begin: Callable[..., subprocess.Popen[bytes]]) -> None:
    programs = checkout / "programs"
    programs.mkdir()
    for name in ("python3", "python3.13"):
        python = programs / name
        python.write_text(FAKE_PYTHON)
        python.chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    assert begin("test", "--python", "3.13", PATH=path).wait() == 0
    assert begin("test", "--python", "3.13", PATH=path).wait() == 0
    assert (checkout / "log").read_text().split() == ["made", "installed", "tested", "tested"]
    assert (checkout / ".cache" / "venv-3.13" / "bin" / "python").exists()
    assert not (checkout / ".venv").exists()
    assert begin("test", "--python", PATH=path).wait() == 1


@pytest.mark.parametrize(
    ("arguments", "first_status", "done", "status"),
    [
        ([], 0, ["tested"], 0),
        (["--record", "--all"], 0, ["tested", "recorded"], 0),
        (["--record"], 1, ["tested", "tested", "recorded"], 0),  # the failed test passed the second time
        (["--record"], 2, ["tested"], 2),  # interrupted
        (["tests/a.py"], 0, [], 1),
    ],
)
def test_control_runs_the_chosen_files_and_repeats_failures(
    checkout: Path,
    begin: Callable[..., subprocess.Popen[bytes]],
    arguments: list[str],
    first_status: int,
    done: list[str],
    status: int,
) -> None:
    for program in (".venv/bin/python", "programs/java"):
        path = checkout / program
        path.parent.mkdir(parents=True)
        path.write_text(FAKE_PYTHON)
        path.chmod(0o755)
    stamp = subprocess.run(["cksum", "pyproject.toml"], cwd=checkout, capture_output=True, check=True).stdout
    (checkout / ".venv" / ".installed").write_bytes(stamp)
    (checkout / "log.status").write_text(str(first_status))
    (checkout / ".complete").touch()
    path = f"{checkout / 'programs'}:/usr/bin:/bin"
    assert begin("control", *arguments, PATH=path, ONCELOG_KAFKA_LIBS=str(checkout)).wait() == status
    log = checkout / "log"
    assert (log.read_text().split() if log.exists() else []) == done
    if "tested" in done:
        runs = (checkout / "log.arguments").read_text().splitlines()
        assert all(run.endswith("tests/a.py tests/b.py") for run in runs)
        assert ["--last-failed" in run for run in runs] == [False, True][: len(runs)]


def test_sigterm_leaves_no_broker_behind(checkout: Path, begin: Callable[..., subprocess.Popen[bytes]]) -> None:
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    stamp = subprocess.run(["cksum", "pyproject.toml"], cwd=checkout, capture_output=True, check=True).stdout
    (checkout / ".venv" / ".installed").write_bytes(stamp)
    (checkout / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", checkout / "tests")
    (checkout / "tests" / "test_waits.py").write_text(HANGING_TEST)
    process = begin("test", "--basetemp", str(checkout / "tmp"), PYTHONPATH=str(ROOT / "tests"))
    pids = checkout / "pids"
    wait_for(pids.exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 2  # pytest's status for an interrupted run
    assert [pid for pid in map(int, pids.read_text().split()) if is_running(pid)] == []
