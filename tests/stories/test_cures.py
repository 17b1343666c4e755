"""Consumer-side cures on SQLite, with kill -9 between the steps: naive programs lose or duplicate, cured ones do
not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.cures import CURES, EXAMPLES, Shop
from support.servers import OncelogCluster


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "cure"])
@pytest.mark.parametrize("cure", CURES)
def test_cure_on_sqlite(oncelog_cluster: OncelogCluster, name: str, tmp_path: Path, cure: str, naive: bool) -> None:
    CURES[cure](Shop(oncelog_cluster, name, str(tmp_path / "shop.db")), naive=naive)


def test_example_without_its_input_names_the_program_to_run_first(
    oncelog_cluster: OncelogCluster, name: str, tmp_path: Path
) -> None:
    command = [sys.executable, EXAMPLES / "cures" / "unique_id.py", "--bootstrap", oncelog_cluster.bootstrap]
    command += ["--topic", name, "--database", str(tmp_path / "shop.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"topic {name} does not exist: run orders.py first\n"
