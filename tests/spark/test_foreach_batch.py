"""Batch writes inside foreachBatch: the sink writes a replayed batch once, even without txnAppId and txnVersion."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from oncelog.spark.commit.errors import AnotherDriverError, MisuseError, NotDecidedError
from oncelog.spark.writing import sink as product
from oncelog.spark.writing.sink import (
    BATCH_ID,
    CALL,
    CONNECT_OPERATION,
    CONNECT_PLAN,
    OF_A_STREAM,
    QUERY_ID,
    BatchSink,
    SinkMessage,
)
from spark.judges import create, open_producers, values
from spark.micro_batches import SCHEMA, FakeTaskContext
from spark.test_sink_in_spark import cause_line
from spark.test_spark import Pipeline, pipeline
from spark.versions import run_to_end
from support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["pipeline"]

Call = tuple[str, int, str]
"""Query, batch number, and the execution of the micro-batch."""


class Writes:
    """Batch writes to one topic, with the properties that Spark's tasks have inside foreachBatch."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.hidden: str | None = None
        self.extra: dict[str, str] = {}
        create(bootstrap, topic)

    def begin(self, call: Call | None, rows: list[str], prefix: str = "", **options: str) -> Callable[[], None]:
        """Plan a write and run its task; returns what commits it."""
        given = {
            "kafka.bootstrap.servers": self.bootstrap,
            "topic": self.topic,
            "transactionalIdPrefix": prefix or f"sink-{self.topic}",
            **options,
        }
        writer = BatchSink(given, SCHEMA, overwrite=False)
        writer.__getstate__()
        context = FakeTaskContext(0, 0, 0, 0, "")
        known = {} if call is None else properties(call)
        context.properties = {name: text for name, text in known.items() if name != self.hidden} | self.extra
        FakeTaskContext.current = context
        batch = pa.RecordBatch.from_pydict({"key": rows, "value": rows})
        message = writer.write(iter([batch]))
        assert isinstance(message, SinkMessage)
        return lambda: writer.commit([message])

    def write(self, call: Call | None, rows: list[str], prefix: str = "", **options: str) -> None:
        self.begin(call, rows, prefix, **options)()

    def seen(self) -> dict[str, int]:
        return dict(values(self.bootstrap, self.topic))


def properties(call: Call) -> dict[str, str]:
    query, batch, execution = call
    application, start, root = CALL
    return {QUERY_ID: query, BATCH_ID: str(batch), application: "local-1", start: "1", root: execution}


@pytest.fixture
def writes(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writes]:
    monkeypatch.setattr(product, "TaskContext", FakeTaskContext)
    yield Writes(server.bootstrap, name)
    assert not open_producers(server.bootstrap, name)


def test_replayed_batch_is_written_once(writes: Writes) -> None:
    for batch in range(2):
        for execution in "ab":
            writes.write(("q", batch, f"{batch}{execution}"), [f"{batch}"])
    writes.write(("q", 5, "5a"), ["5"])
    assert writes.seen() == {"0": 1, "1": 1, "5": 1}


@pytest.mark.parametrize("replays", [0, 1, 2])
def test_second_write_of_one_call_is_rejected_in_each_replay(writes: Writes, replays: int) -> None:
    """Both writes have the same query id and batch number. In a replay, the second one would look like the first."""
    for number in range(replays + 1):
        call = ("q", 0, f"{number}")
        writes.write(call, ["one"])
        with pytest.raises(MisuseError, match=r"could not distinguish the two writes.*txnAppId and txnVersion"):
            writes.write(call, ["two"])
    assert writes.seen() == {"one": 1}


def test_second_write_does_not_replace_the_first_one_whose_error_was_ignored(writes: Writes) -> None:
    """In the first call, only the write to the other topic has succeeded."""
    other = f"{writes.topic}-other"
    create(writes.bootstrap, other)
    writes.write(("q", 0, "a"), ["two"], topic=other)
    with pytest.raises(MisuseError, match=rf"a write to topic {other} has committed batch 0, but .* acceptReplay=0"):
        writes.write(("q", 0, "b"), ["one"])
    writes.write(("q", 0, "c"), ["two"], topic=other)
    writes.write(("q", 0, "d"), ["one"], acceptReplay="0")
    assert not writes.seen()
    assert values(writes.bootstrap, other) == {"two": 1}


def test_two_writes_of_one_call_with_different_prefixes_are_written_once(writes: Writes) -> None:
    for execution in "ab":
        writes.write(("q", 0, execution), ["one"], f"{writes.topic}-1")
        writes.write(("q", 0, execution), ["two"], f"{writes.topic}-2")
    assert writes.seen() == {"one": 1, "two": 1}


def test_txn_app_id_and_txn_version_take_precedence_inside_foreach_batch(writes: Writes) -> None:
    for execution in "ab":
        writes.write(("q", 0, execution), ["one"], f"{writes.topic}-1", txnAppId="app", txnVersion="0")
        writes.write(("q", 0, execution), ["two"], f"{writes.topic}-2", txnAppId="app", txnVersion="1")
    assert writes.seen() == {"one": 1, "two": 1}
    writes.write(("q", 0, "c"), ["three"], f"{writes.topic}-1", txnAppId="app", txnVersion="7")
    assert writes.seen() == {"one": 1, "two": 1, "three": 1}


def test_commit_replayed_before_its_decision_is_written_once(writes: Writes) -> None:
    first = writes.begin(("q", 0, "a"), ["row"])
    second = writes.begin(("q", 0, "b"), ["row"])
    with pytest.raises((AnotherDriverError, NotDecidedError)):
        first()
    second()
    assert writes.seen() == {"row": 1}


PLAN = "Spark Connect - plan { root { cached_remote_relation {"


@pytest.mark.parametrize(
    ("known", "rejected"),
    [
        ({OF_A_STREAM: "200", CONNECT_OPERATION: "1", CONNECT_PLAN: PLAN}, True),
        ({CONNECT_OPERATION: "1", CONNECT_PLAN: PLAN}, False),
        ({CONNECT_PLAN: PLAN}, True),
        ({CONNECT_PLAN: "Spark Connect - plan { root {"}, False),
    ],
    ids=["Connect", "Connect-checkpoint", "older-Connect", "older-Connect-outside"],
)
def test_call_that_spark_does_not_report_is_rejected(writes: Writes, known: dict[str, str], rejected: bool) -> None:
    """Spark Connect reports neither query nor batch. A replay would be written twice."""
    writes.extra = known
    if rejected:
        with pytest.raises(MisuseError, match=r"inside foreachBatch .* set the options txnAppId"):
            writes.write(None, ["one"])
        assert not writes.seen()
    writes.write(None, ["two"], txnAppId="app", txnVersion="1")
    writes.write(None, ["two"], txnAppId="app", txnVersion="1")
    assert writes.seen() == {"two": 1}


def test_replay_with_other_rows_is_rejected(writes: Writes) -> None:
    writes.write(("q", 0, "a"), ["one", "two"])
    with pytest.raises(Exception, match="committed with 2 rows and is now replayed with 1"):
        writes.write(("q", 0, "b"), ["one"])


def test_older_checkpoint_and_another_query_are_rejected(writes: Writes) -> None:
    writes.write(("q", 4, "a"), ["four"])
    with pytest.raises(
        MisuseError,
        match="checkpointLocation: the checkpoint is at batch 3, but the sink has already committed batch 4",
    ):
        writes.write(("q", 3, "b"), ["three"])
    with pytest.raises(
        MisuseError, match=r"belongs to foreachBatch 'q' \(last batch 4\), but this is foreachBatch 'r'"
    ):
        writes.write(("r", 0, "c"), ["zero"])
    with pytest.raises(
        MisuseError, match=r"belongs to foreachBatch 'q' \(last batch 4\), but this is a batch write without txnAppId"
    ):
        writes.write(None, ["plain"])
    writes.write(("r", 0, "d"), ["zero"], takeOver="true")
    assert writes.seen() == {"four": 1, "zero": 1}


@pytest.mark.parametrize("hidden", [QUERY_ID, BATCH_ID, *CALL])
def test_write_without_a_batch_id_from_spark_is_rejected(writes: Writes, hidden: str) -> None:
    writes.hidden = hidden
    with pytest.raises(MisuseError, match=r"inside foreachBatch.*txnAppId .*txnVersion"):
        writes.write(("q", 0, "a"), ["row"])
    assert not writes.seen()


def test_plain_batch_writes_are_not_treated_as_replays(writes: Writes) -> None:
    for _ in range(2):
        writes.write(None, ["row"])
    assert writes.seen() == {"row": 2}


def test_foreach_batch_replayed_by_spark_is_written_once(pipeline: Pipeline) -> None:
    pipeline.fill(0, 60)
    seen = []

    def write(batch: DataFrame, number: int) -> None:
        seen.append(number)
        pipeline.spark.sparkContext.setJobGroup("mine", "a name of the user's own")
        pipeline.write(batch.select("key", "value"), pipeline.out, pipeline.prefix)
        if refuse:
            pipeline.write(batch.select("key", "value"), pipeline.out, pipeline.prefix)

    def run(limit: int = 60) -> None:
        source = pipeline.spark.readStream.format("oncelog").option("kafka.bootstrap.servers", pipeline.bootstrap)
        source = source.option("subscribe", pipeline.name).option("startingOffsets", "earliest")
        rows = source.option("maxOffsetsPerTrigger", limit).load()
        run_to_end(rows.writeStream.foreachBatch(write).option("checkpointLocation", str(pipeline.checkpoint)))

    refuse = False
    run()
    pipeline.forget_last_commit()
    run()
    assert seen.count(max(seen)) == 2, "Spark has replayed the last batch"
    pipeline.check(60)
    pipeline.fill(60, 20)
    refuse = True
    assert "could not distinguish the two writes" in cause_line(run)
    pipeline.check(80)
    refuse = False
    run()
    pipeline.check(80)
