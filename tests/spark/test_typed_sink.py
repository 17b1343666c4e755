"""Typed keys and values of the sink in a real Spark: JSON, and Avro with a registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oncelog import Consumer
from oncelog.serialization import AvroDeserializer, SchemaRegistry
from oncelog.testing.registry import SchemaRegistryDouble
from spark.judges import create
from spark.test_spark_source import last_words
from spark.test_typed_source import FIRST, SECOND, batch, rows_of
from support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = "select * from values (1, 'a', 2.5), (2, null, 10.0) as t(id, name, price)"


@pytest.fixture
def topic(server: Server, name: str) -> str:
    create(server.bootstrap, name, 1)
    return name


def write(rows: DataFrame, server: Server, topic: str, **options: str) -> None:
    made = rows.write.format("oncelog").option("kafka.bootstrap.servers", server.bootstrap).option("topic", topic)
    made.option("transactionalIdPrefix", topic).options(**options).mode("append").save()


def values(server: Server, topic: str, **options: Any) -> list[Any]:
    with Consumer(server.bootstrap, isolation_level="read_committed", **options) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        found: list[Any] = []
        while consumer.position(topic, 0) < consumer.end_offsets([(topic, 0)])[topic, 0]:
            found += [record.value for record in consumer.poll(10)]
        return found


def test_columns_become_json(spark: SparkSession, server: Server, topic: str) -> None:
    write(spark.sql(ORDERS), server, topic, valueFormat="json")
    found = sorted((json.loads(value) for value in values(server, topic)), key=lambda each: each["id"])
    assert found == [{"id": 1, "name": "a", "price": 2.5}, {"id": 2, "name": None, "price": 10.0}]
    read = batch(spark, server, subscribe=topic, valueFormat="json", valueSchema="id int, name string, price double")
    assert sorted(row["value"]["id"] for row in rows_of(read.load())) == [1, 2]


def test_struct_and_key_become_avro_with_the_latest_schema(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    number = registry.add(f"{topic}-value", {"schema": json.dumps(SECOND)})
    rows = spark.sql("select 'k' key, named_struct('id', 7L, 'on', date'1970-01-03') value")
    options = {"valueFormat": "avro", "schemaRegistryUrl": registry.url, "keyFormat": "string"}
    write(rows, server, topic, **options)
    (value,) = values(server, topic)
    assert value[:5] == b"\0" + number.to_bytes(4, "big")
    reader = AvroDeserializer(SchemaRegistry(registry.url))
    (read,) = values(server, topic, value_deserializer=reader)
    assert {**read, "on": str(read["on"])} == {"id": 7, "on": "1970-01-03", "note": None, "kind": None}


def test_schema_is_registered_only_if_allowed(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    rows = spark.sql("select 1 id, date'1970-01-01' on")
    options = {"valueFormat": "avro", "valueSchema": json.dumps(FIRST), "schemaRegistryUrl": registry.url}
    with pytest.raises(Exception, match="MisuseError") as failed:
        write(rows, server, topic, **options)
    assert "autoRegister=true" in last_words(failed.value)
    assert registry.subjects == {}
    write(rows, server, topic, **options, autoRegister="true")
    assert list(registry.subjects) == [f"{topic}-value"]
    write(rows, server, topic, **options)
    assert len(set(values(server, topic))) == 1


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("select 'x' value, 1 id", {"valueFormat": "avro", "valueSchema": '"int"'}, "Failed to parse string: 'x'"),
        ("select 1 id", {"valueFormat": "avro", "valueSchema": json.dumps(FIRST)}, "the columns have no on"),
        (
            "select cast(null as int) id, date'1970-01-01' on",
            {"valueFormat": "avro", "valueSchema": json.dumps(FIRST)},
            "row 0 does not fit the Avro schema: id must not be null",
        ),
        ("select double('NaN') x", {"valueFormat": "json"}, "JSON cannot represent nan"),
        (
            "select 1 value",
            {},
            "column value: its type must be string or binary, not int, or set valueFormat=",
        ),
        ("select 1 id", {"valueFormat": "string"}, "column value is missing"),
    ],
)
def test_rows_that_do_not_fit_are_not_written(
    spark: SparkSession, server: Server, topic: str, sql: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match="MisuseError") as failed:
        write(spark.sql(sql), server, topic, **options)
    assert message in str(failed.value)
    assert values(server, topic) == []


def test_stream_from_avro_to_json_and_back(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str, tmp_path: Path
) -> None:
    create(server.bootstrap, f"{topic}-copy", 1)
    registry.add(f"{topic}-value", {"schema": json.dumps(FIRST)})
    options = {"valueFormat": "avro", "schemaRegistryUrl": registry.url}
    write(spark.sql("select int(id) id, date'1970-01-01' on from range(50)"), server, topic, **options)
    rows = (
        spark.readStream.format("oncelog")
        .options(**{"kafka.bootstrap.servers": server.bootstrap, "subscribe": topic, "startingOffsets": "earliest"})
        .options(**options, flatten="true")
        .load()
    )
    query = (
        rows.select("id", "on")
        .writeStream.format("oncelog")
        .options(**{"kafka.bootstrap.servers": server.bootstrap, "topic": f"{topic}-copy"})
        .options(transactionalIdPrefix=f"{topic}-copy", valueFormat="json", checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [json.loads(value) for value in values(server, f"{topic}-copy")]
    assert sorted(each["id"] for each in found) == list(range(50))
    assert {each["on"] for each in found} == {"1970-01-01"}
