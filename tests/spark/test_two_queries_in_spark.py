"""Two live queries of one Spark with one prefix."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncelog.spark.writing.driver import look
from oncelog.spark.writing.options import sink_options
from spark.test_sink_in_spark import cause_line
from spark.test_spark import Pipeline, pipeline
from support.processes import wait_until

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming import StreamingQuery

__all__ = ["pipeline"]


def holding(notes: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Yield the rows unchanged. If a task 0 finds a file `hold`, it removes the file and waits for a file `go`."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        if TaskContext.get().partitionId() == 0 and Path(notes, "hold").exists():
            Path(notes, "hold").unlink()
            while not Path(notes, "go").exists():
                time.sleep(0.05)
        yield from batches

    return hold


def start(pipeline: Pipeline, checkpoint: Path, notes: Path) -> StreamingQuery:
    source = pipeline.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", pipeline.bootstrap)
    rows = source.options(subscribe=pipeline.name, startingOffsets="earliest", maxOffsetsPerTrigger="60").load()
    rows = rows.select("key", "value")
    sink = rows.mapInArrow(holding(str(notes)), rows.schema).writeStream.format("oncelog").trigger(availableNow=True)
    sink = sink.option("kafka.bootstrap.servers", pipeline.bootstrap).option("topic", pipeline.out)
    sink = sink.option("transactionalIdPrefix", pipeline.prefix).option("checkpointLocation", str(checkpoint))
    return sink.start()


@pytest.mark.parametrize("before", [0, 1], ids=["in its first batch", "later"])
def test_two_spark_queries_with_one_prefix(pipeline: Pipeline, tmp_path: Path, before: int) -> None:
    if before:
        pipeline.fill(1000, 60)
        start(pipeline, pipeline.checkpoint, tmp_path).awaitTermination()
    pipeline.fill(0, 120)
    (tmp_path / "hold").touch()
    first = start(pipeline, pipeline.checkpoint, tmp_path)
    options = {"kafka.bootstrap.servers": pipeline.bootstrap, "transactionalIdPrefix": pipeline.prefix}
    wait_until(lambda: not (tmp_path / "hold").exists(), "a task that waits exists", timeout=180)
    wait_until(lambda: bool(look(sink_options(options, streaming=True))[1]), "a task has written", timeout=180)
    second = start(pipeline, tmp_path / f"other-{uuid.uuid4().hex}", tmp_path)
    said = cause_line(lambda: second.awaitTermination(180))
    (tmp_path / "go").touch()
    assert f"option transactionalIdPrefix={pipeline.prefix}: " in said
    assert str(pipeline.checkpoint) in said
    assert str(first.id) in said
    first.awaitTermination()
    pipeline.check(120 + 60 * before)
