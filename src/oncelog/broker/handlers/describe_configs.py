"""DescribeConfigs: the settings of topics and of this broker, with where each value comes from (KIP-226, 569)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.config import loggers
from oncelog.broker.config.alterations import this_broker, unserved
from oncelog.broker.config.entries import (
    UNKNOWN_TYPE,
    ConfigEntry,
    ConfigSource,
    describe_all_brokers,
    describe_broker,
    describe_topic,
)
from oncelog.broker.turns import Turns, by_key
from oncelog.cluster.metadata import check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext

RESOURCES_A_TURN = 10
"""Resources, each with some dozen settings, that are described before others have their turn."""


async def handle(broker: Broker, request: DescribeConfigsRequest, ctx: RequestContext) -> DescribeConfigsResponse:
    """Describe each resource, or return its error. No keys mean all of its settings.

    If a request names a resource twice in the same way, describe it once: a small request must not cause a huge answer.
    """
    results = []
    asked = await by_key(
        request.resources,
        lambda resource: (resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())),
    )
    turns = Turns(RESOURCES_A_TURN)
    for resource in asked.values():
        await turns.next()
        result = DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            entries = _entries(broker, resource)
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


def _entries(broker: Broker, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    name, kind = resource.resource_name, resource.resource_type
    layers = broker.administration.layers
    if kind == ResourceType.TOPIC:
        check_topic_name(name)
        topic = broker.metadata.topic(name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return describe_topic(layers, topic.configs)
    if kind == ResourceType.BROKER:
        if not name:
            return describe_all_brokers(layers)
        this_broker(broker, name)
        return describe_broker(layers)
    if kind == ResourceType.BROKER_LOGGER:
        if not name:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        this_broker(broker, name)
        source = ConfigSource.DYNAMIC_BROKER_LOGGER
        return [
            ConfigEntry(logger, level, source, UNKNOWN_TYPE, False, (), None)
            for logger, level in loggers.levels().items()
        ]
    raise unserved(kind)


def _described(entry: ConfigEntry, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        config_type=entry.type,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if synonyms else ())
        ],
        documentation=entry.documentation if documentation else None,
    )
