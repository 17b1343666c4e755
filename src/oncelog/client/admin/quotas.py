"""Change and describe client quotas with a `ClusterClient` (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.notebooks import in_notebooks
from oncelog.client.response_errors import raise_for_error
from oncelog.errors import UsageError
from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntityPart,
    QuotaOperation,
)
from oncelog.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

DEFAULT = ""
"""The name that stands for all users, client ids or addresses without a quota of their own."""
QUOTA_KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
"""The quotas of users and client ids."""
ADDRESS_KEYS = ("connection_creation_rate",)
"""The quotas of IP addresses."""

_TYPES = {"user": "user", "client_id": "client-id", "ip": "ip"}
"""The types of an entity's parts on the wire, by their names here."""
_EXACT, _DEFAULT, _SPECIFIED = range(3)
Chosen = str | Literal[True] | None


@in_notebooks()
class ClientQuotaEntity(NamedTuple):
    """What a quota applies to: a user, a client id, both, or an IP address (Kafka's `ClientQuotaEntity`).

    A part is a name, None if the entity has no such part, or `DEFAULT` for all names without a quota of their own.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


async def alter_client_quotas(
    cluster: ClusterClient,
    alterations: Mapping[ClientQuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Set quotas of entities by their keys (Kafka's AlterClientQuotas). The value None removes a quota.

    The keys are "producer_byte_rate", "consumer_byte_rate" (bytes per second), "request_percentage" and
    "controller_mutation_rate" (partitions per second). An IP address has only "connection_creation_rate".

    If the broker rejects an entity, it changes the others nevertheless. Then this raises the error of the first
    rejected one: RequestError (INVALID_REQUEST, CLUSTER_AUTHORIZATION_FAILED).
    """
    entries = [
        QuotaAlteration(
            entity=[QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in _parts(entity)],
            ops=[QuotaOperation(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
        )
        for entity, values in alterations.items()
    ]
    if not entries:
        return
    response = await cluster.call_controller(AlterClientQuotasRequest(entries=entries, validate_only=validate_only))
    for result in response.entries:
        shown = ", ".join(f"{part.entity_type} {part.entity_name or 'default'!r}" for part in result.entity)
        raise_for_error(result, f"quotas of {shown or 'nothing'}")


async def describe_client_quotas(
    cluster: ClusterClient,
    *,
    user: Chosen = None,
    client_id: Chosen = None,
    ip: Chosen = None,
    strict: bool = False,
) -> dict[ClientQuotaEntity, dict[str, float]]:
    """Return the quotas of the selected entities by their keys (Kafka's DescribeClientQuotas), sorted by entity.

    Each of `user`, `client_id` and `ip` selects the entities that have this name, that have `DEFAULT`, or with True
    that have any name. With `strict`, the selected entities have no other parts. Without any, all are selected.
    Raises RequestError (CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST).
    """
    chosen = {"user": user, "client_id": client_id, "ip": ip}
    components = [_component(_TYPES[field], name) for field, name in chosen.items() if name is not None]
    response = await cluster.call_any(DescribeClientQuotasRequest(components=components, strict=strict))
    raise_for_error(response, "quotas")
    found = {_entity(entry.entity): {each.key: each.value for each in entry.values} for entry in response.entries or ()}
    order = sorted(found, key=lambda entity: tuple((name is not None, name or "") for name in entity))
    return {entity: found[entity] for entity in order}


def _parts(entity: ClientQuotaEntity) -> Iterable[tuple[str, str | None]]:
    for field, name in entity._asdict().items():
        if name is not None:
            if not isinstance(name, str):
                raise UsageError(f"{field} of a quota must be str or None, not {name!r}")
            yield _TYPES[field], name or None


def _component(kind: str, name: str | bool) -> ComponentData:
    if name is True:
        return ComponentData(entity_type=kind, match_type=_SPECIFIED, match=None)
    if not isinstance(name, str):
        raise UsageError(f"{kind} must be a name, True or None, not {name!r}")
    return ComponentData(entity_type=kind, match_type=_EXACT if name else _DEFAULT, match=name or None)


def _entity(parts: Iterable[Any]) -> ClientQuotaEntity:
    """Return the entity of a response. A part of an unknown type is ignored."""
    names = {part.entity_type: part.entity_name or DEFAULT for part in parts}
    return ClientQuotaEntity(**{field: names.get(kind) for field, kind in _TYPES.items()})
