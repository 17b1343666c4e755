"""How the values of topics become columns, and values that cannot be read: `oncelog.sql` and `oncelog.scan`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import oncelog
from oncelog import Admin, Consumer, Producer, errors
from oncelog.tables.choosing import Wanted
from oncelog.tables.query import schema_of
from oncelog.tables.source import sampled
from oncelog.testing import SchemaRegistryDouble
from support.servers import Server


def test_columns_of_the_record(server: Server, admin: Admin, name: str) -> None:
    topic = name
    admin.create_topics(topic, partitions=2)
    with Producer(server.bootstrap) as producer:
        producer.send(topic, b'{"a": 1, "_key": "mine"}', key="k", headers=[("h", b"x")], partition=1, timestamp=5)
        producer.send(topic, None, key="k", partition=1, timestamp=6)
    with oncelog.sql(f'select * from "{topic}" order by _offset', server.bootstrap) as query:
        first, second = query.arrow().to_pylist()
    assert first == {
        "_key_1": "mine",
        "a": 1,
        "_key": "k",
        "_partition": 1,
        "_offset": 0,
        "_timestamp": datetime(1970, 1, 1, microsecond=5000, tzinfo=UTC),
        "_headers": [{"key": "h", "value": b"x"}],
    }
    assert (second["a"], second["_key_1"], second["_key"]) == (None, None, "k")


def test_values_that_are_texts_bytes_or_nothing(server: Server, admin: Admin, name: str) -> None:
    texts, data, empty = (f"{name}-{kind}" for kind in ("texts", "data", "empty"))
    for topic in (texts, data, empty):
        admin.create_topics(topic)
    with Producer(server.bootstrap) as producer:
        producer.send(texts, "[1, 2]", key=b"\xff")
        producer.send(data, b"\xff\x00")
    for topic, wanted in ((texts, [("[1, 2]", b"\xff")]), (data, [(b"\xff\x00", None)]), (empty, [])):
        with oncelog.sql(f'select value, _key from "{topic}"', server.bootstrap) as query:
            assert query.rows() == wanted


def test_bad_value_is_an_error_that_names_the_record(server: Server, admin: Admin, name: str) -> None:
    topic = name
    admin.create_topics(topic)
    with Producer(server.bootstrap) as producer:
        for value in (b'{"a": 1}', b'{"a": "x"}', b'{"a": 3}'):
            producer.send(topic, value)
    formats = {topic: Wanted("json", pa.schema([("a", pa.int64())]))}
    text = f'select sum(a), count(*) from "{topic}"'
    with (
        oncelog.sql(text, server.bootstrap, formats=formats) as query,
        pytest.raises(errors.BadRecordError, match=f"offset 1 of {topic}-0") as caught,
    ):
        query.rows()
    assert "keep_bad" not in str(caught.value)
    assert "bad_records='null'" in str(caught.value)
    with oncelog.sql(text, server.bootstrap, formats=formats, bad_records="null") as query:
        assert query.rows() == [(4, 3)]
    with oncelog.sql(f'select count(*) from "{topic}"', server.bootstrap, formats=formats) as query:
        assert query.rows() == [(3,)]  # values are not decoded


def test_deep_json_is_no_json_object(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    deep = b"[" * 50_000
    with Producer(server.bootstrap) as producer:
        producer.send(name, deep)
    with oncelog.sql(f'select value from "{name}"', server.bootstrap) as query:
        assert query.rows() == [(deep.decode(),)]
    with pytest.raises(errors.ConfigError, match=f"a value of {name} is no JSON that can be read"):
        oncelog.scan(name, server.bootstrap, value_format="json")


def test_field_of_avro_whose_type_another_field_defines() -> None:
    import io

    import fastavro

    from oncelog.tables.choosing import chosen

    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "long"}]}
    schema = {
        "type": "record",
        "name": "Outer",
        "fields": [{"name": "a", "type": inner}, {"name": "b", "type": "Inner"}],
    }

    class Registry:
        def schema(self, schema_id: int) -> dict[str, str]:
            return {"schema": json.dumps(schema)}

    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), {"a": {"x": 1}, "b": {"x": 2}})
    values = pa.array([b"\0\0\0\0\1" + data.getvalue()], pa.large_binary())
    registry: Any = Registry()
    given = Wanted("avro", json.dumps(schema))
    made = chosen("value", "t", given, registry, lambda: values).make(frozenset({"b"}), False)
    assert made is not None
    found, bad = made.decode(values)
    assert (found.to_pylist()[0]["b"], bad) == ({"x": 2}, [])


def test_avro_of_a_registry(server: Server, admin: Admin, name: str) -> None:
    """The records are those of Confluent's serializer. The schema changes in mid-topic."""
    admin.create_topics(name)
    fields = [{"name": "id", "type": "long"}, {"name": "country", "type": "string"}]
    second = [*fields, {"name": "price", "type": ["null", "double"], "default": None}]
    with SchemaRegistryDouble() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        context = SerializationContext(name, MessageField.VALUE)
        with Producer(server.bootstrap) as producer:
            for number, each in enumerate((fields, second)):
                schema = json.dumps({"type": "record", "name": "Order", "fields": each})
                serializer = AvroSerializer(client, schema)
                row = {"id": number, "country": "fr", "price": 2.5}
                producer.send(name, serializer({field["name"]: row[field["name"]] for field in each}, context))
        query = f'select id, country, price from "{name}" order by id'
        with oncelog.sql(query, server.bootstrap, registry=registry.url) as found:
            assert found.rows() == [(0, "fr", None), (1, "fr", 2.5)]
            (each,) = found.reads()
            assert (each.layout.value.form, each.layout.value.how) == ("avro", f"schema of subject {name}-value")
        pruned = oncelog.scan(name, server.bootstrap, registry=registry.url, columns=["price"])
        assert pruned.reader().read_all().to_pydict() == {"price": [None, 2.5]}
        registry.body = b"no JSON"
        with pytest.raises(errors.RegistryError, match=registry.url):
            oncelog.sql(query, server.bootstrap, registry=registry.url)
    with oncelog.sql(f'select octet_length(value) from "{name}"', server.bootstrap) as found:  # without a registry
        assert len(found.rows()) == 2


def test_field_without_a_name_and_a_clause_with_the_name_of_a_topic(server: Server, admin: Admin, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b'{"": 7, "id": 1}')
    query = f'select _ from "{name}" where id in (with "{name}" as (select 1 as id) select id from "{name}")'
    with oncelog.sql(query, server.bootstrap) as found:
        assert found.rows() == [(7,)]


def test_sample_has_a_size(server: Server, admin: Admin, name: str) -> None:
    """A hundred megabytes of values are at the ends of the partitions, and much less is read for the sample."""
    admin.create_topics(name, partitions=2)
    with Producer(server.bootstrap, compression_type="zstd") as producer:
        for number in range(200):
            producer.send(name, b'{"a": "%s"}' % (b"x" * 500_000), partition=number % 2)
    with Consumer(
        server.bootstrap, auto_offset_reset="none", fetch_max_bytes=1, max_partition_fetch_bytes=1
    ) as consumer:
        assert sampled(consumer, name).nbytes < 64 << 20


def test_field_of_json_with_several_types_is_a_text(server: Server, admin: Admin, name: str) -> None:
    """Each value is the JSON of the record. Fields beside it keep their types."""
    admin.create_topics(name)
    values = [b'{"id": 1, "x": 5}', b'{"id": 2, "x": "5"}', b'{"id": 3, "x": {"y": [1.50]}}', b'{"id": 4}']
    with Producer(server.bootstrap) as producer:
        for value in values:
            producer.send(name, value)
    with oncelog.sql(f'select sum(id) from "{name}"', server.bootstrap) as query:
        assert query.rows() == [(10,)]
    with oncelog.sql(f"select x, x::json->>'$.y[0]' from \"{name}\" order by id", server.bootstrap) as query:
        assert query.rows() == [("5", None), ('"5"', None), ('{"y": [1.50]}', "1.5"), (None, None)]
    assert oncelog.scan(name, server.bootstrap).schema.field("x").type == pa.string()
    with Producer(server.bootstrap) as producer:
        producer.send(name, b'{"id": "x"}')
    given = {name: Wanted("json", schema_of("id json"))}
    with oncelog.sql(f'select id from "{name}" order by _offset', server.bootstrap, formats=given) as query:
        assert query.rows() == [("1",), ("2",), ("3",), ("4",), ('"x"',)]


def test_integers_of_json_are_never_rounded(server: Server, admin: Admin, name: str) -> None:
    big = 2**63
    cases: list[tuple[list[str], list[Any]]] = [
        (["1", f"{big}"], [Decimal(1), Decimal(big)]),
        ([f"-{big}", f"{big - 1}"], [-big, big - 1]),
        (["1" * 38, "1"], [Decimal("1" * 38), Decimal(1)]),
        (["1" * 39, "1"], ["1" * 39, "1"]),
        (["0.5", f"{2**53 + 1}"], ["0.5", f"{2**53 + 1}"]),
        (["0.5", f"{2**53}"], [0.5, 2.0**53]),
    ]
    for number, (texts, wanted) in enumerate(cases):
        topic = f"{name}-{number}"
        admin.create_topics(topic)
        with Producer(server.bootstrap) as producer:
            for text in texts:
                producer.send(topic, f'{{"a": {text}}}'.encode())
        with oncelog.sql(f'select a from "{topic}" order by _offset', server.bootstrap) as query:
            assert query.rows() == [(each,) for each in wanted]


def test_objects_without_fields_and_values_that_are_no_objects(server: Server, admin: Admin, name: str) -> None:
    cases: list[tuple[str, list[bytes], str, Any]] = [
        ("auto", [b"{}"], "value", "{}"),
        ("auto", [b'{"a": {}}'], "a", "{}"),
        ("json", [b"[1, 2]"], "value", [1, 2]),
        ("json", [b"[" * 100 + b"]" * 100], "value::varchar", None),
    ]
    for number, (form, values, column, wanted) in enumerate(cases):
        topic = f"{name}-{number}"
        admin.create_topics(topic)
        with Producer(server.bootstrap) as producer:
            for value in values:
                producer.send(topic, value)
        with oncelog.sql(f'select {column} from "{topic}"', server.bootstrap, formats={topic: form}) as query:
            assert query.rows()[0][0] == wanted or wanted is None
