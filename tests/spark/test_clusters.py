"""Source and sink whose tasks run in other processes than the driver, and share only the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark import clustered
from spark.judges import create, open_producers, values
from support.servers import Server


def check(server: Server, master: str, name: str, folder: Path) -> None:
    """Check that both topics have all rows once, and that nothing is open."""
    create(server.bootstrap, name, 3)
    create(server.bootstrap, f"{name}-out", 2)
    program = [
        sys.executable,
        clustered.__file__,
        master,
        server.bootstrap,
        name,
        str(folder / "checkpoint"),
        str(folder),
    ]
    ran = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    for topic in (name, f"{name}-out"):
        seen = values(server.bootstrap, topic)
        assert len(seen) == clustered.ROWS
        assert set(seen.values()) == {1}
        assert not open_producers(server.bootstrap, topic)
    assert not open_producers(server.bootstrap, f"{name}-sink-commits", f"{name}-fill-commits")


@pytest.mark.timeout(420)
def test_rows_are_written_once_with_separate_executors(server: Server, name: str, tmp_path: Path) -> None:
    check(server, "local-cluster[2,1,1024]", name, tmp_path)
