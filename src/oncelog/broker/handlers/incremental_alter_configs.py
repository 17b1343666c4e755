"""IncrementalAlterConfigs: single settings of topics, brokers and loggers are set, unset, extended (KIP-339).

Source: Kafka's `ConfigAdminManager` and `ConfigurationControlManager`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from oncelog.broker.config.alterations import alter, alter_each, alter_loggers, answered
from oncelog.broker.config.changes import Change, check_changes, incremental
from oncelog.broker.turns import mapped
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker
    from oncelog.broker.requests.context import RequestContext


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, ctx: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Each resource has its own error and is changed as a whole or not at all."""
    outcomes = await alter_each(
        request.resources, lambda resource: _alter(broker, resource, validate_only=request.validate_only)
    )
    responses = await mapped(outcomes, partial(answered, AlterConfigsResourceResponse))
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
