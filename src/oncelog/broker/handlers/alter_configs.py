"""AlterConfigs: all settings of topics and brokers are replaced (KIP-133); the older way."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from oncelog.broker.config.alterations import alter, alter_each, answered
from oncelog.broker.config.changes import Change, Operation, check_changes, incremental
from oncelog.broker.turns import mapped
from oncelog.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(broker: Broker, request: AlterConfigsRequest, ctx: RequestContext) -> AlterConfigsResponse:
    """Each resource has its own error; what is not named in it goes back to its default."""
    outcomes = await alter_each(
        request.resources, lambda resource: _replace(broker, resource, validate_only=request.validate_only)
    )
    return AlterConfigsResponse(responses=await mapped(outcomes, partial(answered, AlterConfigsResourceResponse)))


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
