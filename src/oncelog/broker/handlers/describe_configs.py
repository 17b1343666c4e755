"""DescribeConfigs: settings of topics, client metrics, groups and this broker, with their sources (KIP-226, 569)."""

from __future__ import annotations

from functools import partial

from oncelog.broker.config import client_metrics, loggers
from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.entries import (
    UNKNOWN_TYPE,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    describe_all_brokers,
    describe_broker,
    describe_group,
    describe_topic,
)
from oncelog.broker.metadata.alterations import this_broker, unserved
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import configured
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import Yielder, by_key
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.cluster.topics import check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation, ResourceType
from oncelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

RESOURCES_A_TURN = 10
"""Resources that the handler describes before the event loop serves other requests. Each has some dozen settings."""


async def handle(
    config: DynamicConfig,
    cache: MetadataCache,
    node_id: int,
    request: DescribeConfigsRequest,
    ctx: RequestContext,
) -> DescribeConfigsResponse:
    """Describe each resource, or return its error. If the request names no keys, describe all settings.

    If a request names a resource twice in the same way, describe it once, so that a small request does not cause a huge
    response.
    """
    results = []
    asked = await by_key(
        request.resources,
        lambda resource: (resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())),
    )
    yielder = Yielder(RESOURCES_A_TURN)
    for resource in asked.values():
        await yielder.next()
        result = DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            owner = configured(resource.resource_type, resource.resource_name)
            ctx.authorize(AclOperation.DESCRIBE_CONFIGS, *owner)
            entries = _entries(config, cache.image, node_id, resource)
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
        else:
            wanted = set(resource.configuration_keys or ())
            result.configs = [
                _described(entry, request.include_synonyms, request.include_documentation)
                for entry in entries
                if not wanted or entry.name in wanted
            ]
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _entries(
    config: DynamicConfig, image: MetadataImage, node_id: int, resource: DescribeConfigsResource
) -> list[ConfigEntry]:
    name, kind = resource.resource_name, resource.resource_type
    if kind == ResourceType.TOPIC:
        check_topic_name(name)
        topic = image.topic(name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return describe_topic(config, topic.configs)
    if kind == ResourceType.BROKER:
        if not name:
            return describe_all_brokers(config)
        this_broker(node_id, name)
        return describe_broker(config)
    if kind == ResourceType.BROKER_LOGGER:
        if not name:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        this_broker(node_id, name)
        source = ConfigSource.DYNAMIC_BROKER_LOGGER
        return [
            ConfigEntry(logger, level, source, UNKNOWN_TYPE, False, (), None)
            for logger, level in loggers.levels().items()
        ]
    if kind == ResourceType.CLIENT_METRICS:
        if not name:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return client_metrics.describe(image.client_metrics.get(name, {}))
    if kind == ResourceType.GROUP:
        if not name:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(config, image.group_configs.get(name, {}))
    raise unserved(kind)


def _described(entry: ConfigEntry, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        is_sensitive=entry.type == ConfigType.PASSWORD,
        read_only=entry.read_only,
        config_source=entry.source,
        config_type=entry.type,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if synonyms else ())
        ],
        documentation=entry.documentation if documentation else None,
    )


def bind(services: HandlerServices) -> Handler:
    """Return the handler of DescribeConfigs."""
    return partial(handle, services.config, services.cache, services.membership.node_id)
