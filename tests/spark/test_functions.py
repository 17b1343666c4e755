"""from_confluent_avro and to_confluent_avro in a real Spark, with confluent-kafka's serializers as the other side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from oncelog.columns.avro.schemas import varint
from oncelog.serialization import SchemaRegistry
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.functions import from_confluent_avro, to_confluent_avro
from oncelog.testing.registry import SchemaRegistryDouble
from spark.test_spark_source import last_words
from spark.test_typed_source import FIRST, SECOND, TIMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONTEXT = SerializationContext("orders", MessageField.VALUE)
ROWS: list[dict[str, Any]] = [{"id": 1, "on": 0}, {"id": 2, "on": 1, "note": "n", "kind": "x"}]


def written(registry: SchemaRegistryDouble, schema: Any, *rows: dict[str, Any]) -> list[bytes]:
    """Return the values that confluent-kafka's serializer writes."""
    client = SchemaRegistryClient({"url": registry.url})
    serializer = AvroSerializer(client, json.dumps(schema), conf={"auto.register.schemas": True})
    return [bytes(serializer(row, CONTEXT) or b"") for row in rows]


def column(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    return spark.createDataFrame([(number, value) for number, value in enumerate(values)], "n int, value binary")


def found(rows: DataFrame, name: str = "value") -> list[Any]:
    values = [row[name] for row in rows.orderBy("n").collect()]
    return [value.asDict(recursive=True) if hasattr(value, "asDict") else value for value in values]


def test_values_of_two_schemas_are_read_with_the_latest(spark: SparkSession, registry: SchemaRegistryDouble) -> None:
    values = [*written(registry, FIRST, ROWS[0]), None, *written(registry, SECOND, ROWS[1])]
    rows = column(spark, values)
    read = rows.select(
        "n", from_confluent_avro("value", subject="orders-value", schemaRegistryUrl=registry.url).alias("value")
    )
    kind = "struct<note:string,id:bigint,on:date,kind:struct<member0:int,member1:string>>"
    assert read.schema["value"].dataType.simpleString() == kind
    assert [value and (value["id"], value["note"], str(value["on"]), value["kind"]) for value in found(read)] == [
        (1, None, "1970-01-01", None),
        None,
        (2, "n", "1970-01-02", {"member0": None, "member1": "x"}),
    ]
    some = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    pruned = from_confluent_avro(rows.value, json.dumps(some), schemaRegistryUrl=registry.url)
    assert found(rows.select("n", pruned.alias("value"))) == [{"id": 1}, None, {"id": 2}]


def test_confluents_deserializer_reads_what_is_written(spark: SparkSession, registry: SchemaRegistryDouble) -> None:
    rows = spark.sql("select 0 n, named_struct('id', 7L, 'on', date'1970-01-03', 'note', 'ü') row union select 1, null")
    wanted = {"subject": "copies-value", "schemaRegistryUrl": registry.url}
    encoded = to_confluent_avro("row", json.dumps(SECOND), **wanted, autoRegister="true")
    values = found(rows.select("n", encoded.alias("value")))
    reader = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    read: Any = reader(bytes(values[0]), CONTEXT)
    assert {**read, "on": str(read["on"])} == {"note": "ü", "id": 7, "on": "1970-01-03", "kind": None}
    assert values[1] is None
    again = rows.select("n", to_confluent_avro(rows.row, **wanted).alias("value"))
    assert found(again) == values
    back = again.select("n", from_confluent_avro("value", **wanted).alias("row")).where("row.id = 7")
    assert back.count() == 1


WIDE = """{"type": "record", "name": "Wide", "fields": [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "parts", "type": {"type": "array", "items": ["null", "string"]}},
    {"name": "raw", "type": "bytes"}]}"""


@pytest.mark.parametrize("large", ["false", "true"])
def test_all_kinds_of_types_come_back(spark: SparkSession, registry: SchemaRegistryDouble, large: str) -> None:
    rows = spark.sql(
        "select 0 n, named_struct('at', timestamp'2026-01-02 03:04:05.678', "
        "'local', timestamp_ntz'1969-01-01 00:00:00', 'price', cast(-12.34 as decimal(9,2)), "
        "'counts', map('a', 1), 'parts', array('x', null), 'raw', x'00ff') row"
    )
    options = {"subject": "wide-value", "schemaRegistryUrl": registry.url}
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        encoded = rows.select("n", to_confluent_avro("row", WIDE, **options, autoRegister="true").alias("value"))
        back = encoded.select("n", from_confluent_avro("value", **options).alias("row"))
        assert back.schema["row"].dataType.simpleString() == rows.schema["row"].dataType.simpleString()
        assert found(back, "row") == found(rows, "row")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_values_that_cannot_be_read(spark: SparkSession, registry: SchemaRegistryDouble) -> None:
    good = written(registry, FIRST, ROWS[0], {"id": 3, "on": 0})
    unknown = b"\0\0\0\x99\x99" + good[0][5:]
    rows = column(spark, [good[0], b"\0damage", unknown, b"", good[1]])
    options = {"subject": "orders-value", "schemaRegistryUrl": registry.url}
    failing = rows.where("n < 2").select("n", from_confluent_avro("value", **options).alias("value"))
    with pytest.raises(Exception, match="from_confluent_avro cannot read a value") as failed:
        failing.collect()
    assert "set badRecords='null'" in last_words(failed.value)
    nulls = rows.select("n", from_confluent_avro("value", **options, badRecords="null").alias("value"))
    assert [value and value["id"] for value in found(nulls)] == [1, None, None, None, 3]
    schema_id = SchemaRegistry(registry.url).register("times-value", json.dumps(TIMES))
    far = [b"\0" + schema_id.to_bytes(4, "big") + varint(at) for at in (5, 2**62)]
    times = column(spark, far).select(
        "n", from_confluent_avro("value", json.dumps(TIMES), **options, badRecords="null")
    )
    assert [row[1] is None for row in times.orderBy("n").collect()] == [False, True]
    for other, kind in (("named_struct('id', 1)", "struct<id: int32 not null>"), ("'x'", "string")):
        wrong = spark.sql(f"select {other} value").select(from_confluent_avro("value", **options))
        with pytest.raises(Exception, match="MisuseError") as failed:
            wrong.collect()
        assert f"reads a column of binary values, not of {kind}" in last_words(failed.value)
    of_texts: Any = {**options, "subject": "texts-value", "autoRegister": True, "schemaRegistryTimeoutMs": 5000}
    texts = spark.sql("select 'x' text").select(to_confluent_avro("text", '"int"', **of_texts))
    with pytest.raises(Exception, match="MisuseError: to_confluent_avro: "):
        texts.collect()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "from_confluent_avro needs the option schemaRegistryUrl"),
        ({"schemaRegistryUrl": "http://x"}, "from_confluent_avro needs a schema or a subject"),
        ({"schemaRegistryUrl": "http://x", "schema": "{"}, "option schema: the Avro schema is not valid JSON"),
        (
            {"schemaRegistryUrl": "http://x", "schema": '"int"', "mode": "FAILFAST"},
            "has no option mode; its options are",
        ),
        (
            {"schemaRegistryUrl": "http://x", "schema": '"int"', "badRecords": "column"},
            "select the column with the bytes",
        ),
        ({"schemaRegistryUrl": "http://x", "schema": '"int"', "badRecord": "null"}, "did you mean badRecords?"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, str], said: str) -> None:
    with pytest.raises(MisuseError) as failed:
        from_confluent_avro("value", **arguments)
    assert said in str(failed.value)


def test_missing_subject_is_named(registry: SchemaRegistryDouble) -> None:
    with pytest.raises(MisuseError, match=r"set schema or subject$"):
        from_confluent_avro("value", subject="nothing", schemaRegistryUrl=registry.url)
    with pytest.raises(MisuseError, match=r"subject nothing first; set autoRegister=true or subject$"):
        to_confluent_avro("value", '"int"', subject="nothing", schemaRegistryUrl=registry.url)
