"""DescribeClientQuotas and AlterClientQuotas (KIP-546).

Source: Kafka's `ClientQuotasImage.describe` and `ClientQuotaControlManager`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from oncelog.broker.metadata.quotas import QuotaAdministration
from oncelog.broker.requests.context import RequestContext
from oncelog.broker.requests.operations import CLUSTER
from oncelog.broker.requests.services import Handler, HandlerServices
from oncelog.broker.turns import KEYS_A_TURN, Yielder, by_key, in_turns
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.quotas import DEFAULT, FIELDS, IP, QuotaEntity, QuotaSet, check_entity, check_value, entity_of
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import AclOperation
from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlterationResult,
    QuotaEntityPart,
    QuotaOperation,
)
from oncelog.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

_EXACT, _DEFAULT, _SPECIFIED = range(3)
"""The ways in which a component of the filter matches an entity's name."""

Filter = Mapping[str, frozenset[str] | None]
"""By field of the entity: the names that it may have, or None for any name."""


async def handle_describe(
    cache: MetadataCache, request: DescribeClientQuotasRequest, ctx: RequestContext
) -> DescribeClientQuotasResponse:
    """Return the quotas of the entities that the filter selects, or the error of a filter that is not valid."""
    ctx.authorize(AclOperation.DESCRIBE_CONFIGS, *CLUSTER)
    try:
        chosen = _filter(request.components)
    except ProtocolError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
    found = _matching(cache.image.quotas, chosen, strict=request.strict)
    return DescribeClientQuotasResponse(entries=await in_turns(found, KEYS_A_TURN))


def _filter(components: Iterable[ComponentData]) -> Filter:
    """Return the filter. Raises INVALID_REQUEST or UNSUPPORTED_VERSION if it is not valid."""
    chosen: dict[str, frozenset[str] | None] = {}
    for component in components:
        kind = component.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        field = FIELDS.get(kind)
        if field in chosen:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if field is None:
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        chosen[field] = _wanted(component)
    if FIELDS[IP] in chosen and len(chosen) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return chosen


def _wanted(component: ComponentData) -> frozenset[str] | None:
    """Return the names that the entity may have, or None for any name. Raises INVALID_REQUEST."""
    if component.match_type == _EXACT:
        if component.match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        return frozenset({component.match} - {DEFAULT})  # no entity has the name of the default
    if component.match_type not in (_DEFAULT, _SPECIFIED):
        raise _invalid(f"Unknown match type {component.match_type}")
    if component.match is not None:
        kind = "DEFAULT" if component.match_type == _DEFAULT else "SPECIFIED"
        raise _invalid(f"Request specified MATCH_TYPE_{kind}, but also specified a match string.")
    return frozenset({DEFAULT}) if component.match_type == _DEFAULT else None


def _matching(quotas: QuotaSet, chosen: Filter, *, strict: bool) -> Steps[list[EntryData]]:
    """Return the entries of the entities that have the chosen parts. With `strict`, they have no other parts."""
    found = []
    for entity, values in quotas.by_entity.items():
        yield
        names = entity._asdict()
        if strict and sum(name is not None for name in names.values()) != len(chosen):
            continue
        if all(_has(names[field], wanted) for field, wanted in chosen.items()):
            found.append(
                EntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
                    values=[ValueData(key=key, value=value) for key, value in values.items()],
                )
            )
    return found


def _has(name: str | None, wanted: frozenset[str] | None) -> bool:
    return name is not None and (wanted is None or name in wanted)


async def handle_alter(
    quotas: QuotaAdministration, request: AlterClientQuotasRequest, ctx: RequestContext
) -> AlterClientQuotasResponse:
    """Change the quotas of each entity, or return the entity's error. The legal changes are made together."""
    ctx.authorize(AclOperation.ALTER_CONFIGS, *CLUSTER)
    results: dict[QuotaEntity | tuple[tuple[str, str | None], ...], QuotaAlterationResult] = {}
    wanted: dict[QuotaEntity, dict[str, float | None]] = {}
    yielder = Yielder()
    for entry in request.entries:
        await yielder.next()
        named = await by_key(entry.entity, attrgetter("entity_type"))
        parts = {kind: part.entity_name for kind, part in named.items()}
        result = QuotaAlterationResult(entity=_parts(parts.items()))
        key: QuotaEntity | tuple[tuple[str, str | None], ...] = tuple(sorted(parts.items(), key=lambda part: part[0]))
        try:
            key = entity = entity_of(parts)
            if entity in results:
                wanted.pop(entity, None)
                raise _invalid(f"Ignoring duplicate entity {entity}")
            check_entity(entity)
            wanted[entity] = await _values(entity, entry.ops, yielder)
        except ProtocolError as error:
            result.error_code, result.error_message = error.code, str(error)
        results[key] = result
    if wanted and not request.validate_only:
        await quotas.alter(wanted)
    return AlterClientQuotasResponse(entries=list(results.values()))


def _parts(parts: Iterable[tuple[str, str | None]]) -> list[QuotaEntityPart]:
    return [QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in parts]


async def _values(
    entity: QuotaEntity, operations: Sequence[QuotaOperation], yielder: Yielder
) -> dict[str, float | None]:
    """Return the quotas to set, None to remove one. Raises INVALID_REQUEST."""
    values: dict[str, float | None] = {}
    for operation in operations:
        await yielder.next()
        if operation.key in values:
            raise _invalid(f"Duplicate quota key {operation.key} not updating quota for this entity {entity}")
        values[operation.key] = None if operation.remove else operation.value
        if not operation.remove:
            check_value(entity, operation.key, operation.value)
    return values


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)


def bind_describe(services: HandlerServices) -> Handler:
    """Return the handler of DescribeClientQuotas."""
    return partial(handle_describe, services.cache)


def bind_alter(services: HandlerServices) -> Handler:
    """Return the handler of AlterClientQuotas."""
    return partial(handle_alter, services.quotas)
