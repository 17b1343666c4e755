"""The schema registry of source and sink: subjects, unknown schemas, and a registry that does not answer well."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import oncelog.spark
from oncelog import Producer
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.formats.options import field_formats, typed_options
from oncelog.spark.option_tables import SOURCE_OPTIONS
from oncelog.spark.options import Options, warn_once
from oncelog.testing.registry import SchemaRegistryDouble
from spark.judges import create
from spark.test_spark_source import batch, last_words, stream
from spark.test_typed_sink import values, write
from spark.test_typed_source import FIRST, avro, parquet, rows_of, send
from support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = {**FIRST, "namespace": "com.acme"}
CONFLUENT = {"record": record_subject_name_strategy, "topic_record": topic_record_subject_name_strategy}


@pytest.fixture
def topic(server: Server, name: str) -> str:
    create(server.bootstrap, name, 1)
    return name


@pytest.mark.parametrize("strategy", CONFLUENT)
def test_subjects_are_those_of_confluents_serializers(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str, strategy: str
) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    serializer = AvroSerializer(client, json.dumps(ORDER), conf={"subject.name.strategy": CONFLUENT[strategy]})
    send(server, topic, serializer({"id": 1, "on": 0}, SerializationContext(topic, MessageField.VALUE)))
    (subject,) = registry.subjects
    assert subject == {"record": "com.acme.Order", "topic_record": f"{topic}-com.acme.Order"}[strategy]
    options = {"valueFormat": "avro", "schemaRegistryUrl": registry.url, "valueSubjectStrategy": strategy}
    read = batch(spark, server, subscribe=topic, **options, valueRecordName="com.acme.Order")
    assert rows_of(read.load())[0]["value"]["id"] == 1
    rows = spark.sql("select 2 id, date'1970-01-01' on")
    write(rows, server, topic, **options, valueSchema=json.dumps(ORDER))
    write(rows, server, topic, **options, valueRecordName="com.acme.Order")
    assert list(registry.subjects) == [subject]
    assert sorted(row["value"]["id"] for row in rows_of(read.load())) == [1, 2, 2]


def test_strategy_registers_under_its_subject(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    rows = spark.sql("select 'k' key, 2 id, date'1970-01-01' on")
    options = {"valueFormat": "avro", "schemaRegistryUrl": registry.url, "valueSubjectStrategy": "record"}
    write(rows, server, topic, **options, valueSchema=json.dumps(ORDER), autoRegister="true")
    assert list(registry.subjects) == ["com.acme.Order"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"valueSubjectStrategy": "topics"}, "it must be one of topic, record, topic_record"),
        ({"valueRecordName": "a.B"}, "option valueRecordName needs valueSubjectStrategy=record or topic_record"),
        (
            {"valueSubjectStrategy": "record", "valueSubject": "s"},
            "option valueSubjectStrategy computes a subject, and valueSubject names one; omit one of them",
        ),
        (
            {"keySubjectStrategy": "record"},
            "option keySubjectStrategy needs keyFormat=avro and schemaRegistryUrl",
        ),
        ({"valueSubjectStrategy": "record"}, "set valueRecordName, or valueSchema to the schema of a record"),
    ],
)
def test_wrong_strategies_are_named(options: dict[str, str], said: str) -> None:
    given = {"valueFormat": "avro", "schemaRegistryUrl": "http://127.0.0.1:1", **options}

    def resolve() -> None:
        for each in field_formats(Options(given, SOURCE_OPTIONS), reading=True):
            each.resolved(["orders"])

    with pytest.raises(MisuseError) as failed:
        resolve()
    assert said in str(failed.value)


def test_registry_without_avro_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    given = {"schemaRegistryUrl": "http://127.0.0.1:1", "valueFormat": "json", "valueSchema": "id bigint"}
    field_formats(Options(given, SOURCE_OPTIONS), reading=True)
    assert caplog.messages == ["option schemaRegistryUrl has no effect without valueFormat=avro or keyFormat=avro"]


def test_ids_in_headers_are_those_of_confluents_serializer(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    conf = {"schema.id.serializer": header_schema_id_serializer, "subject.name.strategy": topic_subject_name_strategy}
    serializer = AvroSerializer(SchemaRegistryClient({"url": registry.url}), json.dumps(FIRST), conf=conf)
    context = SerializationContext(topic, MessageField.VALUE, [])
    data = serializer({"id": 1, "on": 0}, context)
    (header,) = context.headers
    with Producer(server.bootstrap) as producer:
        producer.send(topic, data, headers=[("other", b"x"), header])
        producer.send(topic, avro(registry, topic, FIRST, {"id": 2, "on": 0})[0], headers=[("other", b"x")])
        producer.send(topic, None)
        producer.send(topic, data, headers=[(header[0], b"nonsense")])
        producer.flush(30)
    options = {"subscribe": topic, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    with_headers = {**options, "schemaIdsInHeaders": "true", "badRecords": "column"}
    found = rows_of(batch(spark, server, **with_headers).load())
    assert [row["value"] and row["value"]["id"] for row in found] == [1, 2, None, None]
    assert [row["_corrupt_record"] for row in found] == [None, None, None, data]
    assert "headers" not in found[0]
    flat = batch(spark, server, **with_headers, flatten="true", includeHeaders="true").load()
    assert [(row["id"], len(row["headers"] or ())) for row in rows_of(flat)] == [(1, 2), (2, 1), (None, 0), (None, 1)]
    only_ids = batch(spark, server, **with_headers).schema("value struct<id int>").load()
    assert sorted(row["value"]["id"] for row in only_ids.where("value is not null").collect()) == [1, 2]
    with pytest.raises(Exception, match=f"offset 0 of {topic}-0: .*it has no schema id prefix"):
        batch(spark, server, **options).load().collect()


def test_ids_in_headers_need_a_registry() -> None:
    options = {"valueFormat": "avro", "valueSchema": json.dumps(FIRST), "schemaIdsInHeaders": "true"}
    with pytest.raises(MisuseError, match="option schemaIdsInHeaders=true needs a format avro and schemaRegistryUrl"):
        typed_options(Options(options, SOURCE_OPTIONS))


def test_unknown_schema_is_asked_for_once_in_a_batch(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    (good,) = avro(registry, topic, FIRST, {"id": 1, "on": 0})
    unknown = [b"\0" + number.to_bytes(4, "big") + good[5:] for number in (7_777, 8_888)]
    send(server, topic, *[good, *unknown] * 50)
    options = {"subscribe": topic, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    rows = batch(spark, server, **options, badRecords="null").load()
    assert rows.where("value is null").count() == 100
    asked = [path for _, path in registry.requests]
    assert asked.count("/schemas/ids/7777") == asked.count("/schemas/ids/8888") == 1
    with pytest.raises(Exception, match=f"offset 1 of {topic}-0: .*/schemas/ids/7777: the registry has no such schema"):
        batch(spark, server, **options).load().collect()


def test_latest_schema_without_an_id_is_refused(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    registry.body = json.dumps({"subject": f"{topic}-value", "version": 1, "schema": json.dumps(FIRST)}).encode()
    rows = spark.sql("select 1 id, date'1970-01-01' on")
    with pytest.raises(Exception, match=f"the answer for subject {topic}-value has no id"):
        write(rows, server, topic, valueFormat="avro", schemaRegistryUrl=registry.url)
    registry.body = None
    assert values(server, topic) == []


@contextmanager
def slow(registry: SchemaRegistryDouble, _: Callable[[], None]) -> Iterator[None]:
    """Let the registry answer nothing."""
    registry.hold = threading.Event()
    yield
    registry.hold.set()
    registry.hold = None


@contextmanager
def nonsense(registry: SchemaRegistryDouble, _: Callable[[], None]) -> Iterator[None]:
    """Let the registry answer with a page for people."""
    registry.body = b"<html>Sign in</html>"
    yield
    registry.body = None


@contextmanager
def down(_: SchemaRegistryDouble, stop: Callable[[], None]) -> Iterator[None]:
    """Stop the registry."""
    stop()
    yield


FAULTS = {"slow": slow, "nonsense": nonsense, "down": down}


class Restartable:
    """A registry that a test may stop."""

    def __init__(self) -> None:
        self.registry = SchemaRegistryDouble()
        self._running = ExitStack()
        self.start()

    def start(self) -> None:
        """Start the registry at its address."""
        self._running.enter_context(self.registry)

    def stop(self) -> None:
        """Stop it. Nothing listens at its address."""
        self._running.close()

    @contextmanager
    def fault(self, kind: str) -> Iterator[None]:
        """Break the registry for the block."""
        with FAULTS[kind](self.registry, self.stop):
            yield
        if kind == "down":
            self.start()


@pytest.fixture
def restartable() -> Iterator[Restartable]:
    made = Restartable()
    yield made
    made.stop()


@pytest.mark.parametrize("kind", FAULTS)
def test_source_names_a_registry_that_fails_and_resumes(
    spark: SparkSession, server: Server, restartable: Restartable, topic: str, tmp_path: Path, kind: str
) -> None:
    registry = restartable.registry
    options = {"subscribe": topic, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    send(server, topic, *avro(registry, topic, FIRST, {"id": 1, "on": 0}))
    later = avro(registry, topic, {**FIRST, "doc": "another id"}, {"id": 2, "on": 0})
    found = stream(spark, server, **options, schemaRegistryTimeoutMs="500").load().selectExpr("value.*")
    query = parquet(found, tmp_path)
    query.processAllAvailable()
    with restartable.fault(kind):
        with pytest.raises(Exception, match="option schemaRegistryUrl=") as failed:
            batch(spark, server, **options, schemaRegistryTimeoutMs="500").load()
        assert f"option schemaRegistryUrl={registry.url}: {registry.url}/" in last_words(failed.value)
        send(server, topic, *later)
        with pytest.raises(Exception, match="RegistryError") as failed:
            query.processAllAvailable()
        assert registry.url in oncelog.spark.cause(failed.value)
    again = parquet(stream(spark, server, **options).load().selectExpr("value.*"), tmp_path)
    again.processAllAvailable()
    again.stop()
    rows = spark.read.schema("id bigint").parquet(f"{tmp_path}/out").collect()
    assert sorted(row["id"] for row in rows) == [1, 2]


@pytest.mark.parametrize("kind", FAULTS)
def test_sink_names_a_registry_that_fails_and_resumes(
    spark: SparkSession, server: Server, restartable: Restartable, topic: str, tmp_path: Path, kind: str
) -> None:
    registry = restartable.registry
    out = f"{topic}-out"
    create(server.bootstrap, out, 1)
    registry.add(f"{out}-value", {"schema": json.dumps(FIRST)})

    def run() -> Any:
        rows = stream(spark, server, subscribe=topic, valueFormat="json", valueSchema="id int").load()
        sink = rows.selectExpr("value.id", "date'1970-01-01' on").writeStream.format("oncelog")
        sink = sink.options(**{"kafka.bootstrap.servers": server.bootstrap, "topic": out})
        sink = sink.options(transactionalIdPrefix=out, checkpointLocation=str(tmp_path), valueFormat="avro")
        query = sink.options(schemaRegistryUrl=registry.url, schemaRegistryTimeoutMs="500").start()
        query.processAllAvailable()
        return query

    send(server, topic, b'{"id": 1}')
    query = run()
    with restartable.fault(kind):
        send(server, topic, b'{"id": 2}')
        with pytest.raises(Exception, match="option schemaRegistryUrl=") as failed:
            query.processAllAvailable()
        assert f"option schemaRegistryUrl={registry.url}: " in oncelog.spark.cause(failed.value)
        with pytest.raises(Exception, match="option schemaRegistryUrl="):
            run()
    assert len(values(server, out)) == 1
    run().stop()
    assert len(values(server, out)) == len(set(values(server, out))) == 2
