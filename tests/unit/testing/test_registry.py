"""The test double of a schema registry: what it accepts, and the plugin's fixture."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from oncelog.errors import RegistryError
from oncelog.serialization import SchemaRegistry
from oncelog.testing import SchemaRegistryDouble
from oncelog.testing.avro_compatibility import incompatibility

pytest_plugins = ["pytester"]


def order(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


ID = {"name": "id", "type": "long"}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}


@pytest.fixture
def registry() -> Iterator[SchemaRegistryDouble]:
    with SchemaRegistryDouble() as found:
        yield found


def ask(registry: SchemaRegistryDouble, method: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(registry.url + path, data, method=method)) as answer:
        return json.loads(answer.read())


def test_versions_of_a_subject_have_ids(registry: SchemaRegistryDouble) -> None:
    client = SchemaRegistry(registry.url)
    first = client.register("orders-value", json.dumps(order(ID)))
    second = client.register("orders-value", json.dumps(order(ID, NOTE)))
    assert client.register("orders-value", json.dumps(order(ID))) == first != second
    assert client.register("others-value", json.dumps(order(ID))) == first
    assert client.find("orders-value", json.dumps(order(ID))) == first
    assert client.latest("orders-value")["version"] == 2
    assert client.version("orders-value", 1)["id"] == first
    assert json.loads(client.schema(second)["schema"]) == order(ID, NOTE)
    assert ask(registry, "GET", "/subjects") == ["orders-value", "others-value"]
    assert ask(registry, "GET", "/subjects/orders-value/versions") == [1, 2]
    with pytest.raises(LookupError, match="no such schema"):
        client.version("orders-value", 3)


def test_protobuf_schema_has_an_id_and_invalid_schemas_an_answer(registry: SchemaRegistryDouble) -> None:
    body = {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3"; message Order { int64 id = 1; }'}
    number = ask(registry, "POST", "/subjects/orders-value/versions", body)["id"]
    assert ask(registry, "POST", "/subjects/orders-value", body)["id"] == number
    assert ask(registry, "GET", f"/schemas/ids/{number}") == body
    with pytest.raises(RegistryError, match="HTTP 422: Invalid schema"):
        SchemaRegistry(registry.url).register("orders-value", "order.avsc")


def test_incompatible_schema_is_rejected_unless_the_level_is_none(registry: SchemaRegistryDouble) -> None:
    client = SchemaRegistry(registry.url)
    new = order(ID, {"name": "price", "type": "double"})
    client.register("orders-value", json.dumps(order(ID)))
    asked = "/compatibility/subjects/orders-value/versions/latest"
    assert ask(registry, "POST", asked, {"schema": json.dumps(order(ID, NOTE))})["is_compatible"]
    assert not ask(registry, "POST", asked, {"schema": json.dumps(new)})["is_compatible"]
    with pytest.raises(RegistryError, match="price: the field is new, and has no default"):
        client.register("orders-value", json.dumps(new))
    assert ask(registry, "GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    ask(registry, "PUT", "/config/orders-value", {"compatibility": "NONE"})
    client.register("orders-value", json.dumps(new))
    with pytest.raises(urllib.error.HTTPError, match="422"):
        ask(registry, "PUT", "/config", {"compatibility": "FULL"})


TREE = order(ID, {"name": "left", "type": ["null", "Order"]})


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        ("long", "int", None),
        ("int", "long", "int cannot read long"),
        ("bytes", "string", None),
        (["null", "long"], "int", None),
        ("int", ["null", "int"], "int cannot read null"),
        (["null", "string"], "long", "no branch of the union reads long"),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "string"}, "long cannot read string"),
        ({"type": "map", "values": "double"}, {"type": "map", "values": "float"}, None),
        (order(), order(ID), None),
        (order(name="Other"), order(ID), "another name"),
        (order(name="com.shop.Order"), order(ID), None),
        ({**order(), "name": "New", "aliases": ["Order"]}, order(ID), None),
        (order({"name": "number", "type": "long", "aliases": ["id"]}), order(ID), None),
        (TREE, TREE, None),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            "the enum lacks B",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            None,
        ),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, "the sizes differ"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "long", None),
    ],
)
def test_schema_resolution(reader: Any, writer: Any, reason: str | None) -> None:
    found = incompatibility(reader, writer)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_fixture_is_an_empty_registry_for_each_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
import pytest
from oncelog.serialization import SchemaRegistry

@pytest.mark.parametrize("number", [1, 2])
def test_register(oncelog_registry, number):
    assert oncelog_registry.subjects == {}
    SchemaRegistry(oncelog_registry.url).register("orders-value", '"long"')
    assert list(oncelog_registry.subjects) == ["orders-value"]
""")
    pytester.runpytest_subprocess("-q", "-p", "no:xdist").assert_outcomes(passed=2)
