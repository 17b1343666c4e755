"""What a broker's process refuses before it starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oncelog.broker.process import StartError, check_apart

Paths = Callable[[Path], list[Path]]

REFUSED: dict[str, tuple[str, Paths]] = {
    "the same twice": ("more than once", lambda root: [root / "a", root / "b", root / "a"]),
    "the same by another name": ("more than once", lambda root: [root / "a", root / "b" / ".." / "a"]),
    "the same by a link": ("more than once", lambda root: [root / "a", root / "link"]),
    "one in another": ("lies in", lambda root: [root / "a", root / "a" / "inner"]),
    "the outer one last": ("lies in", lambda root: [root / "a" / "t-0", root / "b", root / "a"]),
    "one in another by a link": ("lies in", lambda root: [root / "link" / "inner", root / "a"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_log_directories_that_are_not_apart_are_refused(tmp_path: Path, case: str) -> None:
    message, paths = REFUSED[case]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(StartError, match=message):
        check_apart([str(path) for path in paths(tmp_path)])


def test_a_broker_does_not_start_on_them(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(f"log.dirs={tmp_path / 'a'},{tmp_path / 'a' / 'inner'}\n")
    command = [sys.executable, "-m", "oncelog", "broker", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("oncelog: log.dirs names ")
    assert list(tmp_path.iterdir()) == [config]  # it was refused before anything was made


@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["data", "data2"], ["a/b", "a/c"]])
def test_others_are_not(tmp_path: Path, names: list[str]) -> None:
    check_apart([str(tmp_path / name) for name in names])


def test_the_root_is_above_all(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="lies in"):
        check_apart([str(tmp_path), "/"])
