"""Change and read settings of resources: AlterConfigs, IncrementalAlterConfigs, DescribeConfigs."""

from __future__ import annotations

from typing import Any

from oncelog.protocol.messages import alter_configs as legacy
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from support.wire import Wire, code, retried, until

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
OF_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, OF_LOGGER = 1, 2, 3, 4, 5, 6
ME = "1"
"""The node id of both servers."""
MIB = 1 << 20

Op = tuple[str, int, str | None]


def resource(kind: int, name: str, *ops: Op) -> AlterConfigsResource:
    """Return one resource of a request."""
    configs = [AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in ops]
    return AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)


def alter_all(wire: Wire, *resources: AlterConfigsResource, validate_only: bool = False, version: int = 1) -> list[Any]:
    """Return the results in the response to one IncrementalAlterConfigs."""
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return list(wire.call(request, version).responses)


def alter(wire: Wire, kind: int, name: str, *ops: Op, validate_only: bool = False, version: int = 1) -> Any:
    """Return the result for the only resource."""
    [answer] = alter_all(wire, resource(kind, name, *ops), validate_only=validate_only, version=version)
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


def set_topic(wire: Wire, topic: str, key: str, value: str) -> None:
    """Set one setting of a topic, and wait until the broker returns it."""
    answer = alter(wire, TOPIC, topic, (key, SET, value))
    assert not answer.error_code, answer
    until(lambda: shown(wire, TOPIC, topic)[key].value, lambda found: found == value, f"{key} is {value}")


def shown(wire: Wire, kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    """Return the settings of a resource in DescribeConfigs."""
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    [answer] = wire.call(DescribeConfigsRequest(resources=[asked], include_synonyms=True)).results
    assert not answer.error_code, answer
    return {entry.name: entry for entry in answer.configs}


def value(wire: Wire, kind: int, name: str, key: str) -> tuple[str, int]:
    """Return value and source of one setting."""
    entry = shown(wire, kind, name, [key])[key]
    return entry.value, entry.config_source


def wait_until_value(wire: Wire, kind: int, name: str, key: str, wanted: tuple[str, int]) -> None:
    """Wait until a setting has that value from that source."""
    until(lambda: value(wire, kind, name, key), lambda found: found == wanted, f"{key} is {wanted}")


def put(wire: Wire, topic: str, records: bytes | bytearray) -> Any:
    """Produce as soon as the partition has a leader."""
    answer = retried(lambda: wire.produce(topic, records))
    assert not answer.error_code, answer
    return answer


def wait_until_rejected(wire: Wire, topic: str, records: bytes | bytearray, error: str) -> None:
    """Wait until the records are rejected. In Kafka, logs apply a change a little later than the metadata."""
    until(lambda: wire.produce(topic, records).error_code, lambda found: found == code(error), f"refused with {error}")


def wait_until_accepted(wire: Wire, topic: str, records: bytes | bytearray) -> Any:
    """Wait until the records are accepted."""
    return until(lambda: wire.produce(topic, records), lambda answer: not answer.error_code, "taken")


def replace(wire: Wire, kind: int, name: str, configs: dict[str, str | None], **options: Any) -> Any:
    """Return the response to AlterConfigs with one resource."""
    entries = [legacy.AlterableConfig(name=key, value=text) for key, text in configs.items()]
    asked = legacy.AlterConfigsResource(resource_type=kind, resource_name=name, configs=entries)
    version = options.pop("version", 2)
    [answer] = wire.call(legacy.AlterConfigsRequest(resources=[asked], **options), version).responses
    return answer
