"""Consumer-side cures on SQLite, with kill -9 between the steps: naive programs lose or duplicate, cured ones do
not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.cures import CURES, EXAMPLES, Shop, check_paused_order_and_event
from support.servers import OncelogCluster


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "cure"])
@pytest.mark.parametrize("cure", CURES)
def test_cure_on_sqlite(shop_server: OncelogCluster, name: str, tmp_path: Path, cure: str, naive: bool) -> None:
    CURES[cure](Shop(shop_server, name, str(tmp_path / "shop.db")), naive=naive)


def test_paused_process_decides_nothing_after_its_successor(
    shop_server: OncelogCluster, name: str, tmp_path: Path
) -> None:
    check_paused_order_and_event(Shop(shop_server, name, str(tmp_path / "shop.db")))


def test_example_without_its_input_names_the_program_to_run_first(
    shop_server: OncelogCluster, name: str, tmp_path: Path
) -> None:
    command = [sys.executable, EXAMPLES / "cures" / "unique_id.py", "--bootstrap", shop_server.bootstrap]
    command += ["--topic", name, "--database", str(tmp_path / "shop.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"topic {name} does not exist: run orders.py first\n"
