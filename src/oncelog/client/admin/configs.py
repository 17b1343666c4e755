"""Describe and change settings of topics, brokers, groups and client metrics with a `ClusterClient`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.response_errors import raise_for_error, require_answers
from oncelog.errors import ConfigError
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.messages.list_config_resources import ListConfigResourcesRequest
from oncelog.protocol.schema import Message

RESOURCES = {
    "topic": ResourceType.TOPIC,
    "broker": ResourceType.BROKER,
    "broker_logger": ResourceType.BROKER_LOGGER,
    "client_metrics": ResourceType.CLIENT_METRICS,
    "group": ResourceType.GROUP,
}
"""The kinds of resources that have settings."""
SOURCES = {
    1: "topic",
    2: "broker, changed at run time",
    3: "all brokers, changed at run time",
    4: "broker's start",
    5: "default",
    6: "logger",
    7: "client metrics subscription",
    8: "group",
}
"""Where the value of a setting comes from (Kafka's `ConfigSource`)."""
USER_SET = frozenset(SOURCES) - {5}

_SET, _DELETE = 0, 1


@in_notebooks()
class ConfigEntry(NamedTuple):
    """A setting of a resource. The value of a sensitive setting is None.

    `source` is Kafka's number for the origin of the value: 1 the topic, 2 this broker at run time, 3 all brokers at run
    time, 4 the broker's start, 5 the default, 6 a logger, 7 the client metrics subscription, 8 the group.
    """

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool


@in_notebooks()
class ConfigResource(NamedTuple):
    """A resource that has settings. `kind` is one of `describe_configs`."""

    kind: str
    name: str


async def _call_resource(cluster: ClusterClient, kind: str, name: str, request: Message) -> Any:
    """Send a request about a broker to that broker, and a request about another resource to any broker."""
    if kind in ("broker", "broker_logger") and name:
        await cluster.require_broker(int(name))
        return await cluster.call_broker(int(name), request)
    return await cluster.call_any(request)


async def describe_configs(
    cluster: ClusterClient, kind: str, name: str | int, *, all_: bool = True
) -> dict[str, str | None]:
    """Return setting -> value of a resource (Kafka's DescribeConfigs).

    `kind` is "topic", "broker", "broker_logger", "client_metrics" or "group". `name` is the topic, the client metrics
    subscription (KIP-714), the group or the broker's node id. The broker name "" means the settings that all brokers
    share. With `all_` False, return only settings that a user has
    set. Values are strings. Sensitive values are None.

    Raises UnknownTopicError, RequestError (BROKER_ID_NOT_REGISTERED), or UnsupportedError if the broker does not
    support the kind.
    """
    entries = await describe_config_entries(cluster, kind, name)
    return {entry.name: entry.value for entry in entries if all_ or entry.source in USER_SET}


async def describe_config_entries(cluster: ClusterClient, kind: str, name: str | int) -> list[ConfigEntry]:
    """Return the settings of a resource, each with its source and whether it can change. See `describe_configs`."""
    wanted = DescribeConfigsResource(resource_type=RESOURCES[kind], resource_name=str(name), configuration_keys=None)
    request = DescribeConfigsRequest(resources=[wanted])
    response = await _call_resource(cluster, kind, str(name), request)
    raise_for_error(response, f"settings of {kind} {name!r}")
    return sorted(
        ConfigEntry(item.name, item.value, item.config_source, item.read_only, item.is_sensitive)
        for item in response.results[0].configs
    )


async def list_config_resources(cluster: ClusterClient, *kinds: str) -> list[ConfigResource]:
    """Return the resources of these kinds that have settings, of all kinds without an argument (KIP-1142).

    The kinds are those of `describe_configs`. Raises ConfigError for another kind, and UnsupportedError if the broker
    is older than Kafka 4.1.
    """
    for kind in kinds:
        if kind not in RESOURCES:
            raise ConfigError(f"unknown kind of resources {kind!r}; the kinds are {', '.join(RESOURCES)}")
    request = ListConfigResourcesRequest(resource_types=[RESOURCES[kind] for kind in kinds])
    response = await cluster.call_any(request)
    raise_for_error(response, "resources with settings")
    names = {number: kind for kind, number in RESOURCES.items()}
    return sorted(
        ConfigResource(names[item.resource_type], item.resource_name)
        for item in response.config_resources
        if item.resource_type in names
    )


async def alter_configs(
    cluster: ClusterClient,
    kind: str,
    name: str | int,
    to_set: Mapping[str, str],
    to_unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Change settings of a resource (Kafka's IncrementalAlterConfigs). Either all of them change, or none.

    `kind` and `name` are those of `describe_configs`. `to_set` maps settings to new values. Settings in `to_unset`
    return to their defaults. With `validate_only`, nothing changes.

    Raises UnknownTopicError, or RequestError (INVALID_CONFIG, INVALID_REQUEST, BROKER_ID_NOT_REGISTERED).
    """
    request = _request(RESOURCES[kind], str(name), to_set, to_unset, validate_only=validate_only)
    about = "all brokers" if name == "" else f"{kind} {str(name)!r}"
    response = await _call_resource(cluster, kind, str(name), request)
    raise_for_error(response, about)
    require_answers([str(name)], [item.resource_name for item in response.responses], f"settings of {kind}")


async def alter_topic_configs(
    cluster: ClusterClient,
    topic: str,
    to_set: Mapping[str, str],
    to_unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Change settings of a topic, all or none. Settings in `to_unset` return to the broker's values.

    With `validate_only`, nothing changes. Raises UnknownTopicError, or RequestError (INVALID_CONFIG).
    """
    request = _request(ResourceType.TOPIC, topic, to_set, to_unset, validate_only=validate_only)
    response = await cluster.call_controller(request)
    raise_for_error(response, f"topic {topic!r}")
    require_answers([topic], [item.resource_name for item in response.responses], "settings of topic")


async def alter_broker_configs(
    cluster: ClusterClient,
    broker: int | None,
    to_set: Mapping[str, str],
    to_unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Change settings of a running broker, or of all brokers if `broker` is None. Either all settings change, or none.

    A setting of one broker overrides the same setting of all brokers. Settings in `to_unset` return to the values from
    the broker's start. With `validate_only`, nothing changes. Raises RequestError (INVALID_CONFIG, INVALID_REQUEST,
    BROKER_ID_NOT_REGISTERED).
    """
    name = "" if broker is None else str(broker)
    await alter_configs(cluster, "broker", name, to_set, to_unset, validate_only=validate_only)


def _request(
    kind: int, name: str, to_set: Mapping[str, str], to_unset: Iterable[str], *, validate_only: bool
) -> IncrementalAlterConfigsRequest:
    configs = [AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in to_set.items()]
    configs += [AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in to_unset]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
