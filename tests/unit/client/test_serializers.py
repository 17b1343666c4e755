"""Serializers: bytes, errors, and schemas of a registry."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from oncelog.client.serialization import avro
from oncelog.client.serialization.functions import Deserializers, Serializers
from oncelog.client.types import ConsumerRecord
from oncelog.columns.avro.schemas import varint
from oncelog.errors import ConfigError, RegistryError, SerializationError
from oncelog.formats import Avro
from oncelog.serialization import (
    AvroDeserializer,
    AvroSerializer,
    JsonDeserializer,
    JsonSerializer,
    SchemaRegistry,
    SerializationContext,
    StringDeserializer,
    StringSerializer,
    avro_schemas,
)
from oncelog.testing.registry import SchemaRegistryDouble

CONTEXT = SerializationContext("t", "value")
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture
def fake() -> Iterator[SchemaRegistryDouble]:
    with SchemaRegistryDouble() as found:
        yield found


def record(value: bytes | None, key: bytes | None = None) -> ConsumerRecord:
    return ConsumerRecord("t", 3, 7, 1_000, key, value, (("h", b"x"),), 1, 5)


@pytest.mark.parametrize("data", [{"a": [1, 2.5, "ü", None, True]}, [], "text", 0, 10**30])
def test_json_round_trips(data: Any) -> None:
    assert JsonDeserializer()(JsonSerializer()(data, CONTEXT), CONTEXT) == data


def test_json_is_compact_and_skips_a_registrys_frame() -> None:
    assert JsonSerializer()({"ü": [1, 2]}, CONTEXT) == '{"ü":[1,2]}'.encode()
    assert JsonDeserializer()(b"\0\0\0\0\x07[1]", CONTEXT) == [1]
    with pytest.raises(ValueError, match="JSON compliant"):
        JsonSerializer()(float("nan"), CONTEXT)


def test_text_round_trips() -> None:
    for encoding in ("utf-8", "latin-1"):
        assert StringDeserializer(encoding)(StringSerializer(encoding)("ü", CONTEXT), CONTEXT) == "ü"
    with pytest.raises(LookupError, match="unknown encoding"):
        StringSerializer("utf-9")


def test_functions_get_data_and_context_but_never_none() -> None:
    calls: list[tuple[Any, SerializationContext]] = []

    def function(data: Any, context: SerializationContext) -> bytes:
        calls.append((data, context))
        return b"made"

    headers = (("h", b"x"),)
    assert Serializers(function, function).serialize("t", 1, None, headers) == (b"made", None)
    assert Serializers(function, None).serialize("t", None, 2, headers) == (None, b"made")
    (found,), error = Deserializers(function, function).deserialize([record(b"v")])
    assert (found, error) == (record(b"made"), None)
    assert calls == [
        (1, SerializationContext("t", "value", headers)),
        (2, SerializationContext("t", "key", headers)),
        (b"v", SerializationContext("t", "value", list(headers))),
    ]


@pytest.mark.parametrize(
    ("made", "words"), [(None, "returned NoneType"), ("text", "returned str"), (5, "returned int")]
)
def test_serializer_that_returns_no_bytes_is_an_error(made: Any, words: str) -> None:
    """None would be a tombstone, which deletes the key in a compacted topic."""
    with pytest.raises(SerializationError, match=f"value of a record for topic 't': the serializer {words}"):
        Serializers(None, lambda data, context: made).serialize("t", 1, None, ())


def test_errors_name_the_record_and_have_its_bytes() -> None:
    with pytest.raises(SerializationError, match="cannot serialize the key of a record for topic 't'") as caught:
        Serializers(JsonSerializer(), None).serialize("t", None, {1, 2}, ())
    assert isinstance(caught.value.__cause__, TypeError)
    assert (caught.value.field, caught.value.topic, caught.value.offset) == ("key", "t", None)
    good, bad = record(b"1"), record(b"{")
    found, error = Deserializers(None, JsonDeserializer()).deserialize([good, bad, good])
    assert found == [record(1)]  # type: ignore[arg-type]
    assert isinstance(error, SerializationError)
    assert (error.field, error.topic, error.partition, error.offset, error.record) == ("value", "t", 3, 7, bad)
    assert "at offset 7 of t-3: JSONDecodeError" in str(error)
    assert "seek to offset 8" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.record) == (str(error), bad)


# -- Avro -------------------------------------------------------------------------------------------------------------


def test_avro_has_confluents_wire_format(fake: SchemaRegistryDouble) -> None:
    registry = SchemaRegistry(fake.url)
    serialize, deserialize = AvroSerializer(registry, ORDER), AvroDeserializer(registry)
    data = serialize({"id": 1}, CONTEXT)
    assert data == b"\0" + (100).to_bytes(4, "big") + b"\x02"
    assert deserialize(data, CONTEXT) == {"id": 1}
    assert json.loads(fake.schemas[100]["schema"]) == ORDER, "not in fastavro's form"
    assert fake.subjects == {"t-value": [100]}


def test_parsed_schema_is_registered_without_fastavros_fields(fake: SchemaRegistryDouble) -> None:
    AvroSerializer(SchemaRegistry(fake.url), fastavro.parse_schema(ORDER))({"id": 1}, CONTEXT)
    assert not any(name.startswith("__") for name in json.loads(fake.schemas[100]["schema"]))


def test_schemas_are_looked_up_once(fake: SchemaRegistryDouble) -> None:
    registry = SchemaRegistry(fake.url)
    serialize, deserialize = AvroSerializer(registry, json.dumps(ORDER)), AvroDeserializer(registry)
    assert not serialize.ready({"id": 1}, CONTEXT)
    data = serialize({"id": 1}, CONTEXT)
    assert serialize.ready({"id": 1}, CONTEXT)
    assert not serialize.ready({"id": 1}, CONTEXT._replace(topic="u"))
    assert not deserialize.ready(data, CONTEXT)
    for _ in range(3):
        serialize({"id": 1}, CONTEXT)
        deserialize(data, CONTEXT)
    assert deserialize.ready(data, CONTEXT)
    assert len(fake.requests) == 2


def test_caches_are_bounded(fake: SchemaRegistryDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "MOST_CACHED", 2)
    registry = SchemaRegistry(fake.url)
    serialize, deserialize = AvroSerializer(registry, ORDER), AvroDeserializer(registry)
    for topic in "abcd":
        serialize({"id": 1}, CONTEXT._replace(topic=topic))
    assert list(serialize._ids) == ["c-value", "d-value"]
    for number in range(4):
        schema = json.dumps({**ORDER, "name": f"Order{number}"})
        deserialize(b"\0" + fake.add("s", {"schema": schema}).to_bytes(4, "big") + b"\x02", CONTEXT)
    assert len(deserialize._writers) == 2


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("topic", "t-value"),
        ("record", "shop.Order"),
        ("topic_record", "t-shop.Order"),
        (lambda context, name: f"{context.field}/{name}", "value/shop.Order"),
    ],
)
def test_subject_strategies(fake: SchemaRegistryDouble, subject: Any, expected: str) -> None:
    AvroSerializer(SchemaRegistry(fake.url), ORDER, subject=subject)({"id": 1}, CONTEXT)
    assert list(fake.subjects) == [expected]


def test_schema_that_is_not_registered_is_an_error_without_register(fake: SchemaRegistryDouble) -> None:
    registry = SchemaRegistry(fake.url)
    serializers = Serializers(None, AvroSerializer(registry, ORDER, register=False))
    with pytest.raises(SerializationError, match="register the schema for subject t-value first"):
        serializers.serialize("t", {"id": 1}, None, ())
    registry.register("t-value", json.dumps(ORDER))
    assert serializers.serialize("t", {"id": 1}, None, ())[0].endswith(b"\x02")


def test_reader_schema_resolves(fake: SchemaRegistryDouble) -> None:
    registry = SchemaRegistry(fake.url)
    data = AvroSerializer(registry, ORDER)({"id": 1}, CONTEXT)
    fields = [*ORDER["fields"], {"name": "note", "type": "string", "default": "none"}]  # type: ignore[misc]
    assert AvroDeserializer(registry, {**ORDER, "fields": fields})(data, CONTEXT) == {"id": 1, "note": "none"}


def test_logical_types_and_unions(fake: SchemaRegistryDouble) -> None:
    types: dict[str, Any] = {
        "day": {"type": "int", "logicalType": "date"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "either": ["null", "long", "string"],
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": of} for name, of in types.items()]}
    registry = SchemaRegistry(fake.url)
    data = {"day": datetime.date(2026, 1, 2), "price": Decimal("12.50"), "either": "text"}
    assert AvroDeserializer(registry)(AvroSerializer(registry, schema)(data, CONTEXT), CONTEXT) == data


@pytest.mark.parametrize("schema", ["string", '"string"', ["null", "string"]])
def test_schema_without_a_name(fake: SchemaRegistryDouble, schema: Any) -> None:
    registry = SchemaRegistry(fake.url)
    assert AvroDeserializer(registry)(AvroSerializer(registry, schema)("x", CONTEXT), CONTEXT) == "x"
    by_record = AvroSerializer(registry, schema, subject="record")
    with pytest.raises(SerializationError, match="the schema has no name"):
        Serializers(None, by_record).serialize("t", "x", None, ())
    assert Serializers(None, by_record).ready("t", "x", None, ()), "`serialize` raises the error"


def test_schemas_with_references(fake: SchemaRegistryDouble) -> None:
    """A diamond: both parts refer to the same type."""
    point = {"type": "record", "name": "Point", "namespace": "n", "fields": [{"name": "x", "type": "int"}]}
    fake.add("point", {"schema": json.dumps(point)})
    reference = {"name": "n.Point", "subject": "point", "version": 1}
    for name in ("A", "B"):
        part = {"type": "record", "name": name, "namespace": "n", "fields": [{"name": "p", "type": "n.Point"}]}
        fake.add(name, {"schema": json.dumps(part), "references": [reference]})
    both = {
        "type": "record",
        "name": "Both",
        "fields": [{"name": "a", "type": "n.A"}, {"name": "b", "type": "n.B"}],
    }
    references = [{"name": f"n.{name}", "subject": name, "version": 1} for name in ("A", "B")]
    number = fake.add("both", {"schema": json.dumps(both), "references": references})
    found = AvroDeserializer(SchemaRegistry(fake.url))(b"\0" + number.to_bytes(4, "big") + b"\x02\x04", CONTEXT)
    assert found == {"a": {"p": {"x": 1}}, "b": {"p": {"x": 2}}}
    registry = SchemaRegistry(fake.url)
    whole = avro.whole_schema(registry, registry.latest("both"), "the latest schema of both")
    assert fastavro.parse_schema(json.loads(json.dumps(whole)))  # it needs no other schema
    assert Avro(whole).decode(pa.array([b"\x02\x04"]))[0].to_pylist() == [found]


def test_references_in_a_cycle_end(fake: SchemaRegistryDouble) -> None:
    reference = {"name": "n.A", "subject": "A", "version": 1}
    part = {"type": "record", "name": "A", "namespace": "n", "fields": []}
    number = fake.add("A", {"schema": json.dumps(part), "references": [reference]})
    assert AvroDeserializer(SchemaRegistry(fake.url))(b"\0" + number.to_bytes(4, "big"), CONTEXT) == {}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no schema id prefix"),
        (b"\0\0\0\0", "no schema id prefix"),
        (b"\x01\0\0\0\x64\x02", "no schema id prefix"),
        (b"\0\0\0\0\x65\x02", "/schemas/ids/101: the registry has no such schema"),
        (b"\0\0\0\0\x64", "EOFError"),
        (b"\0\0\0\0\x64\x02\x02", "1 extra bytes"),
        (b"\0\0\0\0\x66{}", "schema 102 is JSON, not AVRO"),
        (b"\0\0\0\0\x67\x02", "schema 103 is not JSON"),
        (b"\0\0\0\0\x68\x02", "schema 104 is not an Avro schema: "),
    ],
)
def test_bytes_that_are_not_a_framed_datum(fake: SchemaRegistryDouble, data: bytes, words: str) -> None:
    fake.schemas = {
        100: {"schema": json.dumps(ORDER)},
        102: {"schema": "{}", "schemaType": "JSON"},
        103: {"schema": "{"},
        104: {"schema": '{"type": "record", "fields": []}'},
    }
    _, error = Deserializers(None, AvroDeserializer(SchemaRegistry(fake.url))).deserialize([record(data)])
    assert isinstance(error, SerializationError)
    assert words in str(error)


def test_data_that_does_not_fit_the_schema(fake: SchemaRegistryDouble) -> None:
    serializers = Serializers(None, AvroSerializer(SchemaRegistry(fake.url), ORDER))
    for data in ({"id": "x"}, {}, [], 5):
        with pytest.raises(SerializationError, match="cannot serialize the value"):
            serializers.serialize("t", data, None, ())


def test_registry_that_fails_is_not_a_bad_record(fake: SchemaRegistryDouble) -> None:
    """A program may skip bad records. It must not skip good ones because the registry is away."""
    registry = SchemaRegistry(fake.url, timeout=0.2)
    data = AvroSerializer(registry, ORDER)({"id": 1}, CONTEXT)
    deserializers = Deserializers(None, AvroDeserializer(registry))
    fake.failures = [500] * 10
    found, error = deserializers.deserialize([record(data)])
    assert (found, type(error)) == ([], RegistryError)
    fake.failures = []
    assert deserializers.deserialize([record(data)]) == ([record({"id": 1})], None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "subject", "words"),
    [
        ("{", "topic", "not valid JSON"),
        ({"a": 1}, "topic", "schema: it is not an Avro schema: KeyError: 'type'"),
        (ORDER, "subject", "it must be topic, record, topic_record or a function"),
    ],
)
def test_wrong_arguments_are_named(fake: SchemaRegistryDouble, schema: Any, subject: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        AvroSerializer(SchemaRegistry(fake.url), schema, subject=subject)


# -- schema ids in headers --------------------------------------------------------------------------------------------


def test_schema_id_may_be_in_a_header(fake: SchemaRegistryDouble) -> None:
    """test_confluent_serializers.py compares the bytes with those of confluent-kafka."""
    registry = SchemaRegistry(fake.url)
    serialize = AvroSerializer(registry, ORDER, header=True)
    context = SerializationContext("t", "value", [("other", None)])
    assert not serialize.ready({"id": 5}, context)
    datum = serialize({"id": 5}, context)
    assert serialize.ready({"id": 6}, context)
    assert datum == b"\x0a"
    guid = registry.guid("t-value", json.dumps(ORDER))
    assert context.headers == [("other", None), ("__value_schema_id", b"\1" + guid.bytes)]
    deserialize = AvroDeserializer(registry)
    assert not deserialize.ready(datum, context)
    assert deserialize(datum, context) == {"id": 5}
    assert deserialize.ready(datum, context)
    by_id = SerializationContext("t", "value", [("__value_schema_id", b"\0\0\0\0\x64")])
    assert deserialize(datum, by_id) == {"id": 5}
    of_key = SerializationContext("t", "key", context.headers)
    with pytest.raises(ValueError, match="no schema id prefix, and no header with a schema id"):
        deserialize(datum, of_key)
    with pytest.raises(ValueError, match="the header with its schema id has 1 bytes, 3f, which are no id"):
        deserialize(datum, SerializationContext("t", "value", [("__value_schema_id", b"?")]))
    with pytest.raises(TypeError, match="requires a context with a list of headers"):
        serialize({"id": 5}, CONTEXT)


def test_registry_without_guids_is_named(fake: SchemaRegistryDouble) -> None:
    fake.has_guids = False
    serialize = AvroSerializer(SchemaRegistry(fake.url), ORDER, header=True)
    with pytest.raises(RegistryError, match="the answer for subject t-value has no GUID, which headers need"):
        serialize({"id": 5}, SerializationContext("t", "value", []))
    with pytest.raises(LookupError, match="the registry has no such schema"):
        SchemaRegistry(fake.url).schema(UUID(int=7))


def test_schemas_of_a_registry_are_read_by_id_and_guid(fake: SchemaRegistryDouble) -> None:
    registry = SchemaRegistry(fake.url)
    text = json.dumps(ORDER)
    schemas = avro_schemas(registry)
    assert schemas(registry.register("t-value", text)) == schemas(registry.guid("t-value", text))
    assert schemas(100)["name"] == "shop.Order"


TREE = {"type": "record", "name": "Tree", "fields": [{"name": "below", "type": {"type": "array", "items": "Tree"}}]}
LIST = {"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"]}]}


@pytest.mark.parametrize(
    ("schema", "level", "end"),
    [
        (TREE, b"\2", b"\0"),
        (LIST, b"\2", b""),
        ({"type": "record", "name": "Outer", "fields": [{"name": "first", "type": LIST}]}, b"\2", b""),
    ],
)
@pytest.mark.parametrize("levels", [100_000, 1_000, 100])
def test_deep_values_do_not_crash_the_process(
    fake: SchemaRegistryDouble, schema: dict[str, Any], level: bytes, end: bytes, levels: int
) -> None:
    fake.schemas = {100: {"schema": json.dumps(schema)}}
    read = AvroDeserializer(SchemaRegistry(fake.url))
    data = b"\0\0\0\0\x64" + level * levels + b"\0" + end * levels
    if levels < 1_000:
        assert read(data, CONTEXT)
        return
    _, error = Deserializers(None, read).deserialize([record(data)])
    assert levels == 1_000 or isinstance(error, SerializationError)


def test_long_values_of_a_type_that_contains_itself_are_read(fake: SchemaRegistryDouble) -> None:
    fake.schemas = {100: {"schema": json.dumps(TREE)}}
    data = b"\0\0\0\0\x64" + varint(5_000) + b"\0" * 5_000 + b"\0"
    assert AvroDeserializer(SchemaRegistry(fake.url))(data, CONTEXT) == {"below": [{"below": []}] * 5_000}
