"""Consumer-side cures on SQLite, with kill -9 between the steps: naive, each loses or doubles; cured, it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.cures import CURES, Shop
from support.servers import OncelogCluster


@pytest.mark.parametrize("naive", [True, False], ids=["naive", "cure"])
@pytest.mark.parametrize("cure", CURES)
def test_a_cure_on_sqlite(oncelog_cluster: OncelogCluster, name: str, tmp_path: Path, cure: str, naive: bool) -> None:
    CURES[cure](Shop(oncelog_cluster, name, str(tmp_path / "shop.db")), naive=naive)
