"""The sink on a standalone Spark cluster with a speculative task."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from oncelog.spark.java import ensure_java
from spark.chaos.standalone import Standalone
from spark.test_clusters import check
from support.servers import Server


@pytest.mark.timeout(500)
def test_speculative_task_on_a_standalone_cluster_duplicates_nothing(server: Server, name: str, tmp_path: Path) -> None:
    ensure_java()
    cluster = Standalone(tmp_path / "spark", Path(pyspark.__file__).parent)
    try:
        check(server, cluster.url, name, tmp_path)
    finally:
        cluster.stop()
    assert {"0", "1"} <= {path.name for path in tmp_path.iterdir()}, "the first task had a speculative twin"
