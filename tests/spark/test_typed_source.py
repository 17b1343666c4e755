"""Typed keys and values of the source in a real Spark: JSON, Avro with a registry, evolution, bad records."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from oncelog import Producer
from oncelog.client.serialization.functions import SerializationContext
from oncelog.serialization import AvroSerializer, SchemaRegistry
from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.formats.ddl import parse_ddl
from oncelog.testing.registry import SchemaRegistryDouble
from spark.judges import create
from spark.test_spark_source import batch, last_words, stream
from support.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = "id bigint, name string, at timestamp, price decimal(9,2), tags array<string>, inner struct<x: int>"
ORDER = {"id": 1, "name": "ü", "at": "2026-01-02T03:04:05", "price": 9.99, "tags": ["a"], "inner": {"x": 7}}
FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "on", "type": {"type": "int", "logicalType": "date"}}],
}
SECOND = {
    **FIRST,
    "fields": [
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "id", "type": "long"},
        FIRST["fields"][1],
        {"name": "kind", "type": ["null", "int", "string"], "default": None},
    ],
}


@pytest.fixture
def topic(server: Server, name: str) -> str:
    create(server.bootstrap, name, 2)
    return name


def send(server: Server, topic: str, *values: bytes | None, key: bytes | None = None, partition: int = 0) -> None:
    with Producer(server.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, key=key, partition=partition)
        producer.flush(30)


def avro(registry: SchemaRegistryDouble, topic: str, schema: Any, *rows: Any, field: str = "value") -> list[bytes]:
    serializer = AvroSerializer(SchemaRegistry(registry.url), schema)
    return [serializer(row, SerializationContext(topic, field, [])) for row in rows]


def rows_of(found: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in found.orderBy("partition", "offset").collect()]


def test_json_becomes_a_struct(spark: SparkSession, server: Server, topic: str) -> None:
    send(server, topic, json.dumps(ORDER).encode(), b'{"id": 2, "unknown": {}}', None, key=b"k")
    options = {"subscribe": topic, "valueFormat": "json", "valueSchema": DDL, "keyFormat": "string"}
    found = batch(spark, server, **options).load()
    parsed = batch(spark, server, subscribe=topic).load().selectExpr(
        f"from_json(cast(value as string), '{DDL}') value", "partition", "offset"
    )  # fmt: skip
    assert found.schema["value"].dataType == parsed.schema["value"].dataType
    assert [row["value"] for row in rows_of(found)] == [row["value"] for row in rows_of(parsed)]
    assert [row["key"] for row in rows_of(found)] == ["k"] * 3
    flat = batch(spark, server, **options, flatten="true").load()
    assert flat.columns[:4] == ["key", "id", "name", "at"]
    assert [(row["id"], row["tags"]) for row in rows_of(flat)] == [(1, ["a"]), (2, None), (None, None)]
    assert flat.where("id = 2").count() == 1


def test_json_maps_bytes_and_exact_decimals_are_those_of_from_json(
    spark: SparkSession, server: Server, topic: str
) -> None:
    ddl = "m map<string, array<int>>, b binary, d decimal(38, 0), at timestamp_ntz"
    send(server, topic, b'{"m": {"x": [1], "": null}, "b": "AP8=", "d": 12345678901234567890123456789012345678}')
    send(server, topic, b'{"m": {}, "b": null, "d": "5", "at": "2026-01-02T03:04:05.000001"}', b'{"m": null}')
    options = {"subscribe": topic, "valueFormat": "json", "valueSchema": ddl}
    parsed = f"from_json(cast(value as string), '{ddl}') value"
    wanted = batch(spark, server, subscribe=topic).load().selectExpr(parsed, "partition", "offset")
    found = batch(spark, server, **options).load()
    assert [row["value"] for row in rows_of(found)] == [row["value"] for row in rows_of(wanted)]


def test_avro_is_read_with_the_latest_schema(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    send(server, topic, *avro(registry, topic, FIRST, {"id": 1, "on": 0}))
    send(server, topic, *avro(registry, topic, SECOND, {"id": 2, "on": 1, "note": "n", "kind": "x"}), None)
    options = {"subscribe": topic, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    found = batch(spark, server, **options).load()
    kind = "struct<note:string,id:bigint,on:date,kind:struct<member0:int,member1:string>>"
    assert found.schema["value"].dataType.simpleString() == kind
    values = [row["value"] for row in rows_of(found)]
    assert [value and (value["id"], value["note"], str(value["on"]), value["kind"]) for value in values] == [
        (1, None, "1970-01-01", None),
        (2, "n", "1970-01-02", {"member0": None, "member1": "x"}),
        None,
    ]
    older = batch(spark, server, **options, valueSchema=json.dumps(FIRST).replace('"int", "n', '"long", "n')).load()
    assert "id" in older.select("value.*").columns


def test_stream_reads_a_schema_that_is_registered_while_it_runs(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str, tmp_path: Path
) -> None:
    send(server, topic, *avro(registry, topic, FIRST, {"id": 1, "on": 0}))
    options = {"subscribe": topic, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    found = stream(spark, server, **options).load().selectExpr("value.*")
    assert found.columns == ["id", "on"]
    query = parquet(found, tmp_path)
    query.processAllAvailable()
    third = {**SECOND, "fields": [FIRST["fields"][0], *SECOND["fields"][2:]]}
    send(server, topic, *avro(registry, topic, third, {"id": 2, "on": 1, "kind": 5}))
    query.processAllAvailable()
    send(server, topic, *avro(registry, topic, SECOND, {"id": 3, "on": 1, "note": "n", "kind": 5}))
    with pytest.raises(Exception, match="id: long cannot be read as int"):
        query.processAllAvailable()
    again = stream(spark, server, **options).load().selectExpr("value.id", "value.on")
    query = parquet(again, tmp_path)
    query.processAllAvailable()
    query.stop()
    assert sorted(row["id"] for row in spark.read.schema("id bigint").parquet(f"{tmp_path}/out").collect()) == [1, 2, 3]


def parquet(found: DataFrame, folder: Path) -> Any:
    """Start a query that writes files, and continue an earlier one."""
    rows = found.selectExpr("cast(id as bigint) id").writeStream.format("parquet")
    return rows.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/out")


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_bad_records(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str, kind: str
) -> None:
    good = (
        avro(registry, topic, FIRST, {"id": 1, "on": 0}, {"id": 2, "on": 0})
        if kind == "avro"
        else [b'{"id": 1}', b'{"id": 2}']
    )
    send(server, topic, good[0], b"\0damage", good[1], partition=1)
    options = {"subscribe": topic, "valueFormat": kind}
    options |= {"schemaRegistryUrl": registry.url} if kind == "avro" else {"valueSchema": "id int, on date"}
    with pytest.raises(Exception, match=f"cannot read the value of the record at offset 1 of {topic}-1: ") as failed:
        batch(spark, server, **options).load().collect()
    assert "badRecords=null" in last_words(failed.value)
    nulls = rows_of(batch(spark, server, **options, badRecords="null").load())
    assert [row["value"] and row["value"]["id"] for row in nulls] == [1, None, 2]
    kept = rows_of(batch(spark, server, **options, badRecords="column").load())
    assert [row["_corrupt_record"] for row in kept] == [None, b"\0damage", None]
    assert [row["value"] and row["value"]["id"] for row in kept] == [1, None, 2]


TIMES = {
    "type": "record",
    "name": "Times",
    "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
}


def test_times_that_spark_cannot_hold_are_bad(spark: SparkSession, server: Server, topic: str) -> None:
    """Spark's times are microseconds: they would become other times."""
    plain = {**TIMES, "fields": [{"name": "at", "type": "long"}]}
    values = []
    for milliseconds in (5, 2**63 - 1, None, -(2**63), 253_402_300_799_999):
        out = io.BytesIO()
        if milliseconds is not None:
            fastavro.schemaless_writer(out, plain, {"at": milliseconds})
        values.append(None if milliseconds is None else out.getvalue())
    send(server, topic, *values)
    options = {"subscribe": topic, "valueFormat": "avro", "valueSchema": json.dumps(TIMES)}
    with pytest.raises(Exception, match="cannot read the value of the record at offset 1 of") as failed:
        batch(spark, server, **options).load().collect()
    assert "out of bounds timestamp" in last_words(failed.value)
    read = batch(spark, server, **options, badRecords="column").load()
    kept = read.selectExpr("offset", "unix_millis(value.at) at", "_corrupt_record").orderBy("offset").collect()
    assert [row["at"] for row in kept] == [5, None, None, None, 253_402_300_799_999]
    assert [row["_corrupt_record"] for row in kept] == [None, values[1], None, values[3], None]


def test_framed_value_without_a_registry_names_the_option(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    send(server, topic, *avro(registry, topic, FIRST, {"id": 1, "on": 0}))
    options = {"subscribe": topic, "valueFormat": "avro", "valueSchema": json.dumps(FIRST)}
    with pytest.raises(Exception, match=r"framed it \(id 100\), set option schemaRegistryUrl"):
        batch(spark, server, **options).load().collect()


def test_bad_record_in_mid_stream_is_never_lost_silently(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str, tmp_path: Path
) -> None:
    """The query fails at the record each time, until an option says what to do with it."""
    options = {"subscribe": topic, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    first, second, third = avro(registry, topic, FIRST, *({"id": number, "on": 0} for number in (1, 2, 3)))
    send(server, topic, first)
    query = parquet(stream(spark, server, **options).load().select("value.id"), tmp_path)
    query.processAllAvailable()
    send(server, topic, second, b"\0damage", third)
    for attempt in range(2):
        with pytest.raises(Exception, match=f"cannot read the value of the record at offset 2 of {topic}-0: "):
            query.processAllAvailable()
        assert ids(spark, tmp_path) == [1]
        if attempt == 0:
            query = parquet(stream(spark, server, **options).load().select("value.id"), tmp_path)
    query = parquet(stream(spark, server, **options, badRecords="null").load().select("value.id"), tmp_path)
    query.processAllAvailable()
    query.stop()
    assert ids(spark, tmp_path) == [-1, 1, 2, 3]
    send(server, topic, b"", first)
    columns = ("value.id", "_corrupt_record")
    kept = stream(spark, server, **options, badRecords="column", startingOffsets=f'{{"{topic}": {{"0": 4, "1": 0}}}}')
    seen: list[Any] = []
    each = kept.load().select(*columns).writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
    query = each.option("checkpointLocation", f"{tmp_path}/kept").start()
    query.processAllAvailable()
    query.stop()
    assert [tuple(row) for row in seen] == [(None, b""), (1, None)]


def ids(spark: SparkSession, folder: Path) -> list[int]:
    """Return what a query of `parquet` has written, with -1 for null."""
    rows = spark.read.schema("id bigint").parquet(f"{folder}/out").collect()
    return sorted(-1 if row["id"] is None else row["id"] for row in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valueFormat": "xml"}, "option valueFormat='xml': it must be one of bytes, string, json, avro"),
        ({"valueFormat": "json"}, "option valueFormat=json needs valueSchema"),
        ({"valueFormat": "json", "valueSchema": "id bigint,"}, "expected the name of a field at character 11"),
        ({"valueFormat": "json", "valueSchema": "id bigin"}, "expected a type at character 4, not 'bigin'"),
        ({"valueFormat": "avro"}, "option valueFormat=avro needs valueSchema, schemaRegistryUrl, or both"),
        ({"valueFormat": "avro", "valueSchema": "{"}, "option valueSchema: the Avro schema is not valid JSON"),
        ({"valueSchema": "id bigint"}, "option valueSchema needs valueFormat=json or avro"),
        ({"flatten": "true"}, "option flatten=true needs valueFormat=json or avro"),
        ({"badRecords": "skip"}, "option badRecords='skip': it must be one of fail, null, column"),
        ({"badRecords": "null"}, "option badRecords=null needs valueFormat or keyFormat"),
        ({"schemaRegistryToken": "x"}, "option schemaRegistryToken needs the option schemaRegistryUrl"),
        (
            {"valueFormat": "json", "valueSchema": "topic string", "flatten": "true"},
            "option flatten=true: two columns would be called topic",
        ),
    ],
)
def test_wrong_options_are_named_at_load(
    spark: SparkSession, server: Server, topic: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match="MisuseError") as failed:
        batch(spark, server, subscribe=topic, **options).load()
    assert message in last_words(failed.value)


def test_registry_that_fails_is_named_and_the_query_resumes(
    spark: SparkSession, server: Server, registry: SchemaRegistryDouble, topic: str
) -> None:
    options = {"subscribe": topic, "valueFormat": "avro", "schemaRegistryUrl": registry.url}
    with pytest.raises(Exception, match="option valueFormat=avro") as failed:
        batch(spark, server, **options).load()
    assert "set valueSchema or valueSubject" in last_words(failed.value)
    send(server, topic, *avro(registry, topic, FIRST, {"id": 1, "on": 0}))
    found = batch(spark, server, **options).load()
    registry.body = b"nonsense"
    with pytest.raises(Exception, match="RegistryError") as failed:
        found.collect()
    assert registry.url in last_words(failed.value)
    registry.body = None
    assert rows_of(found)[0]["value"]["id"] == 1


@pytest.mark.parametrize(
    "ddl",
    [
        DDL,
        "a boolean, b tinyint, c SMALLINT, d int, e long, f float, g DOUBLE, h binary, i date, j timestamp_ntz",
        "`a b``c` string NOT NULL COMMENT 'it''s, (1)', x: map<string, array<struct<`y.z`: decimal(38, 10), q: dec>>>",
        "a struct<>, b array < map < int , string > >,c decimal",
    ],
)
def test_ddl_means_what_it_means_in_spark(spark: SparkSession, ddl: str) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    ours = from_arrow_schema(parse_ddl(ddl, "valueSchema"), prefer_timestamp_ntz=True)
    assert [(field.name, field.dataType) for field in ours] == [
        (field.name, field.dataType) for field in StructType.fromDDL(ddl)
    ]


@pytest.mark.parametrize(
    "ddl", ["", "a", "a int b int", "a array<int", "a map<int>", "a decimal(39)", "a <", "a int,,b int"]
)
def test_wrong_ddl_is_refused(ddl: str) -> None:
    with pytest.raises(MisuseError, match=r"option valueSchema=.*: expected .* at character"):
        parse_ddl(ddl, "valueSchema")


def test_json_text_in_place_of_ddl_is_refused() -> None:
    with pytest.raises(MisuseError, match="option valueSchema: for JSON, it must be DDL, such as 'id bigint, "):
        parse_ddl('{"type": "record"}', "valueSchema")


def test_deep_ddl_is_refused() -> None:
    with pytest.raises(MisuseError, match="expected a type that is less deep"):
        parse_ddl("a " + "array<" * 5000, "valueSchema")
