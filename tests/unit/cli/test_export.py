"""`oncelog export` with unsupported input: one sentence, and nothing is changed. `conformance` tests a whole export."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes import wait_until
from support.servers import OncelogCluster


def run(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oncelog", "export", "--data", str(data), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_running_broker_and_unclean_stop_prevent_export(tmp_path: Path) -> None:
    cluster = OncelogCluster(tmp_path)
    try:
        assert f"{cluster.data} is in use by process {cluster.process.pid}" in run(cluster.data).stderr
        log_dirs = ("--set", f"log.dirs={cluster.data / 'broker-1'}")
        shutil.copytree(cluster.data, tmp_path / "copy", ignore=shutil.ignore_patterns("broker-1"))
        of_its_directory = run(tmp_path / "copy", *log_dirs)
        assert f"broker-1 is in use by process {cluster.broker_pid()}" in of_its_directory.stderr
        elsewhere = run(tmp_path / "other", *log_dirs)
        assert "does not exist; name the data directory" in elsewhere.stderr
        assert not (tmp_path / "other").exists()
        assert not (cluster.data / "broker-1" / "bootstrap.checkpoint").exists()
    finally:
        cluster.process.kill()
    wait_until(lambda: "in use by" not in run(cluster.data).stderr, "the broker ends with its supervisor")
    done = run(cluster.data)
    assert (done.returncode, done.stderr) == (0, "")
    assert (cluster.data / "broker-1" / "bootstrap.checkpoint").stat().st_size


Spoil = Callable[[Path], tuple[str, ...]]


def no_directory(data: Path) -> tuple[str, ...]:
    (data / "broker-1").rename(data / "moved")
    return ()


def never_used(data: Path) -> tuple[str, ...]:
    (data / "new").mkdir()
    return ("--set", f"log.dirs={data / 'broker-1'},{data / 'new'}")


def another_node(_: Path) -> tuple[str, ...]:
    return ("--set", "node.id=7")


def named_twice(data: Path) -> tuple[str, ...]:
    return ("--set", f"log.dirs={data / 'broker-1'},{data / 'broker-1'}/.")


def no_metadata(data: Path) -> tuple[str, ...]:
    (data / "metadata.sqlite").write_bytes(b"not a database" * 1000)
    return ()


def empty_metadata(data: Path) -> tuple[str, ...]:
    (data / "metadata.sqlite").write_bytes(b"")
    return ()


CASES: dict[str, tuple[Spoil, str]] = {
    "the log directory is missing": (no_directory, "broker-1 does not exist"),
    "a log directory was never used": (never_used, "new was never used; start the broker with it once"),
    "the number of another node": (another_node, "Set node.id to 1"),
    "a log directory twice": (named_twice, "more than once"),
    "the metadata is damaged": (no_metadata, "metadata.sqlite: file is not a database"),
    "the metadata is empty": (empty_metadata, "the metadata contains no cluster"),
}


@pytest.mark.parametrize("case", CASES)
def test_export_rejects_unsupported_input(stopped: Path, case: str) -> None:
    spoil, message = CASES[case]
    arguments = spoil(stopped)
    done = run(stopped, *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(stopped.rglob("bootstrap.checkpoint"))
    assert (case == "the log directory is missing") == (not (stopped / "broker-1").exists())


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return the data of a stopped cluster."""
    cluster = OncelogCluster(tmp_path)
    assert cluster.stop() == 0
    return cluster.data
