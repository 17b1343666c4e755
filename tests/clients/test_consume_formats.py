"""`oncelog topic consume` with formats: decoded keys and values, and what it prints for bytes of another format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, Producer
from oncelog.serialization import AvroSerializer, SchemaRegistry
from oncelog.testing.registry import SchemaRegistryDouble
from support.command_line import Tool
from support.servers import Server

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


@pytest.fixture
def fake() -> Iterator[SchemaRegistryDouble]:
    with SchemaRegistryDouble() as found:
        yield found


def printed(tool: Tool, topic: str, *options: str) -> list[Any]:
    return [json.loads(line) for line in tool("topic", "consume", topic, "-e", *options).splitlines()]


def order(number: int, price: float = 0.5) -> dict[str, Any]:
    return {"id": number, "price": price, "note": None, "raw": b"\xff\x00", "at": 1_764_000_000_000}


def write_orders(server: Server, fake: SchemaRegistryDouble, topic: str) -> None:
    serializer = AvroSerializer(SchemaRegistry(fake.url), ORDER)
    with Producer(server.bootstrap, value_serializer=serializer) as producer:
        producer.send(topic, order(1), key="a", headers={"h": "x"}, timestamp=1_000)
        producer.send(topic, order(2, float("nan")), key="b", timestamp=1_001)
        producer.send(topic, None, key="c", timestamp=1_002)


def test_avro_is_printed_as_json(
    tool: Tool, admin: Admin, server: Server, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    write_orders(server, fake, name)
    value = {
        "id": 1,
        "price": 0.5,
        "note": None,
        "raw": {"base64": "/wA="},
        "at": "2025-11-24T16:00:00+00:00",
    }
    first = {
        "topic": name,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_000,
        "key": "a",
        "value": value,
        "headers": [["h", "x"]],
    }
    found = printed(tool, name, "--format", "avro", "--registry", fake.url)
    assert found[0] == first
    assert found[1]["value"]["price"] == "NaN"
    assert (found[2]["key"], found[2]["value"]) == ("c", None)
    assert printed(tool, name, "--value-format", "avro", "--registry", fake.url, "-c", "1") == [value]
    line = tool("topic", "consume", name, "-c", "1", "-f", "%k %s\\n", "--value-format", "avro", "--registry", fake.url)
    assert json.loads(line.removeprefix("a ")) == value


def test_schema_id_may_be_in_a_header(
    tool: Tool, admin: Admin, server: Server, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    serializer = AvroSerializer(SchemaRegistry(fake.url), ORDER, header=True)
    with Producer(server.bootstrap, value_serializer=serializer) as producer:
        producer.send(name, order(1)).result(30)
    (found,) = printed(tool, name, "--format", "avro", "--registry", fake.url)
    assert (found["value"]["id"], found.get("value_error")) == (1, None)


def test_value_of_another_format_is_printed_with_the_reason(
    tool: Tool, admin: Admin, server: Server, name: str, fake: SchemaRegistryDouble
) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        for value in (b"{}", b"\0\0\0\0\x07x", b"\xff", b'{"a": [1, 2.5]}'):
            producer.send(name, value)
    found = printed(tool, name, "--format", "avro", "--registry", fake.url)
    assert [each["value"] for each in found[:2]] == [{"base64": "e30="}, {"base64": "AAAAAAd4"}]
    assert found[0]["value_error"] == "ValueError: it has no schema id prefix, and no header with a schema id"
    assert "schemas/ids/7: the registry has no such schema" in found[1]["value_error"]
    texts = printed(tool, name, "--value-format", "json")
    assert texts[0] == {}
    assert texts[2].keys() == {"base64", "error"}
    assert texts[3] == {"a": [1, 2.5]}
    said = tool.fails(1, "topic", "consume", name, "-e", "--value-format", "json", "--strict")
    assert f"value of {name}-0 at offset 1: " in said
    assert "omit --strict" in said


def test_lone_surrogate_stays_valid_json(tool: Tool, admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        producer.send(name, rb'{"a": "\ud800"}')
        producer.send(name, rb'"\ud800"')
    found = printed(tool, name, "--format", "json", "--value-format", "json")
    assert [each["value"] for each in found] == [{"a": "\ud800"}, "\ud800"]
    assert tool("topic", "consume", name, "-e", "--value-format", "json").splitlines()[1] == r"\ud800"


def test_numbers_of_json_keep_their_digits(tool: Tool, admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name)
    values = ['{"a": [12345678901234567.89, {"ü": "x"}], "b": 0.1}', "1E+400", "[-1E-400]", '["1.50", 1.5]']
    with Producer(server.bootstrap) as producer:
        for value in values:
            producer.send(name, value)
    assert tool("topic", "consume", name, "-e", "--value-format", "json").splitlines() == values


def test_keys_and_values_have_formats_of_their_own(tool: Tool, admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"text", key=b"[1]")
    (found,) = printed(tool, name, "--format", "json", "--key-format", "json", "--value-format", "bytes")
    assert (found["key"], found["value"]) == ([1], {"base64": "dGV4dA=="})
    assert tool("topic", "consume", name, "-e", "--value-format", "string") == "text\n"
    (found,) = printed(tool, name, "--format", "json", "--value-format", "json", "--group", name)
    assert found["value_error"].startswith("JSONDecodeError")


def test_markers_of_transactions_have_no_format(tool: Tool, admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name)
    with Producer(server.bootstrap, transactional_id=name) as producer, producer.transaction() as transaction:
        transaction.send(name, b"{}")
    options = ("--format", "json", "--value-format", "json", "--print-control-records")
    record, marker = printed(tool, name, *options)
    assert record["value"] == {}
    assert "value_error" not in marker
    assert marker["headers"][0] == ["control", "COMMIT"]


def test_registry_and_its_login_come_from_the_settings(
    admin: Admin, server: Server, name: str, fake: SchemaRegistryDouble, tmp_path: Path
) -> None:
    admin.create_topics(name)
    write_orders(server, fake, name)
    fake.authorization = "Basic YW5uYTpzM2NyM3Q="  # anna:s3cr3t
    tool = Tool(server.bootstrap)
    said = tool.fails(1, "topic", "consume", name, "-e", "--format", "avro", "--registry", fake.url)
    assert "401" in said
    file = tmp_path / "client.properties"
    login = "schema.registry.username=anna\nschema.registry.password=s3cr3t\n"
    for text in (login, "schema.registry.basic.auth.user.info=anna:s3cr3t\n"):
        file.write_text(f"schema.registry.url={fake.url}\n{text}")
        assert len(printed(tool, name, "--format", "avro", "--command-config", str(file))) == 3
    tool.env |= {
        "ONCELOG_SCHEMA_REGISTRY_URL": fake.url,
        "ONCELOG_SCHEMA_REGISTRY_USERNAME": "anna",
        "ONCELOG_SCHEMA_REGISTRY_PASSWORD": "s3cr3t",
    }
    assert len(printed(tool, name, "--format", "avro")) == 3


def test_wrong_options_are_named(tool: Tool, name: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("schema.registry.uri=http://localhost:8081\n")
    for options, reason in (
        (("--format", "avro"), "name it with --registry URL"),
        (("--registry", "http://localhost:8081"), "--registry needs --value-format avro"),
        (("--format", "avro", "--value-format", "json"), "cannot be used together"),
        (("--format", "avro", "--registry", "localhost"), "it must be an http or https URL"),
        (("--strict",), "--strict needs --value-format"),
        (("--command-config", str(file)), "schema.registry.uri is unknown"),
    ):
        assert reason in " ".join(tool.fails(2, "topic", "consume", name, *options).split())
