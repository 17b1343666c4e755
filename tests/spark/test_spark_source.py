"""The source inside a real Spark: errors and when they are raised, pushed filters, growing streams."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncelog import Admin, Producer
from oncelog.spark.versions import FILTERS, LIMITS
from spark.judges import create
from support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming import DataStreamReader

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def topic(server: Server, name: str) -> str:
    """Create two partitions, with the values 0 to 19 in 0 and 100 to 119 in 1, at times 0 to 19 ms."""
    create(server.bootstrap, name, 2)
    fill(server, name, 0, 0)
    fill(server, name, 1, 100)
    return name


def fill(server: Server, topic: str, partition: int, first: int, count: int = 20) -> None:
    with Producer(server.bootstrap) as producer:
        for number in range(count):
            headers = [("number", str(number).encode())]
            value = str(first + number)
            producer.send(topic, value, key="k", partition=partition, timestamp=number, headers=headers)
        producer.flush(30)


def with_options(reader: Any, server: Server, **options: str) -> Any:
    return reader.format("oncelog").option("kafka.bootstrap.servers", server.bootstrap).options(**options)


def batch(spark: SparkSession, server: Server, **options: str) -> DataFrameReader:
    return with_options(spark.read, server, **options)  # type: ignore[no-any-return]


def stream(spark: SparkSession, server: Server, **options: str) -> DataStreamReader:
    return with_options(spark.readStream, server, **{"startingOffsets": "earliest", **options})  # type: ignore[no-any-return]


def values(rows: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in rows.select("value").collect())


def last_words(error: BaseException) -> str:
    """Return the last line that a user reads, without Spark's own state after it."""
    said = str(error).split(" SQLSTATE")[0].strip()
    assert "During handling" not in said
    assert "direct cause" not in said
    return said.splitlines()[-1]


@pytest.mark.parametrize("kind", [batch, stream], ids=["batch", "stream"])
def test_load_reports_invalid_options(spark: SparkSession, server: Server, topic: str, kind: Any) -> None:
    from pyspark.errors import AnalysisException

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        for options, said in (
            (
                {"startingOffsets": "first"},
                "MisuseError: option startingOffsets='first': it must be earliest, latest, or",
            ),
            (
                {"maxOffsetsPerTrigger": "-1"},
                "MisuseError: option maxOffsetsPerTrigger='-1': it must be a whole number of at least 1",
            ),
            (
                {"subscribe": f"{topic}-typo", "kafka.default.api.timeout.ms": "500"},
                f"MisuseError: option subscribe: topic '{topic}-typo' does not exist; create it with",
            ),
            (
                {"kafka.bootstrap.servers": dead, "bootstrapTimeoutMs": "300"},
                f"option kafka.bootstrap.servers={dead}: no broker can be reached",
            ),
        ):
            with pytest.raises(AnalysisException) as caught:
                kind(spark, server, **{"subscribe": topic, **options}).load()
            assert said in last_words(caught.value)


def test_option_invalid_only_for_streams_is_reported_at_the_start(
    spark: SparkSession, server: Server, topic: str
) -> None:
    from pyspark.errors import StreamingQueryException

    rows = stream(spark, server, subscribe=topic, endingOffsets="latest").load()
    query = rows.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert "option endingOffsets is for batch reads" in last_words(caught.value)


def test_spark_pushes_filters(spark: SparkSession, server: Server, topic: str) -> None:
    condition = "partition = 1 and offset >= 5 and offset < 18 and timestamp > timestamp_millis(9)"
    wanted = list(range(110, 118))
    assert values(batch(spark, server, subscribe=topic).load().where(condition)) == wanted, "Spark filters"
    spark.conf.set(PUSHDOWN, "true")
    try:
        rows = batch(spark, server, subscribe=topic).load().where(condition)
        assert values(rows) == wanted
        assert rows.rdd.getNumPartitions() == (1 if FILTERS else 2)
        assert ("offset" in plan(rows)) != FILTERS
        assert "timestamp" in plan(rows), "a later record may be older: Spark looks again"
        assert values(batch(spark, server, subscribe=topic).load()) == [*range(20), *range(100, 120)]
    finally:
        spark.conf.unset(PUSHDOWN)


def plan(rows: DataFrame) -> str:
    """Return the conditions that Spark itself checks."""
    text: str = rows._jdf.queryExecution().executedPlan().toString()
    return "".join(line for line in text.splitlines() if "Filter (" in line)


def test_stream_reads_a_growing_topic(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    """A partition, and a topic that matches the pattern, are added.

    Batches are split by offsets and by records per task.
    """
    options = {
        "subscribePattern": f"{topic}.*",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": "17",
        "maxRecordsPerPartition": "4",
        "minPartitions": "3",
        "kafka.metadata.max.age.ms": "100",
    }
    rows = stream(spark, server, **options).load().selectExpr("cast(value as string) value", "headers[0].value number")
    table = f"t{topic.replace('-', '')}"
    query = rows.writeStream.format("memory").queryName(table).option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        assert values(spark.table(table)) == [*range(20), *range(100, 120)]
        with Admin(server.bootstrap) as admin:
            admin.create_partitions(topic, 3)
            admin.create_topics(f"{topic}-more", 1, 1)
        fill(server, topic, 2, 200)
        fill(server, f"{topic}-more", 0, 300)
        query.processAllAvailable()
        assert values(spark.table(table)) == [n for first in range(0, 400, 100) for n in range(first, first + 20)]
        assert {int(row.value) % 100 - int(row.number) for row in spark.table(table).collect()} == {0}
    finally:
        query.stop()


def test_once_and_available_now_end_with_the_available_records(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    """Without read limits, Spark runs one batch of maxOffsetsPerTrigger. The next start continues there."""
    seen: list[int] = []
    limits = {"maxOffsetsPerTrigger": "15", "minOffsetsPerTrigger": "2"}

    def run(options: dict[str, str], **trigger: bool) -> int:
        rows = stream(spark, server, subscribe=topic, **options).load()
        writer = rows.writeStream.foreachBatch(lambda each, number: seen.extend(values(each)))
        writer.trigger(**trigger).option("checkpointLocation", str(tmp_path)).start().awaitTermination()
        return len(seen)

    wanted = [40] if LIMITS else [15, 30, 40]
    assert [run(limits, availableNow=True) for _ in wanted] == wanted
    fill(server, topic, 0, 20)
    wanted = [60] if LIMITS else [55, 60]
    assert [run(limits, once=True) for _ in wanted] == wanted
    fill(server, topic, 0, 40)
    assert run({}, availableNow=True) == 80
    assert sorted(seen) == [*range(60), *range(100, 120)]


def test_restarted_query_continues_with_limits(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    seen: list[int] = []
    sizes: list[int] = []

    def note(each: DataFrame, number: int) -> None:
        sizes.append(len(values(each)))
        seen.extend(values(each))

    for count in (40, 60, 80):
        rows = stream(spark, server, subscribe=topic, maxOffsetsPerTrigger="15").load()
        query = rows.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path)).start()
        query.processAllAvailable()
        query.stop()
        assert len(seen) == count
        fill(server, topic, 0, count)
    assert len(set(seen)) == 80
    assert max(sizes) == 15


@contextmanager
def numbers(server: Server, topic: str) -> Iterator[None]:
    """Send the numbers from 0 on, one each millisecond, until the block ends."""
    ended = threading.Event()

    def send() -> None:
        with Producer(server.bootstrap) as producer:
            number = 0
            while not ended.wait(0.001):
                producer.send(topic, str(number), partition=0)
                number += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_first_batch_of_latest_that_fails_is_replayed_without_loss(
    spark: SparkSession, server: Server, name: str, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    create(server.bootstrap, name, 1)
    failed: list[int] = []
    seen: list[int] = []

    def fail(each: DataFrame, number: int) -> None:
        failed.extend(values(each))
        raise ValueError("a bug")

    def query(function: Any) -> Any:
        rows = stream(spark, server, subscribe=name, startingOffsets="latest").load()
        return rows.writeStream.foreachBatch(function).option("checkpointLocation", str(tmp_path)).start()

    with numbers(server, name):
        with pytest.raises(StreamingQueryException, match="a bug"):
            query(fail).awaitTermination()
        start = json.loads((tmp_path / "offsets" / "0").read_text().splitlines()[-1])[name]["0"]
    repaired = query(lambda each, number: seen.extend(values(each)))
    try:
        repaired.processAllAvailable()
    finally:
        repaired.stop()
    assert sorted(seen) == list(range(min(failed, default=start), max(seen) + 1))
    assert start > 0


def test_loss_before_the_replay_of_a_first_batch_fails_the_query(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    """Spark stores only the end of the batch. The restarted query has other options, and AvailableNow."""
    from pyspark.errors import StreamingQueryException

    seen: list[int] = []

    def fail(each: DataFrame, number: int) -> None:
        raise ValueError("a bug")

    def run(function: Any, **options: str) -> None:
        rows = stream(spark, server, subscribe=topic, **options).load()
        writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="a bug"):
        run(fail)
    with Admin(server.bootstrap) as admin:
        admin.delete_records({(topic, 0): 15})
    with pytest.raises(StreamingQueryException, match=f"{topic}-0 begins at offset 15, so offsets 0 to 14 of this"):
        run(lambda each, number: seen.extend(values(each)), startingOffsets="latest")
    assert not seen
    run(lambda each, number: seen.extend(values(each)), startingOffsets="latest", failOnDataLoss="false")
    assert sorted(seen) == [*range(15, 20), *range(100, 120)]
