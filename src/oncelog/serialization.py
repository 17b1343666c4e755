"""Serializers and deserializers of single records: text, JSON, and Avro with a schema registry.

    registry = SchemaRegistry("http://localhost:8081")
    Producer("localhost:9092", key_serializer=StringSerializer(), value_serializer=AvroSerializer(registry, schema))
    Consumer("localhost:9092", value_deserializer=AvroDeserializer(registry))

Any function `(data, context) -> bytes` is a serializer, and any function `(data, context) -> object` a deserializer.
`context` is a `SerializationContext`. The clients never call them with None. `AvroSerializer`, `AvroDeserializer` and
`avro_schemas` need `oncelog[avro]`. For typed columns of Arrow tables, see `oncelog.formats`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.client.serialization.functions import SerializationContext
from oncelog.client.serialization.plain import JsonDeserializer, JsonSerializer, StringDeserializer, StringSerializer
from oncelog.client.serialization.registry import SchemaRegistry

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "JsonDeserializer",
    "JsonSerializer",
    "SchemaRegistry",
    "SerializationContext",
    "StringDeserializer",
    "StringSerializer",
    "avro_schemas",
]

if TYPE_CHECKING:
    from oncelog.client.serialization.avro import AvroDeserializer, AvroSerializer, avro_schemas


def __getattr__(name: str) -> object:
    """Import Avro when it is first used, because it needs fastavro."""
    if name not in ("AvroDeserializer", "AvroSerializer", "avro_schemas"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from oncelog.client.serialization import avro

    return getattr(avro, name)
