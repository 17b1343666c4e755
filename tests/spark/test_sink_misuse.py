"""Errors of the sink at run time, which name the wrong option or column."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from oncelog import Admin, Consumer, Producer
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.datasource import OncelogDataSource
from oncelog.spark.options import warn_once
from oncelog.spark.writing.sink import columns_of
from spark import micro_batches
from spark.judges import create, open_producers
from spark.micro_batches import Query
from support.servers import Server


@pytest.fixture
def query(server: Server, name: str, tmp_path: Path) -> Query:
    create(server.bootstrap, name, 1)
    return Query(server.bootstrap, name, f"sink-{name}", tmp_path / "checkpoint", 2)


def test_rows_cannot_be_written_to_the_decision_topic(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option `topic` is checked earlier; a column can name the topic as well."""
    schema = StructType([StructField("value", StringType()), StructField("topic", StringType())])
    monkeypatch.setattr(micro_batches, "SCHEMA", schema)
    del query.options["topic"]
    plan = query.plan()
    decisions = f"{query.prefix}-commits"
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": [query.topic, decisions]})
    with pytest.raises(MisuseError, match=f"column topic: a row names {decisions}, which is the sink's decision topic"):
        query.attempt(plan, 0, 0, iter([rows]))
    assert open_producers(query.bootstrap, query.topic, decisions) == []


@pytest.mark.parametrize("value", [b"something else", b"{}", b'{"version": 9, "record": {}}'])
def test_foreign_record_in_the_decision_topic_is_reported(query: Query, value: bytes) -> None:
    query.run(1)
    decisions = f"{query.prefix}-commits"
    with Producer(query.bootstrap) as producer:
        offset = producer.send(decisions, value, key="k").result(30).offset
    with pytest.raises(
        SinkError, match=f"option decisionTopic: the record at offset {offset} of {decisions} is not a decision record"
    ):
        query.plan()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_decision_topic_that_deletes_old_records_is_rejected(query: Query, policy: str) -> None:
    """After a restore of the metadata (restore.metadata=true), a topic has the broker's default policy."""
    query.run(1)
    decisions = f"{query.prefix}-commits"
    with Admin(query.bootstrap) as admin:
        admin.alter_topic_configs(decisions, {"cleanup.policy": policy})
        expected = rf"option decisionTopic: {decisions} has cleanup.policy={policy}.*topic alter {decisions} --config"
        with pytest.raises(MisuseError, match=expected):
            query.plan()
        admin.alter_topic_configs(decisions, {"cleanup.policy": "compact"})
    query.run(2)


def test_commit_looks_for_a_broker_for_the_bootstrap_timeout(query: Query) -> None:
    message = query.task(query.plan(), 0, 0, ["x"])
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        given = {"kafka.bootstrap.servers": dead, "bootstrapTimeoutMs": "300", "kafka.default.api.timeout.ms": "2000"}
        writer = OncelogDataSource({**query.options, **given}).streamWriter(micro_batches.SCHEMA, False)
        expected = rf"option kafka.bootstrap.servers={dead}: .*bootstrapTimeoutMs = 300"
        with pytest.raises(SinkError, match=expected):
            writer.commit([message], 0)
        with pytest.raises(SinkError, match=expected):
            writer.abort([message, None], 0)
    query.commit([message], 0)


def test_columns_have_any_case_and_others_are_ignored_with_one_warning(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fields = [
        StructField("id", IntegerType()),
        StructField("VALUE", StringType()),
        StructField("Key", StringType()),
        StructField("offset", IntegerType()),
    ]
    monkeypatch.setattr(micro_batches, "SCHEMA", StructType(fields))
    warn_once.cache_clear()
    plan = query.plan()
    rows = pa.RecordBatch.from_pydict({"id": [1], "VALUE": ["v"], "Key": ["k"], "offset": [7]})
    query.commit([query.attempt(plan, 0, 0, iter([rows]))], 0)
    (said,) = [record.getMessage() for record in caplog.records if "does not write" in record.getMessage()]
    assert said.startswith("the sink does not write the columns id, offset; its columns are key, value")
    with Consumer(query.bootstrap) as consumer:
        consumer.assign([(query.topic, 0)])
        consumer.seek_to_beginning()
        (record,) = consumer.poll(30)
    assert (record.key, record.value) == (b"k", b"v")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("value", StringType()), ("Value", StringType())], "columns value and Value: drop or rename one of them"),
        ([("Value", IntegerType())], "column value: its type must be string or binary, not int"),
        ([("values", StringType())], "column value is missing; add it to the query, or set valueFormat=json or avro"),
        ([("key", StringType())], "column value is missing; add it to the query$"),
    ],
)
def test_wrong_columns_are_rejected(fields: list[tuple[str, DataType]], said: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in fields])
    with pytest.raises(MisuseError, match=said):
        columns_of(schema, "out")


def test_strings_may_have_a_collation() -> None:
    key = SimpleNamespace(name="KEY", dataType=SimpleNamespace(simpleString=lambda: "string collate UTF8_LCASE"))
    value = SimpleNamespace(name="value", dataType=BinaryType())
    assert columns_of(SimpleNamespace(fields=[value, key]), "out") == {"value": 0, "key": 1}


def test_row_above_the_largest_request_is_rejected_before_it_is_written(query: Query) -> None:
    """The codec does not matter, as in Kafka's producer."""
    query.options |= {"kafka.max.request.size": "5000", "kafka.compression.type": "gzip"}
    plan = query.plan()
    with pytest.raises(MisuseError, match=r"option kafka.max.request.size=5000: a row has about 5\d\d\d bytes"):
        query.task(plan, 0, 0, ["fits", "x" * 2_500])
    assert open_producers(query.bootstrap, query.topic) == []
    query.commit([query.task(query.plan(), 0, 0, ["fits", "x" * 2_300])], 0)


def test_header_without_a_key_names_its_column(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    schema = StructType([StructField("value", StringType()), StructField("headers", ArrayType(pair))])
    monkeypatch.setattr(micro_batches, "SCHEMA", schema)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.RecordBatch.from_arrays(
        [pa.array(["a", "b"]), pa.array([[], [{"key": None, "value": b"x"}]], kind)], ["value", "headers"]
    )
    with pytest.raises(MisuseError, match="column headers: a header of row 1 has no key"):
        query.attempt(query.plan(), 0, 0, iter([rows]))
