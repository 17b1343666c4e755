"""IncrementalAlterConfigs: single settings of topics, brokers and loggers are set, unset, extended (KIP-339).

Source: Kafka's `ConfigAdminManager` and `ConfigurationControlManager`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oncelog.broker.alterations import alter, alter_loggers
from oncelog.broker.config_changes import Change, ResourceType, check_changes, incremental
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, ctx: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Each resource has its own error and is changed as a whole or not at all."""
    named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses = []
    for resource in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            await _alter(broker, resource, validate_only=request.validate_only)
        except ProtocolError as error:
            code, message = error.code, str(error)
        responses.append(
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return IncrementalAlterConfigsResponse(responses=responses)


async def _alter(broker: Broker, resource: AlterConfigsResource, *, validate_only: bool) -> None:
    changes = [Change(entry.name, entry.config_operation, entry.value) for entry in resource.configs]
    check_changes(changes)
    kind, name = resource.resource_type, resource.resource_name
    if kind == ResourceType.BROKER_LOGGER:
        alter_loggers(broker, name, changes, validate_only=validate_only)
    else:
        await alter(
            broker, kind, name, lambda before, key: incremental(before, changes, key), validate_only=validate_only
        )
