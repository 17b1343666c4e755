"""ListConfigResources (KIP-1142): list topics, brokers, loggers, client metrics and groups.

Source: Kafka's `KafkaApis`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, ResourceType
from oncelog.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

_TYPES = frozenset(int(kind) for kind in ResourceType)


async def handle(
    cache: MetadataCache, request: ListConfigResourcesRequest, ctx: RequestContext
) -> ListConfigResourcesResponse:
    """Return the resources of the requested types, of all types if the request names none.

    A group is listed if it has settings of its own. Version 0 lists client metrics only.
    """
    ctx.authorize(AclOperation.DESCRIBE_CONFIGS, *CLUSTER)
    wanted = {ResourceType.CLIENT_METRICS} if ctx.api_version == 0 else set(request.resource_types) or _TYPES
    if not wanted <= _TYPES:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    yielder = Yielder()
    found = []
    for resource in _resources(cache.image):
        await yielder.next()
        if resource.resource_type in wanted:
            found.append(resource)
    return ListConfigResourcesResponse(config_resources=found)


def _resources(image: MetadataImage) -> Iterator[ConfigResource]:
    for topic in image.topics():
        yield ConfigResource(resource_name=topic.name, resource_type=ResourceType.TOPIC)
    for broker in sorted(image.brokers):
        for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
            yield ConfigResource(resource_name=str(broker), resource_type=kind)
    for name in sorted(image.client_metrics):
        yield ConfigResource(resource_name=name, resource_type=ResourceType.CLIENT_METRICS)
    for name in sorted(image.group_configs):
        yield ConfigResource(resource_name=name, resource_type=ResourceType.GROUP)


def bind(services: HandlerServices) -> Handler:
    """Return the handler of ListConfigResources."""
    return partial(handle, services.cache)
