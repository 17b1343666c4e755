"""confluent-kafka's Avro serializers read what ours write, and the reverse. They are also options of our clients."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer as TheirDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirSerializer
from confluent_kafka.serialization import MessageField
from confluent_kafka.serialization import SerializationContext as TheirContext

from oncelog import Admin, Consumer, Producer
from oncelog.serialization import AvroDeserializer, AvroSerializer, SchemaRegistry, SerializationContext
from support.schema_registry import FakeRegistry, fake_registry
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
TOPIC_STRATEGY = {"subject.name.strategy": topic_subject_name_strategy}


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as found:
        yield found


def theirs(fake: FakeRegistry) -> tuple[TheirSerializer, TheirDeserializer]:
    client = SchemaRegistryClient({"url": fake.url})
    return (
        TheirSerializer(client, json.dumps(SCHEMA), conf=TOPIC_STRATEGY),
        TheirDeserializer(client, conf=TOPIC_STRATEGY),
    )


def test_bytes_are_equal(fake: FakeRegistry) -> None:
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
    server: Server, admin: Admin, name: str, fake: FakeRegistry
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
    server: Server, admin: Admin, name: str, fake: FakeRegistry
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
