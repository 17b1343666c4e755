"""Settings of topics and brokers, and numbers of partitions, changed: coroutines over `ClusterClient`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from oncelog.client.cluster import ClusterClient
from oncelog.client.outcomes import raise_for_error
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

_SET, _DELETE = 0, 1


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
    """Change settings of a broker, or (None) of all brokers, while they run. KafkaError (INVALID_REQUEST ...)."""
    name = "" if broker is None else str(broker)
    request = _request(ResourceType.BROKER, name, to_set, to_unset, validate_only=validate_only)
    call = cluster.call_any(request) if broker is None else cluster.call_broker(broker, request)
    raise_for_error(await call, "all brokers" if broker is None else f"broker {broker}")


async def create_partitions(cluster: ClusterClient, topic: str, count: int, *, validate_only: bool = False) -> None:
    """Let a topic grow to so many partitions; KafkaError (INVALID_PARTITIONS ...)."""
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)
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
