"""AlterConfigs: all settings of topics and brokers are replaced (KIP-133); the older way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oncelog.broker.alterations import alter
from oncelog.broker.config_changes import Change, Operation, check_changes, incremental
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.context import RequestContext


async def handle(broker: Broker, request: AlterConfigsRequest, ctx: RequestContext) -> AlterConfigsResponse:
    """Each resource has its own error; what is not named in it goes back to its default."""
    named = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses = []
    for resource in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            await _replace(broker, resource, validate_only=request.validate_only)
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
    return AlterConfigsResponse(responses=responses)


async def _replace(broker: Broker, resource: AlterConfigsResource, *, validate_only: bool) -> None:
    changes = [Change(entry.name, Operation.SET, entry.value) for entry in resource.configs]
    check_changes(changes)
    await alter(
        broker,
        resource.resource_type,
        resource.resource_name,
        lambda before, key: incremental({}, changes, key),
        validate_only=validate_only,
    )
