"""AlterConfigs and IncrementalAlterConfigs: change settings of topics, brokers, loggers and client metrics.

AlterConfigs (KIP-133) is the older API. It replaces all settings of a resource. IncrementalAlterConfigs (KIP-339)
changes single settings. Source: Kafka's `ConfigAdminManager` and `ConfigurationControlManager`.
"""

from __future__ import annotations

from functools import partial

from oncelog.broker.config.changes import Change, ConfigOperation, check_changes, incremental
from oncelog.broker.metadata.alterations import alter, alter_each, alter_loggers, answered
from oncelog.broker.metadata.settings import SettingsAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import configured
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import mapped
from oncelog.protocol.kinds import AclOperation, ResourceType
from oncelog.protocol.messages import alter_configs, incremental_alter_configs
from oncelog.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from oncelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle_replace(
    settings: SettingsAdministration, request: AlterConfigsRequest, ctx: RequestContext
) -> AlterConfigsResponse:
    """Return one result for each resource. Settings that the request does not name are reset to their defaults."""
    outcomes = await alter_each(
        request.resources, lambda resource: _replace(settings, resource, ctx, validate_only=request.validate_only)
    )
    responses = await mapped(outcomes, partial(answered, alter_configs.AlterConfigsResourceResponse))
    return AlterConfigsResponse(responses=responses)


async def _replace(
    settings: SettingsAdministration,
    resource: alter_configs.AlterConfigsResource,
    ctx: RequestContext,
    *,
    validate_only: bool,
) -> None:
    owner = configured(resource.resource_type, resource.resource_name)
    ctx.authorize(AclOperation.ALTER_CONFIGS, *owner)
    changes = [Change(entry.name, ConfigOperation.SET, entry.value) for entry in resource.configs]
    check_changes(changes)
    await alter(
        settings,
        resource.resource_type,
        resource.resource_name,
        lambda before, key: incremental({}, changes, key),
        named=[change.name for change in changes],
        validate_only=validate_only,
    )


async def handle_incremental(
    settings: SettingsAdministration, request: IncrementalAlterConfigsRequest, ctx: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Return one result for each resource. Make all changes of a resource or none."""
    outcomes = await alter_each(
        request.resources, lambda resource: _alter(settings, resource, ctx, validate_only=request.validate_only)
    )
    responses = await mapped(outcomes, partial(answered, incremental_alter_configs.AlterConfigsResourceResponse))
    return IncrementalAlterConfigsResponse(responses=responses)


async def _alter(
    settings: SettingsAdministration,
    resource: incremental_alter_configs.AlterConfigsResource,
    ctx: RequestContext,
    *,
    validate_only: bool,
) -> None:
    owner = configured(resource.resource_type, resource.resource_name)
    ctx.authorize(AclOperation.ALTER_CONFIGS, *owner)
    changes = [Change(entry.name, entry.config_operation, entry.value) for entry in resource.configs]
    check_changes(changes)
    kind, name = resource.resource_type, resource.resource_name
    if kind == ResourceType.BROKER_LOGGER:
        alter_loggers(settings, name, changes, validate_only=validate_only)
    else:
        await alter(
            settings,
            kind,
            name,
            lambda before, key: incremental(before, changes, key),
            named=[change.name for change in changes],
            validate_only=validate_only,
        )


def bind_replace(services: HandlerServices) -> Handler:
    """Return the handler of AlterConfigs."""
    return partial(handle_replace, services.settings)


def bind_incremental(services: HandlerServices) -> Handler:
    """Return the handler of IncrementalAlterConfigs."""
    return partial(handle_incremental, services.settings)
