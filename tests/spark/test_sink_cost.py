"""The cost of a batch besides its rows: requests, and imports of the driver's processes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from oncelog.net.connection import ClientConnection
from spark.judges import create
from spark.micro_batches import Query
from support.servers import Server

MOST = {"plan": 18, "task": 11, "commit": 20}
"""Requests of each process without disturbances, including ApiVersions and Metadata."""

DRIVER = """
import pickle, sys
from pyspark.sql.types import StringType, StructField, StructType
before = set(sys.modules)
from oncelog.spark.datasource import OncelogDataSource
from oncelog.spark.writing.sink import SinkMessage
from oncelog.spark.commit.record import STREAM, Source
from oncelog.spark.commit.task import Prepared

schema = StructType([StructField("value", StringType())])
bootstrap, name = sys.argv[1:]
source = OncelogDataSource({
    "kafka.bootstrap.servers": bootstrap, "topic": name, "transactionalIdPrefix": name, "checkpointLocation": "x"
})
planned = pickle.loads(pickle.dumps(source.streamWriter(schema, False)))
nothing = SinkMessage(Prepared(0, None, 0, planned.carried, Source(STREAM, "q", 0)))
source.streamWriter(schema, False).commit([nothing], 0)
heavy = {"numba", "numpy", "pandas", "pyarrow"}
print(sorted(heavy & {module.partition(".")[0] for module in set(sys.modules) - before}))
"""


def test_planning_and_committing_import_nothing_heavy(server: Server, name: str) -> None:
    create(server.bootstrap, name)
    command = [sys.executable, "-c", DRIVER, server.bootstrap, name]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("rows", [0, 3])
def test_batch_takes_few_round_trips(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    create(server.bootstrap, name, 1)
    query = Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", rows)
    query.run(2)
    sent: Counter[str] = Counter()
    call = ClientConnection.call

    def counting(self: ClientConnection, request: Any, *rest: Any, **more: Any) -> Any:
        sent[type(request).__name__.removesuffix("Request")] += 1
        return call(self, request, *rest, **more)

    monkeypatch.setattr(ClientConnection, "call", counting)
    costs = {}
    plan = query.plan()
    costs["plan"], sent = sent, Counter()
    message = query.task(plan, 2, 0, query.values(2, 1)[0])
    costs["task"], sent = sent, Counter()
    query.commit([message], 2)
    costs["commit"] = sent
    for program, requests in costs.items():
        print(program, sum(requests.values()), dict(requests))
        assert sum(requests.values()) <= MOST[program], (program, requests)
    assert costs["task"]["Fetch"] == 1, "the plan's own record"
    assert costs["task"]["InitProducerId"] == min(rows, 1), "a task without rows opens no transaction"
