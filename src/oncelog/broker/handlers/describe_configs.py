"""DescribeConfigs: the settings of topics and of this broker, with where each value comes from (KIP-226, 569)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncelog.broker.topic_config import ConfigEntry, describe_broker, describe_topic
from oncelog.cluster.metadata import check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
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
    from oncelog.broker.context import RequestContext

TOPIC = 2
BROKER = 4


def handle(broker: Broker, request: DescribeConfigsRequest, ctx: RequestContext) -> DescribeConfigsResponse:
    """Each resource has its own error; null keys mean all of its settings."""
    results = []
    for resource in request.resources:
        result = DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            entries = _entries(broker, resource)
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
        else:
            wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
            result.configs = [
                _described(entry, request.include_synonyms, request.include_documentation)
                for entry in entries
                if wanted is None or entry.name in wanted
            ]
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _entries(broker: Broker, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_topic_name(name)
        topic = broker.metadata.topic(name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return describe_topic(broker.config, topic.configs)
    if resource.resource_type == BROKER:
        if name and name != str(broker.node_id):
            message = f"this is broker {broker.node_id}; ask broker {name} for its settings"
            raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
        # No name means the defaults of the whole cluster, which cannot be set while running: there are none.
        return describe_broker(broker.config) if name else []
    message = f"resources of type {resource.resource_type} have no settings here; topics (2) and brokers (4) do"
    raise ProtocolError(ErrorCode.INVALID_REQUEST, message)


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
