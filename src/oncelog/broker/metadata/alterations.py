"""The common part of AlterConfigs and IncrementalAlterConfigs: change the settings of each kind of resource."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from oncelog.broker.config import client_metrics, group_configs, loggers
from oncelog.broker.config.changes import Change, Key, broker_key, no_key, topic_key
from oncelog.broker.metadata.settings import SettingsAdministration
from oncelog.broker.turns import Yielder, counted
from oncelog.cluster.topics import check_topic_name
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import ResourceType

MOST_SETTINGS = 1000
"""The maximum number of settings of one resource in a request. One step checks them, while other clients wait."""

Wanted = Callable[[Mapping[str, str], Key], dict[str, str]]
"""Map the current settings of a resource to the requested ones. The `Key` finds the broker's key of a setting.

The result is not yet validated. Raises ProtocolError."""


class AlteredResource(Protocol):
    """A resource in a request, with the changes of its settings."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[Any]:
        """Return the changes of the resource's settings."""


R = TypeVar("R", bound=AlteredResource)
A = TypeVar("A")


async def alter_each(
    resources: Sequence[R], change: Callable[[R], Awaitable[None]]
) -> list[tuple[R, ErrorCode, str | None]]:
    """Change each resource and return its error and message. A resource that is named twice is not changed."""
    named = await counted((resource.resource_type, resource.resource_name) for resource in resources)
    outcomes = []
    yielder = Yielder()
    for resource in resources:
        await yielder.next()
        code, message = ErrorCode.NONE, None
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise ProtocolError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if len(resource.configs) > MOST_SETTINGS:
                count = len(resource.configs)
                message = f"a request may change at most {MOST_SETTINGS} settings of a resource, not {count}"
                raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
            await change(resource)
        except ProtocolError as error:
            code, message = error.code, str(error)
        outcomes.append((resource, code, message))
    return outcomes


def answered(answer: Callable[..., A], outcome: tuple[AlteredResource, ErrorCode, str | None]) -> A:
    """Return the result for one resource. `answer` is its class."""
    resource, code, message = outcome
    return answer(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


async def alter(
    administration: SettingsAdministration,
    kind: int,
    name: str,
    wanted: Wanted,
    *,
    named: Collection[str],
    validate_only: bool,
) -> None:
    """Change settings of a topic, client metrics, a group or this broker, or of all brokers if the name is empty.

    `named` are the settings that the request names.
    Raises INVALID_REQUEST for other kinds of resources and other brokers, INVALID_TOPIC_EXCEPTION, and the errors of
    `SettingsAdministration`.
    """
    if kind == ResourceType.TOPIC:
        if not name:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(name)
        await administration.alter_topic(name, lambda before: wanted(before, topic_key), validate_only=validate_only)
    elif kind == ResourceType.BROKER:
        node_id = this_broker(administration.node_id, name) if name else None
        await administration.alter_broker(
            node_id, lambda before: wanted(before, broker_key), named=named, validate_only=validate_only
        )
    elif kind == ResourceType.CLIENT_METRICS:
        client_metrics.check_name(name)
        await administration.alter_client_metrics(
            name, lambda before: wanted(before, no_key), validate_only=validate_only
        )
    elif kind == ResourceType.GROUP:
        group_configs.check_name(name)
        await administration.alter_group(
            name, lambda before: wanted(before, group_configs.group_key), validate_only=validate_only
        )
    else:
        raise unserved(kind)


def alter_loggers(
    administration: SettingsAdministration, name: str, changes: Sequence[Change], *, validate_only: bool
) -> None:
    """Change levels of this broker's loggers until its next start. Raises INVALID_REQUEST, INVALID_CONFIG."""
    this_broker(administration.node_id, name)
    loggers.check(changes)
    if not validate_only:
        for sentence in loggers.apply(changes):
            administration.logger.warning("%s", sentence)


def this_broker(node_id: int, name: str) -> int:
    """Return the broker's id if `name` is that id. Raises INVALID_REQUEST."""
    try:
        named = int(name)
    except ValueError as error:
        message = f"Node id must be an integer, but it is: {name}"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message) from error
    if named != node_id:
        message = f"Unexpected broker id, expected {node_id}, but received {name}"
        raise ProtocolError(ErrorCode.INVALID_REQUEST, message)
    return node_id


def unserved(kind: int) -> ProtocolError:
    """Return the error for an unknown kind of resource."""
    return ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
