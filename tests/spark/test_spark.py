"""Source and sink inside a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog.client.blocking import BlockingCluster
from oncelog.protocol.messages import offset_fetch as of
from oncelog.spark.commit.record import NO_SOURCE
from oncelog.spark.writing.driver import make_plan
from oncelog.spark.writing.options import sink_options
from spark.judges import create, open_producers, values
from spark.versions import run_to_end
from support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 200
pytestmark = pytest.mark.timeout(900)
"""A timeout in the first test would leave a session that fails all others."""


class Pipeline:
    """Topic `name` to topic `name`-out, and Spark's state between the runs."""

    def __init__(self, spark: SparkSession, bootstrap: str, name: str, checkpoint: Path) -> None:
        self.spark, self.bootstrap, self.name, self.checkpoint = spark, bootstrap, name, checkpoint
        self.out, self.prefix = f"{name}-out", f"{name}-sink"
        create(bootstrap, name, 3)
        create(bootstrap, self.out, 2)

    def fill(self, first: int, count: int) -> None:
        """Write so many rows in a batch."""
        from pyspark.sql import functions as f

        text = f.col("id").cast("string")
        rows = self.spark.range(first, first + count, numPartitions=2).select(text.alias("key"), text.alias("value"))
        self.write(rows, self.name, f"{self.name}-fill")

    def write(self, rows: DataFrame, topic: str, prefix: str, **options: str) -> None:
        writer = rows.write.format("oncelog").mode("append").option("kafka.bootstrap.servers", self.bootstrap)
        writer.option("topic", topic).option("transactionalIdPrefix", prefix).options(**options).save()

    def read(self, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("oncelog").option("kafka.bootstrap.servers", self.bootstrap)
        return reader.option("subscribe", topic).options(**options).load()

    def run(self, *, limit: int = 150, **options: str) -> None:
        """Run the query until it has read all available rows. The options are the sink's."""
        source = self.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", self.bootstrap)
        source = source.option("subscribe", self.name).option("startingOffsets", "earliest")
        rows = source.option("maxOffsetsPerTrigger", limit).option("groupIdPrefix", f"{self.name}-lag").load()
        sink = rows.select("key", "value").writeStream.format("oncelog")
        sink = sink.option("kafka.bootstrap.servers", self.bootstrap).option("topic", self.out)
        sink = sink.option("transactionalIdPrefix", self.prefix).option("checkpointLocation", str(self.checkpoint))
        run_to_end(sink.options(**options))

    def check(self, count: int) -> None:
        seen = values(self.bootstrap, self.out)
        assert len(seen) == count
        assert set(seen.values()) <= {1}
        assert not open_producers(self.bootstrap, self.out, f"{self.prefix}-commits")

    def forget_last_commit(self) -> None:
        """Simulate a driver that died after the sink's commit and before Spark wrote its own."""
        commits = self.checkpoint / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def pipeline(spark: SparkSession, server: Server, name: str, tmp_path: Path, fault: Path) -> Iterator[Pipeline]:
    yield Pipeline(spark, server.bootstrap, name, tmp_path / "checkpoint")
    fault.unlink(missing_ok=True)


def test_rows_are_written_once_whatever_happens(pipeline: Pipeline, fault: Path, tmp_path: Path) -> None:
    from pyspark.errors.exceptions.base import PySparkException

    pipeline.fill(0, ROWS)
    steps = ["plan:5", "task:2", "commit:7"]
    for number, step in enumerate(steps):
        once = tmp_path / f"once-{number}"
        fault.write_text(f"{step}:{once}")
        try:
            pipeline.run()
        except PySparkException:
            assert not step.startswith("task"), "a task that dies is retried"
        assert once.exists(), f"{step} was never reached"
        pipeline.run()
        pipeline.check(ROWS + 100 * number)
        pipeline.fill(ROWS + 100 * number, 100)
    fault.unlink()
    pipeline.run()
    pipeline.check(ROWS + 100 * len(steps))
    pipeline.forget_last_commit()
    pipeline.run()
    pipeline.check(ROWS + 100 * len(steps))


def test_progress_is_committed_to_a_group(pipeline: Pipeline) -> None:
    pipeline.fill(0, 90)
    pipeline.run(limit=50)
    pipeline.check(90)
    group = f"{pipeline.name}-lag"
    wanted = of.OffsetFetchRequestGroup(group_id=group, topics=None)
    with BlockingCluster(pipeline.bootstrap) as cluster:
        response = cluster.call_coordinator("group", group, of.OffsetFetchRequest(groups=[wanted]), 8)
    assert response.groups[0].topics[0].name == pipeline.name


def test_batch_reads_have_the_connectors_columns(pipeline: Pipeline) -> None:
    pipeline.fill(0, 100)
    rows = pipeline.read(pipeline.name, includeHeaders="true", minPartitions="5")
    assert rows.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert {bytes(row.value) for row in rows.collect()} == {str(n).encode() for n in range(100)}
    some = pipeline.read(
        pipeline.name,
        startingOffsets=f'{{"{pipeline.name}":{{"0":-2,"1":-2,"2":-2}}}}',
        endingOffsets=f'{{"{pipeline.name}":{{"0":3,"1":0,"2":0}}}}',
    )
    assert [(row.partition, row.offset) for row in some.collect()] == [(0, 0), (0, 1), (0, 2)]


def test_batch_writes_are_idempotent_with_an_application_and_version(pipeline: Pipeline) -> None:
    rows = pipeline.spark.createDataFrame([("a", "1"), ("b", "2")], "key string, value string")
    for _ in range(2):
        pipeline.write(rows, pipeline.out, pipeline.prefix, txnAppId="app", txnVersion="1")
    assert values(pipeline.bootstrap, pipeline.out) == {"1": 1, "2": 1}
    pipeline.write(rows, pipeline.out, pipeline.prefix, txnAppId="app", txnVersion="2")
    with pytest.raises(Exception, match="option txnVersion=1: it is below 2"):
        pipeline.write(rows, pipeline.out, pipeline.prefix, txnAppId="app", txnVersion="1")
    pipeline.write(rows, pipeline.out, pipeline.prefix, txnAppId="app", txnVersion="1", acceptReplay="1")
    assert values(pipeline.bootstrap, pipeline.out) == {"1": 2, "2": 2}


def test_sql_reads_a_temporary_view_and_rejects_a_table(pipeline: Pipeline) -> None:
    from pyspark.errors.exceptions.base import PySparkException

    pipeline.fill(0, 5)
    name = pipeline.name.replace("-", "_")
    options = f"OPTIONS ('kafka.bootstrap.servers' = '{pipeline.bootstrap}', 'subscribe' = '{pipeline.name}')"
    pipeline.spark.sql(f"CREATE TEMPORARY VIEW {name} USING oncelog {options}")
    assert pipeline.spark.sql(f"SELECT value FROM {name}").count() == 5
    with pytest.raises(PySparkException, match="run CREATE TEMPORARY VIEW name USING oncelog"):
        pipeline.spark.sql(f"CREATE TABLE {name}_table USING oncelog {options}")


def test_misuse_is_raised_before_rows_are_written(pipeline: Pipeline) -> None:
    from pyspark.errors.exceptions.base import PySparkException

    rows = pipeline.spark.createDataFrame([("a", 1)], "key string, value int")
    with pytest.raises(PySparkException, match="column value: its type must be string or binary, not int"):
        pipeline.write(rows, pipeline.out, pipeline.prefix)
    good = pipeline.spark.createDataFrame([("a", "1")], "key string, value string")
    with pytest.raises(PySparkException, match="transactionalIdPrefix"):
        good.write.format("oncelog").mode("append").option("kafka.bootstrap.servers", "x:1").option("topic", "t").save()
    with pytest.raises(PySparkException, match="can only append"):
        good.write.format("oncelog").mode("overwrite").option("kafka.bootstrap.servers", pipeline.bootstrap).option(
            "topic", pipeline.out
        ).option("transactionalIdPrefix", pipeline.prefix).save()
    assert not values(pipeline.bootstrap, pipeline.out)


def test_driver_of_another_process_is_fenced(pipeline: Pipeline) -> None:
    """Another driver plans with this prefix between two runs: the next plan fences that one."""
    pipeline.fill(0, 50)
    pipeline.run()
    given = {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        "topic": pipeline.out,
        "transactionalIdPrefix": pipeline.prefix,
    }
    make_plan(sink_options(given, streaming=True), NO_SOURCE)
    pipeline.fill(50, 50)
    pipeline.run()
    pipeline.check(100)
