"""Settings of topics and brokers, and numbers of partitions, changed: coroutines over `ClusterClient`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oncelog.client.cluster import ClusterClient
from oncelog.client.outcomes import raise_for_error
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from oncelog.protocol.schema import Message

RESOURCES = {
    "topic": ResourceType.TOPIC,
    "broker": ResourceType.BROKER,
    "broker_logger": ResourceType.BROKER_LOGGER,
    "group": ResourceType.GROUP,
}
"""What has settings."""
SOURCES = {
    1: "topic",
    2: "broker, changed while it ran",
    3: "all brokers, changed while they ran",
    4: "broker's start",
    5: "default",
    6: "logger",
    8: "group",
}
"""Who has set a setting (`ConfigSource`)."""
USER_SET = frozenset(SOURCES) - {5}

_SET, _DELETE = 0, 1


async def call_resource(cluster: ClusterClient, kind: str, name: str, request: Message) -> Any:
    """The response of whoever knows the settings of a resource: the broker itself, else anybody."""
    if kind in ("broker", "broker_logger") and name:
        await cluster.require_broker(int(name))
        return await cluster.call_broker(int(name), request)
    return await cluster.call_any(request)


async def alter_configs(
    cluster: ClusterClient,
    kind: str,
    name: str,
    to_set: Mapping[str, str],
    to_unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Change settings of a "topic", "broker" (by node id; "": all brokers), "broker_logger" (levels) or "group"."""
    request = _request(RESOURCES[kind], name, to_set, to_unset, validate_only=validate_only)
    raise_for_error(await call_resource(cluster, kind, name, request), f"{kind} {name!r}" if name else "all brokers")


async def alter_topic_configs(
    cluster: ClusterClient,
    topic: str,
    to_set: Mapping[str, str],
    to_unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Change settings of a topic; those to be unset go back to the broker's. KafkaError (INVALID_CONFIG ...)."""
    request = _request(ResourceType.TOPIC, topic, to_set, to_unset, validate_only=validate_only)
    raise_for_error(await cluster.call_controller(request), f"topic {topic!r}")


async def alter_broker_configs(
    cluster: ClusterClient,
    broker: int | None,
    to_set: Mapping[str, str],
    to_unset: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Change settings of a broker, or (None) of all brokers, while they run.

    KafkaError (INVALID_REQUEST, BROKER_ID_NOT_REGISTERED ...).
    """
    name = "" if broker is None else str(broker)
    await alter_configs(cluster, "broker", name, to_set, to_unset, validate_only=validate_only)


async def create_partitions(
    cluster: ClusterClient,
    topic: str,
    count: int,
    *,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> None:
    """Let a topic grow to so many partitions; KafkaError (INVALID_PARTITIONS ...).

    `assignments` are the brokers of each new partition.
    """
    placed = None
    if assignments is not None:
        placed = [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments]
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=placed)
    request = CreatePartitionsRequest(
        topics=[wanted], timeout_ms=cluster.request_timeout_ms, validate_only=validate_only
    )
    response = await cluster.call_controller(request)
    cluster.topology.forget(topic)
    raise_for_error(response, f"topic {topic!r}")


def _request(
    kind: int, name: str, to_set: Mapping[str, str], to_unset: Iterable[str], *, validate_only: bool
) -> IncrementalAlterConfigsRequest:
    configs = [AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in to_set.items()]
    configs += [AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in to_unset]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
