"""Source and sink where tasks run in other processes than the driver, with nothing shared but the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark import local_cluster
from spark.judges import create, open_producers, values
from support.servers import Server


@pytest.mark.timeout(180)
def test_rows_go_through_once_by_executors_of_their_own(server: Server, name: str, tmp_path: Path) -> None:
    create(server.bootstrap, name, 3)
    create(server.bootstrap, f"{name}-out", 2)
    program = [sys.executable, local_cluster.__file__, server.bootstrap, name, str(tmp_path / "checkpoint")]
    ran = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    seen = values(server.bootstrap, f"{name}-out")
    assert len(seen) == 200
    assert set(seen.values()) == {1}
    assert not open_producers(server.bootstrap, f"{name}-out", f"{name}-sink-commits")
