"""A schema that the user gives to a read: fewer columns, and fewer fields of typed values."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
import pytest

from oncelog.testing.registry import SchemaRegistryDouble
from spark.test_spark_source import batch, last_words, stream
from spark.test_typed_source import FIRST, SECOND, avro, rows_of, send, topic
from support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["topic"]

DDL = "id bigint, name string, items array<struct<a: int, b: date>>, inner struct<x: int, y: struct<z: string, w: int>>"
ORDER = {
    "id": 1,
    "name": "n",
    "items": [{"a": 1, "b": "2026-01-02"}, None],
    "inner": {"x": 7, "y": {"z": "deep", "w": 8}},
}


def test_plain_columns_are_left_out_and_reordered(spark: SparkSession, server: Server, topic: str) -> None:
    send(server, topic, b"v", None, key=b"k")
    read = batch(spark, server, subscribe=topic, includeHeaders="true")
    found = read.schema("offset long, value binary, headers array<struct<key:string,value:binary>>, partition int")
    assert [tuple(row) for row in found.load().orderBy("offset").collect()] == [(0, b"v", [], 0), (1, None, [], 0)]


def test_fields_of_json_are_left_out(spark: SparkSession, server: Server, topic: str) -> None:
    """A field that is left out is not decoded: here it is no date."""
    send(server, topic, json.dumps(ORDER).encode(), b'{"id": 2, "items": [{"b": "no date"}]}', None)
    read = batch(spark, server, subscribe=topic, valueFormat="json", valueSchema=DDL)
    some = "value struct<inner: struct<y: struct<z: string>>, items: array<struct<a: int>>>, offset long, partition int"
    found = rows_of(read.schema(some).load())
    assert [row["value"] for row in found] == [
        {"inner": {"y": {"z": "deep"}}, "items": [{"a": 1}, None]},
        {"inner": None, "items": [{"a": None}]},
        None,
    ]
    with pytest.raises(Exception, match="cannot read the value of the record at offset 1"):
        batch(spark, server, subscribe=topic, valueFormat="json", valueSchema=DDL).load().collect()
    flat = read.option("flatten", "true").schema("name string, offset long, id bigint, partition int").load()
    assert [(row["name"], row["id"]) for row in rows_of(flat)] == [("n", 1), (None, 2), (None, None)]
    assert read.option("flatten", "false").schema("key binary, offset long").load().count() == 3


def test_values_that_are_left_out_are_not_decoded(spark: SparkSession, server: Server, topic: str) -> None:
    send(server, topic, b"damage", b'{"id": 2}', key=b"k")
    options = {"subscribe": topic, "valueFormat": "json", "valueSchema": "id bigint", "keyFormat": "string"}
    read = batch(spark, server, **options).schema("key string, partition int, offset long")
    assert [row["key"] for row in rows_of(read.load())] == ["k", "k"]
    bad = batch(spark, server, **options, badRecords="column").schema(
        "_corrupt_record binary, partition int, offset long"
    )
    assert [row["_corrupt_record"] for row in rows_of(bad.load())] == [b"damage", None]


def test_fields_of_avro_are_left_out(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str, tmp_path: Path
) -> None:
    send(server, topic, *avro(registry, topic, FIRST, {"id": 1, "on": 0}))
    send(server, topic, *avro(registry, topic, SECOND, {"id": 2, "on": 1, "note": "n", "kind": "x"}), None)
    options = {"subscribe": topic, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    some = "value struct<on: date, note: string>, partition int, offset long"
    found = rows_of(batch(spark, server, **options).schema(some).load())
    values = [row["value"] and (str(row["value"]["on"]), row["value"]["note"]) for row in found]
    assert values == [("1970-01-01", None), ("1970-01-02", "n"), None]
    rows = stream(spark, server, **options).schema(some).load().selectExpr("value.note")
    query = rows.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
    query.trigger(availableNow=True).start(f"{tmp_path}/out").awaitTermination()
    read = spark.read.schema("note string").parquet(f"{tmp_path}/out").collect()
    assert sorted(row["note"] or "" for row in read) == ["", "", "n"]


def test_fields_of_avro_without_a_registry_are_left_out(spark: SparkSession, server: Server, topic: str) -> None:
    twice = {"type": "array", "items": {"type": "record", "name": "Part", "fields": [
        {"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"]}
    ]}}  # fmt: skip
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": twice}, {"name": "y", "type": "Part"}]}
    part = {"a": 1, "b": "text"}
    value = io.BytesIO()
    fastavro.schemaless_writer(value, fastavro.parse_schema(schema), {"x": [part], "y": part})
    send(server, topic, value.getvalue())
    read = batch(spark, server, subscribe=topic, valueFormat="avro", valueSchema=json.dumps(schema))
    some = read.schema("value struct<y: struct<b: string>, x: array<struct<a: int>>>, partition int, offset long")
    assert rows_of(some.load())[0]["value"] == {"y": {"b": "text"}, "x": [{"a": 1}]}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            "value struct<idd: bigint>",
            "schema(): there is no value.idd; the fields of value are id, name, items, inner",
        ),
        ("values binary", "schema(): there is no values; the columns of this source are key, value, topic,"),
        ("value struct<id: int>", "schema(): value.id is bigint, not int; name it with its own type, and cast it"),
        ("value binary", "schema(): value is struct<"),
        ("value struct<items: array<struct<a: string>>>", "schema(): value.items[].a is int, not string"),
    ],
)
def test_schema_that_is_no_part_of_the_sources(
    spark: SparkSession, server: Server, topic: str, schema: str, said: str, tmp_path: Path
) -> None:
    options = {"subscribe": topic, "valueFormat": "json", "valueSchema": DDL}
    with pytest.raises(Exception, match="MisuseError") as failed:
        batch(spark, server, **options).schema(schema).load().collect()
    assert said in str(failed.value)
    if "idd" not in schema:
        return
    query = stream(spark, server, **options).schema(schema).load().writeStream.format("noop").start()
    with pytest.raises(Exception, match="MisuseError") as failed:
        query.awaitTermination(60)
    assert said in last_words(failed.value)


def test_union_is_read_whole_or_not_at_all(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    send(server, topic, *avro(registry, topic, SECOND, {"id": 2, "on": 1, "note": "n", "kind": "x"}))
    read = batch(spark, server, subscribe=topic, valueFormat="avro", schemaRegistryUrl=registry.url)
    whole = read.schema("value struct<kind: struct<member0: int, member1: string>>, partition int, offset long").load()
    assert rows_of(whole)[0]["value"] == {"kind": {"member0": None, "member1": "x"}}
    with pytest.raises(Exception, match=r"value\.kind is a union of several types; name all of its fields"):
        read.schema("value struct<kind: struct<member1: string>>").load().collect()
