"""The sink's columns, its errors as shown to a Spark user, and checkpoints that do not match."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.judges import create, open_producers, values
from spark.test_spark import Pipeline, pipeline
from spark.versions import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["pipeline"]

COLUMNS = "key string, value string, topic string, partition int, headers array<struct<key: string, value: binary>>"


def cause_line(act: Callable[[], object]) -> str:
    """Return the line of an exception that names the cause. No line of PySpark's may follow it.

    From Python 3.14 on, pickle adds a line with the object: "when serializing tuple item 0".
    """
    from pyspark.errors.exceptions.base import PySparkException

    with pytest.raises(PySparkException) as caught:
        act()
    text = str(caught.value).partition("=== Streaming Query ===")[0]
    assert "PicklingError" not in text
    assert "During handling" not in text
    assert "direct cause" not in text
    lines = [line for line in text.splitlines() if line.strip() and "SQLSTATE" not in line]
    return [line for line in lines if not line.startswith("when serializing ")][-1]


def write_by_row(pipeline: Pipeline, rows: DataFrame, **options: str) -> None:
    writer = rows.write.format("oncelog").mode("append").option("kafka.bootstrap.servers", pipeline.bootstrap)
    writer.option("transactionalIdPrefix", pipeline.prefix).options(**options).save()


def test_rows_select_topic_partition_and_headers(pipeline: Pipeline) -> None:
    other = f"{pipeline.name}-other"
    create(pipeline.bootstrap, other, 3)
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    rows = [
        ("k", "1", pipeline.out, 1, headers),
        ("k", "2", other, 2, []),
        (None, "3", other, 0, None),
        ("k", "4", other, None, [("h", b"x")]),
        (None, "5", pipeline.out, 0, None),
    ]
    write_by_row(pipeline, pipeline.spark.createDataFrame(rows, COLUMNS))
    seen = {}
    for topic in (pipeline.out, other):
        for row in pipeline.read(topic, includeHeaders="true").collect():
            found = [(header.key, header.value and bytes(header.value)) for header in row.headers or []]
            seen[bytes(row.value).decode()] = (row.key and bytes(row.key), row.topic, row.partition, found)
    by_key = seen.pop("4")
    assert (by_key[0], by_key[1], by_key[3]) == (b"k", other, [("h", b"x")])
    assert seen == {
        "1": (b"k", pipeline.out, 1, [("a", b"1"), ("a", None), ("b", b"")]),
        "2": (b"k", other, 2, []),
        "3": (None, other, 0, []),
        "5": (None, pipeline.out, 0, []),
    }
    assert not open_producers(pipeline.bootstrap, pipeline.out, other, f"{pipeline.prefix}-commits")


def test_columns_have_any_case_and_collation_and_others_are_ignored(pipeline: Pipeline) -> None:
    rows = pipeline.spark.sql("select 1 id, 'v' VALUE, 'k' collate UTF8_LCASE as Key, 0 offset")
    pipeline.write(rows, pipeline.out, pipeline.prefix)
    (row,) = pipeline.read(pipeline.out).collect()
    assert (bytes(row.key), bytes(row.value)) == (b"k", b"v")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("k", "v", None, 0, None), "fill the column, or set option topic"),
        (("k", "v", "no-such-topic", 0, None), "topic 'no-such-topic' does not exist"),
        (("k", "v", "", 7, None), "column partition"),
    ],
)
def test_row_with_an_invalid_destination_fails_all(
    pipeline: Pipeline, row: tuple[str, str, str | None, int, None], said: str
) -> None:
    good = ("k", "v", pipeline.out, 0, None)
    bad = (*row[:2], pipeline.out if row[2] == "" else row[2], *row[3:])
    rows = pipeline.spark.createDataFrame([good, bad], COLUMNS)
    assert said in cause_line(lambda: write_by_row(pipeline, rows))
    assert not values(pipeline.bootstrap, pipeline.out)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "nowhere-at-all"}, "option topic"),
        ({"takeOver": "maybe"}, "option takeOver"),
        ({"kafka.transaction.timeout.ms": "99999999"}, "option kafka.transaction.timeout.ms"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "bootstrapTimeoutMs": "300"}, "option kafka.bootstrap.servers"),
    ],
)
def test_rejection_is_the_last_line_and_names_the_option(
    pipeline: Pipeline, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    rows = pipeline.spark.createDataFrame([("a", "1")], "key string, value string")
    given = {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        "topic": pipeline.out,
        "transactionalIdPrefix": pipeline.prefix,
        **options,
    }
    assert said in cause_line(lambda: rows.write.format("oncelog").mode("append").options(**given).save())
    stream = pipeline.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    sink = stream.selectExpr("cast(value as string) as value").writeStream.format("oncelog").options(**given)
    query = sink.option("checkpointLocation", str(tmp_path / "stream")).start()
    assert said in cause_line(lambda: query.awaitTermination(60))
    assert not values(pipeline.bootstrap, pipeline.out)


def test_deleted_checkpoint_is_rejected_and_take_over_duplicates_as_documented(pipeline: Pipeline) -> None:
    pipeline.fill(0, 30)
    pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    said = cause_line(pipeline.run)
    assert "option transactionalIdPrefix" in said
    assert "takeOver=true" in said
    assert "startingOffsets" in said
    pipeline.check(30)
    pipeline.run(takeOver="true")
    assert set(values(pipeline.bootstrap, pipeline.out).values()) == {2}


def test_older_checkpoint_is_rejected(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.fill(0, 30)
    pipeline.run()
    shutil.copytree(pipeline.checkpoint, tmp_path / "older")
    for more in (30, 60):
        pipeline.fill(more, 30)
        pipeline.run()
    shutil.rmtree(pipeline.checkpoint)
    shutil.copytree(tmp_path / "older", pipeline.checkpoint)
    assert "option checkpointLocation: the checkpoint is at batch" in cause_line(pipeline.run)
    pipeline.check(90)


def fill_partition(pipeline: Pipeline, partition: int, first: int, count: int) -> None:
    from pyspark.sql import functions as f

    value = f.col("id").cast("string").alias("value")
    rows = pipeline.spark.range(first, first + count).select(value, f.lit(partition).alias("partition"))
    pipeline.write(rows, pipeline.name, f"{pipeline.name}-fill")


def lose_files(checkpoint: Path, batch: int) -> None:
    for folder in ("offsets", "commits"):
        for lost in (checkpoint / folder / str(batch), checkpoint / folder / f".{batch}.crc"):
            lost.unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["older copy", "lost files"])
def test_batch_that_an_older_checkpoint_plans_again_is_rejected(pipeline: Pipeline, tmp_path: Path, how: str) -> None:
    """The batch has as many rows as the committed one, but others: half of another partition's."""
    own, older = pipeline.checkpoint, tmp_path / "older"
    fill_partition(pipeline, 2, 0, 66)
    pipeline.run()
    shutil.copytree(own, older)
    fill_partition(pipeline, 0, 66, 66)
    pipeline.run()
    fill_partition(pipeline, 1, 132, 66)
    if how == "lost files":
        shutil.rmtree(older)
        shutil.copytree(own, older)
        newest = max(int(file.name) for file in (own / "offsets").iterdir() if file.name.isdecimal())
        lose_files(older, newest)
    pipeline.checkpoint = older
    said = cause_line(lambda: pipeline.run(limit=66))
    assert "option checkpointLocation: the sink has committed batch" in said
    assert "with other offsets" in said
    pipeline.check(132)
    pipeline.checkpoint = own
    pipeline.run()
    pipeline.check(198)


def test_batch_after_edited_offsets_is_rejected(pipeline: Pipeline) -> None:
    fill_partition(pipeline, 0, 0, 50)
    pipeline.run()
    folder = pipeline.checkpoint / "offsets"
    newest = max(int(file.name) for file in folder.iterdir() if file.name.isdecimal())
    (folder / f".{newest}.crc").unlink(missing_ok=True)
    lines = (folder / str(newest)).read_text().splitlines()
    edited = re.sub(r'"0": ?(\d+)', lambda found: f'"0":{int(found[1]) - 10}', lines[-1])
    assert edited != lines[-1]
    (folder / str(newest)).write_text("\n".join([*lines[:-1], edited]))
    said = cause_line(pipeline.run)
    assert f"option checkpointLocation: batch {newest + 1} of the checkpoint" in said
    assert f"does not begin where batch {newest} ended" in said
    pipeline.check(50)


def test_foreach_batch_with_txn_app_id_and_the_batch_id_as_version(pipeline: Pipeline) -> None:
    """A batch that Spark replays is written once, so `foreachBatch` becomes exactly-once."""
    pipeline.fill(0, 60)
    seen = []

    def write(batch: DataFrame, number: int) -> None:
        seen.append(number)
        rows = batch.select("key", "value")
        pipeline.write(rows, pipeline.out, pipeline.prefix, txnAppId="each", txnVersion=str(number))

    def run() -> None:
        source = pipeline.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", pipeline.bootstrap)
        rows = source.option("subscribe", pipeline.name).option("startingOffsets", "earliest").load()
        run_to_end(rows.writeStream.foreachBatch(write).option("checkpointLocation", str(pipeline.checkpoint)))

    run()
    pipeline.forget_last_commit()
    run()
    assert seen.count(max(seen)) == 2, "Spark has replayed the last batch"
    pipeline.check(60)
    pipeline.fill(60, 30)
    run()
    shutil.rmtree(pipeline.checkpoint)
    pipeline.fill(90, 5)
    with pytest.raises(Exception, match=r"option txnVersion=0: it is below 1, .*new checkpoint begins at 0 again"):
        run()
    pipeline.check(90)
