"""The partitions of rows that have neither a partition nor a key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from oncelog.client.blocking import BlockingCluster
from oncelog.spark.cluster.partitions import EARLIEST, LATEST, list_offsets
from oncelog.spark.commit.names import TopicPartition
from spark import micro_batches
from spark.judges import create
from spark.micro_batches import Query
from support.servers import Server

TASKS, BATCHES, COUNT = 3, 6, 3


def filled(server: Server, topic: str) -> Counter[int]:
    """Return the number of offsets used in each partition, including markers."""
    with BlockingCluster(server.bootstrap) as cluster:
        every = [TopicPartition(topic, number) for number in cluster.topic(topic).partitions]
        ends, firsts = (list_offsets(cluster, dict.fromkeys(every, where)) for where in (LATEST, EARLIEST))
    return Counter({at.partition: ends[at] - firsts[at] for at in every})


@pytest.mark.parametrize("tasks", [1, TASKS])
def test_rows_without_a_key_are_spread_over_all_partitions(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    """Small batches: one Arrow batch for each task."""
    monkeypatch.setattr(micro_batches, "SCHEMA", StructType([StructField("value", StringType())]))
    create(server.bootstrap, name, COUNT)
    query = Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 0)
    for batch in range(BATCHES):
        plan = query.plan()
        rows = pa.RecordBatch.from_pydict({"value": ["x"]})
        query.commit([query.attempt(plan, batch, slot, iter([rows])) for slot in range(tasks)], batch)
    each = 2 * tasks * BATCHES // COUNT
    assert filled(server, name) == dict.fromkeys(range(COUNT), each), "one row and its marker each"


def test_topics_of_a_column_have_their_own_round_robin(
    server: Server, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two topics alternate in every batch. A shared round-robin would give each only every second partition."""
    schema = StructType([StructField("value", StringType()), StructField("topic", StringType())])
    monkeypatch.setattr(micro_batches, "SCHEMA", schema)
    topics = [f"{name}-a", f"{name}-b"]
    for topic in topics:
        create(server.bootstrap, topic, 2)
    query = Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 0)
    del query.options["topic"]
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": topics})
    query.commit([query.attempt(query.plan(), 0, 0, iter([rows] * 4))], 0)
    for topic in topics:
        assert filled(server, topic) == {0: 3, 1: 3}, "two rows and a marker"
