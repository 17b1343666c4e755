"""Errors of the sink at run time, which name the wrong option or column."""

from __future__ import annotations

import socket
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from oncelog import Admin, Producer
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.datasource import OncelogDataSource
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
