"""Set and list client quotas over one connection."""

from __future__ import annotations

from oncelog.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaAlterationResult,
    QuotaEntityPart,
    QuotaOperation,
)
from oncelog.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from support.wire import Wire, until

EXACT, DEFAULT, SPECIFIED = range(3)
Entity = tuple[tuple[str, str | None], ...]
RATE = "connection_creation_rate"
KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")


def altered(
    wire: Wire, entity: Entity, version: int = 1, *, validate_only: bool = False, **quotas: float | None
) -> QuotaAlterationResult:
    request = AlterClientQuotasRequest(entries=[alteration(entity, **quotas)], validate_only=validate_only)
    found: list[QuotaAlterationResult] = wire.call(request, version).entries
    assert len(found) == 1
    return found[0]


def alteration(entity: Entity, **quotas: float | None) -> QuotaAlteration:
    return QuotaAlteration(
        entity=[QuotaEntityPart(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[QuotaOperation(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
    )


def described(
    wire: Wire, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[Entity, dict[str, float]]:
    wanted = [ComponentData(entity_type=kind, match_type=how, match=match) for kind, how, match in components]
    answer = wire.call(DescribeClientQuotasRequest(components=wanted, strict=strict), version)
    assert answer.error_code == 0
    return {
        tuple(sorted(((part.entity_type, part.entity_name) for part in entry.entity), key=str)): {
            each.key: each.value for each in entry.values
        }
        for entry in answer.entries
    }


def settled(wire: Wire, entity: Entity, quotas: dict[str, float]) -> None:
    """Wait until the broker shows these quotas. Kafka's brokers follow their controller a moment later."""
    key = tuple(sorted(entity, key=str))
    until(lambda: described(wire).get(key, {}), lambda found: found == quotas, f"quotas of {entity}")


def remove_all(wire: Wire) -> None:
    """Remove all quotas, and wait until the broker shows none."""
    for entity, quotas in described(wire).items():
        wire.call(AlterClientQuotasRequest(entries=[alteration(entity, **dict.fromkeys(quotas))]))
    until(lambda: described(wire), lambda found: not found, "quotas remain")
