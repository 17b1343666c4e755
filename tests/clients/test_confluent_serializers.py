"""confluent-kafka's Avro serializers read what ours write, and the reverse. They are also options of our clients."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField
from confluent_kafka.serialization import SerializationContext as TheirContext

from oncelog import Admin, Consumer, Producer
from oncelog.formats import Avro, Json
from oncelog.serialization import (
    AvroDeserializer,
    AvroSerializer,
    SchemaRegistry,
    SerializationContext,
    avro_schemas,
)
from oncelog.testing.registry import SchemaRegistryDouble
from support.servers import Server

SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
ORDERS: list[dict[str, Any]] = [
    {"id": 1, "note": None, "day": datetime.date(2026, 1, 2), "price": Decimal("12.50"), "tags": {}},
    {"id": -(2**62), "note": "ü", "day": datetime.date(1969, 1, 2), "price": Decimal("-0.01"), "tags": {"a": "b"}},
]
JSON_SCHEMA = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["id"],
    }
)
TOPIC_STRATEGY = {"subject.name.strategy": topic_subject_name_strategy}


@pytest.fixture
def fake() -> Iterator[SchemaRegistryDouble]:
    with SchemaRegistryDouble() as found:
        yield found


def theirs(fake: SchemaRegistryDouble) -> tuple[TheirSerializer, TheirDeserializer]:
    client = SchemaRegistryClient({"url": fake.url})
    return (
        TheirSerializer(client, json.dumps(SCHEMA), conf=TOPIC_STRATEGY),
        TheirDeserializer(client, conf=TOPIC_STRATEGY),
    )


def test_bytes_are_equal(fake: SchemaRegistryDouble) -> None:
    serialize, deserialize = theirs(fake)
    registry = SchemaRegistry(fake.url)
    ours, context = AvroSerializer(registry, SCHEMA), SerializationContext("t", "value")
    for order in ORDERS:
        data = serialize(order, TheirContext("t", MessageField.VALUE))
        assert ours(order, context) == data
        assert AvroDeserializer(registry)(data, context) == order
        assert deserialize(ours(order, context), TheirContext("t", MessageField.VALUE)) == order
    assert list(fake.subjects) == ["t-value"]
    assert len(fake.schemas) == 1


def test_their_clients_read_what_ours_write_and_the_reverse(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    serialize, deserialize = theirs(fake)
    registry = SchemaRegistry(fake.url)
    with Producer(server.bootstrap, value_serializer=AvroSerializer(registry, SCHEMA)) as producer:
        producer.send(name, ORDERS[0])
    their_producer = SerializingProducer({"bootstrap.servers": server.bootstrap, "value.serializer": serialize})
    their_producer.produce(name, value=ORDERS[1])
    assert their_producer.flush(30) == 0
    with Consumer(
        server.bootstrap, value_deserializer=AvroDeserializer(registry), auto_offset_reset="earliest"
    ) as ours:
        ours.assign([(name, 0)])
        found: list[Any] = []
        while len(found) < 2:
            found += [record.value for record in ours.poll(30)]
    assert found == ORDERS
    their_consumer = DeserializingConsumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "value.deserializer": deserialize,
        }
    )
    their_consumer.subscribe([name])
    messages = [their_consumer.poll(30), their_consumer.poll(30)]
    their_consumer.close()
    assert [message.value() for message in messages] == ORDERS


def test_their_serializers_are_options_of_our_clients(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    serialize, deserialize = theirs(fake)
    with Producer(server.bootstrap, value_serializer=serialize, key_serializer=serialize) as producer:
        producer.send(name, ORDERS[0], key=ORDERS[1])
    options = {"value_deserializer": deserialize, "key_deserializer": deserialize, "auto_offset_reset": "earliest"}
    with Consumer(server.bootstrap, **options) as consumer:
        consumer.assign([(name, 0)])
        (record,) = consumer.poll(30)
    assert (record.key, record.value) == (ORDERS[1], ORDERS[0])
    assert sorted(fake.subjects) == [f"{name}-key", f"{name}-value"]


# -- schema ids in headers --------------------------------------------------------------------------------------------

HEADER_STRATEGY = {**TOPIC_STRATEGY, "schema.id.serializer": header_schema_id_serializer}


def test_their_and_our_headers_are_equal(fake: SchemaRegistryDouble) -> None:
    client, registry = SchemaRegistryClient({"url": fake.url}), SchemaRegistry(fake.url)
    serialize = TheirSerializer(client, json.dumps(SCHEMA), conf=HEADER_STRATEGY)
    for field in ("key", "value"):
        theirs_, ours = TheirContext("t", field, []), SerializationContext("t", field, [])
        data = serialize(ORDERS[1], theirs_)
        assert AvroSerializer(registry, SCHEMA, header=True)(ORDERS[1], ours) == data
        assert ours.headers == theirs_.headers
        assert [name for name, _ in ours.headers] == [f"__{field}_schema_id"]
        assert AvroDeserializer(registry)(data, ours) == ORDERS[1]
        assert TheirDeserializer(client, conf=TOPIC_STRATEGY)(data, theirs_) == ORDERS[1]


def test_ids_in_headers_are_read_as_columns_and_as_records(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    client, registry = SchemaRegistryClient({"url": fake.url}), SchemaRegistry(fake.url)
    serialize = TheirSerializer(client, json.dumps(SCHEMA), conf=HEADER_STRATEGY)
    their_producer = SerializingProducer({"bootstrap.servers": server.bootstrap, "value.serializer": serialize})
    their_producer.produce(name, value=ORDERS[0], headers=[("other", b"x")])
    assert their_producer.flush(30) == 0
    with Producer(server.bootstrap, value_serializer=serialize) as producer:  # their serializer in our client
        producer.send(name, ORDERS[1])
    with Producer(server.bootstrap, value_serializer=AvroSerializer(registry, SCHEMA, header=True)) as producer:
        producer.send(name, ORDERS[0], headers={"other": b"y"})
    with Producer(server.bootstrap, value_serializer=AvroSerializer(registry, SCHEMA)) as producer:
        producer.send(name, ORDERS[1])  # an id before the datum
    wanted = [*ORDERS, *ORDERS]
    form = Avro(schemas=avro_schemas(registry), ids_in_headers=True)
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        rows: list[Any] = []
        while len(rows) < 4:
            table = next(consumer.tables(timeout=30, value=form))
            assert "headers" not in table.column_names
            rows += table.column("value").to_pylist()
    assert [{**row, "tags": dict(row["tags"])} for row in rows] == wanted
    for deserialize in (AvroDeserializer(registry), TheirDeserializer(client, conf=TOPIC_STRATEGY)):
        with Consumer(server.bootstrap, auto_offset_reset="earliest", value_deserializer=deserialize) as consumer:
            consumer.assign([(name, 0)])
            found: list[Any] = []
            while len(found) < 4:
                found += [record.value for record in consumer.poll(30)]
        assert found == wanted


def test_columns_are_written_with_guids_in_headers(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    client, registry = SchemaRegistryClient({"url": fake.url}), SchemaRegistry(fake.url)
    guid = registry.guid(f"{name}-value", json.dumps(SCHEMA))
    form = Avro(SCHEMA, schema_guid=guid)
    assert form.schema is not None
    rows = pa.array([{**order, "tags": list(order["tags"].items())} for order in ORDERS], form.schema.type)
    headers = pa.array([[{"key": "other", "value": b"x"}], None])
    with Producer(server.bootstrap) as producer:
        producer.send_table(name, pa.table({"value": rows, "headers": headers}), value=form).result(30)
    their_consumer = DeserializingConsumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "value.deserializer": TheirDeserializer(client, conf=TOPIC_STRATEGY),
        }
    )
    their_consumer.subscribe([name])
    messages = [their_consumer.poll(30), their_consumer.poll(30)]
    their_consumer.close()
    assert [message.value() for message in messages] == ORDERS
    assert [[key for key, _ in message.headers()] for message in messages] == [
        ["other", "__value_schema_id"], ["__value_schema_id"],
    ]  # fmt: skip


# -- JSON Schema ------------------------------------------------------------------------------------------------------


def test_json_columns_have_the_framing_of_json_schema(
    server: Server, admin: Admin, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    orders: list[dict[str, Any]] = [{"id": 2**53 + 1, "tags": {"ü": "x"}}, {"id": 2, "tags": {}}]
    client = SchemaRegistryClient({"url": fake.url})
    for strategy in (TOPIC_STRATEGY, HEADER_STRATEGY):
        with Producer(
            server.bootstrap, value_serializer=JSONSerializer(JSON_SCHEMA, client, conf=strategy)
        ) as producer:
            producer.send(name, orders[0])
    (schema_id,) = fake.schemas
    kind = pa.schema([("id", pa.int64()), ("tags", pa.map_(pa.string(), pa.string()))])
    rows = pa.array([{**order, "tags": list(order["tags"].items())} for order in orders], pa.struct(kind))
    with Producer(server.bootstrap) as producer:
        producer.send_table(name, pa.table({"value": rows}), value=Json(kind, schema_id=schema_id)).result(30)
    wanted = [orders[0], orders[0], *orders]
    with Consumer(server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(name, 0)])
        found: list[Any] = []
        while len(found) < 4:
            found += next(consumer.tables(timeout=30, value=Json(kind))).column("value").to_pylist()
    assert [{**row, "tags": dict(row["tags"])} for row in found] == wanted
    deserialize = JSONDeserializer(None, schema_registry_client=client, conf=TOPIC_STRATEGY)  # it checks the schema
    with Consumer(server.bootstrap, auto_offset_reset="earliest", value_deserializer=deserialize) as consumer:
        consumer.assign([(name, 0)])
        found = []
        while len(found) < 4:
            found += [record.value for record in consumer.poll(30)]
    assert found == wanted
