"""Apache Avro's Java library, in Spark's JVM, reads what our columns write; they read what it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given, settings

from oncelog.formats import Avro
from properties.test_avro import as_column, cases, same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def in_java(spark: SparkSession, schema: str, values: list[bytes]) -> list[bytes]:
    """Return the values as Java writes them after it has read them."""
    jvm: Any = spark.sparkContext._jvm
    avro = jvm.org.apache.avro
    parsed = avro.Schema.Parser().parse(schema)
    reader, writer = avro.generic.GenericDatumReader(parsed), avro.generic.GenericDatumWriter(parsed)
    found = []
    for value in values:
        out = jvm.java.io.ByteArrayOutputStream()
        encoder = avro.io.EncoderFactory.get().binaryEncoder(out, None)
        writer.write(reader.read(None, avro.io.DecoderFactory.get().binaryDecoder(value, None)), encoder)
        encoder.flush()
        found.append(bytes(out.toByteArray()))
    return found


def in_order(found: Any) -> Any:
    """Return a value with the pairs of its maps in the order of their keys: Java's maps have another one."""
    if isinstance(found, dict):
        return {name: in_order(item) for name, item in found.items()}
    if isinstance(found, tuple):
        return (found[0], in_order(found[1]))
    if isinstance(found, list):
        items = [in_order(item) for item in found]
        return sorted(items, key=lambda pair: pair[0]) if items and isinstance(items[0], tuple) else items
    return found


@settings(max_examples=60)
@given(case=cases())
def test_java_and_columns_read_each_other(spark: SparkSession, case: tuple[Any, list[Any]]) -> None:
    inner, rows = case
    schema = {"type": "record", "name": "Row", "fields": [{"name": "x", "type": inner}]}
    form = Avro(schema)
    wanted = [{"x": as_column(inner, row)} for row in rows]
    ours = form.encode(pa.array(wanted, form.type))
    java = in_java(spark, json.dumps(schema), ours.to_pylist())
    found, bad = form.decode(pa.array(java, pa.binary()))
    assert bad == []
    assert same(in_order(found.to_pylist()), in_order(wanted))
