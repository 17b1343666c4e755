"""AlterClientQuotas and DescribeClientQuotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.alter_client_quotas import AlterClientQuotasRequest
from support.quotas import (
    DEFAULT,
    EXACT,
    KEYS,
    RATE,
    SPECIFIED,
    Entity,
    alteration,
    altered,
    described,
    remove_all,
    settled,
)
from support.wire import Wire


@pytest.fixture(autouse=True)
def _no_quotas_remain(wire: Wire) -> Iterator[None]:
    yield
    remove_all(wire)


ENTITIES: list[Entity] = [
    (("user", "alice"),),
    (("user", None),),
    (("client-id", "loader"),),
    (("client-id", None),),
    (("user", "alice"), ("client-id", "loader")),
    (("user", "alice"), ("client-id", None)),
    (("user", None), ("client-id", "loader")),
    (("user", None), ("client-id", None)),
    (("user", "CN=a/b,O=<default>"), ("client-id", "x/y:%é")),
    (("user", "<default>"),),
]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("entity", ENTITIES, ids=str)
def test_quotas_of_an_entity_are_set_and_removed(wire: Wire, entity: Entity, version: int) -> None:
    quotas = dict.fromkeys(KEYS, 1024.0) | {"request_percentage": 12.5}
    result = altered(wire, entity, version, **quotas)
    assert (result.error_code, result.error_message) in ((0, None), (0, ""))
    assert {(part.entity_type, part.entity_name) for part in result.entity} == {*entity}
    settled(wire, entity, quotas)
    assert altered(wire, entity, version, producer_byte_rate=2048.0, request_percentage=None).error_code == 0
    del quotas["request_percentage"]
    settled(wire, entity, quotas | {"producer_byte_rate": 2048.0})
    assert altered(wire, entity, version, **dict.fromkeys(KEYS)).error_code == 0
    settled(wire, entity, {})


@pytest.mark.parametrize("entity", [(("ip", "127.0.0.9"),), (("ip", None),), (("ip", "::1"),)], ids=str)
def test_connection_rates_of_addresses_are_set_and_removed(wire: Wire, entity: Entity) -> None:
    assert altered(wire, entity, **{RATE: 5000.0}).error_code == 0
    settled(wire, entity, {RATE: 5000.0})
    assert altered(wire, entity, **{RATE: None}).error_code == 0
    settled(wire, entity, {})


def test_filters_select_entities(wire: Wire) -> None:
    for entity in ENTITIES[:8]:
        altered(wire, entity, producer_byte_rate=1e6)
    settled(wire, ENTITIES[7], {"producer_byte_rate": 1e6})

    def selected(*components: tuple[str, int, str | None], strict: bool = False) -> set[int]:
        found = described(wire, *components, strict=strict)
        return {number for number, entity in enumerate(ENTITIES[:8]) if tuple(sorted(entity, key=str)) in found}

    assert selected() == {*range(8)}
    assert selected(strict=True) == set()
    assert selected(("user", EXACT, "alice")) == {0, 4, 5}
    assert selected(("user", EXACT, "alice"), strict=True) == {0}
    assert selected(("user", DEFAULT, None)) == {1, 6, 7}
    assert selected(("user", SPECIFIED, None), strict=True) == {0, 1}
    assert selected(("client-id", SPECIFIED, None)) == {2, 3, 4, 5, 6, 7}
    assert selected(("user", SPECIFIED, None), ("client-id", EXACT, "loader"), strict=True) == {4, 6}
    assert selected(("user", EXACT, "")) == set()
    assert selected(("ip", SPECIFIED, None)) == set()


def test_validation_alone_changes_nothing(wire: Wire) -> None:
    assert altered(wire, ENTITIES[0], validate_only=True, producer_byte_rate=1e6).error_code == 0
    assert altered(wire, ENTITIES[2], producer_byte_rate=1e6).error_code == 0
    settled(wire, ENTITIES[2], {"producer_byte_rate": 1e6})
    assert [*described(wire)] == [ENTITIES[2]]


def test_removal_of_a_missing_quota_succeeds(wire: Wire) -> None:
    assert altered(wire, ENTITIES[0], producer_byte_rate=None).error_code == 0
    assert altered(wire, ENTITIES[0], no_such_key=None).error_code == 0


USER = (("user", "alice"),)
ADDRESS = (("ip", "127.0.0.9"),)


@pytest.mark.parametrize(
    ("entity", "quotas", "message"),
    [
        ((), {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
        ((("user", ""),), {"producer_byte_rate": 1.0}, "Empty user not supported"),
        ((("group", "g"),), {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: group"),
        (USER, {"no_such_key": 1.0}, "Invalid configuration key no_such_key"),
        (USER, {RATE: 1.0}, f"Invalid configuration key {RATE}"),
        (USER, {"producer_byte_rate": 0.0}, "Quota producer_byte_rate must be greater than 0"),
        (USER, {"request_percentage": -1.0}, "Quota request_percentage must be greater than 0"),
        (USER, {"producer_byte_rate": 1.5}, "producer_byte_rate cannot be a fractional value."),
        (USER, {"producer_byte_rate": 1e30}, "Proposed value for producer_byte_rate is too large for a LONG."),
        (ADDRESS, {RATE: 1e12}, f"Proposed value for {RATE} is too large for an INT."),
        (ADDRESS, {RATE: 0.5}, f"{RATE} cannot be a fractional value."),
        (ADDRESS, {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
        (
            (*ADDRESS, *USER),
            {RATE: 1.0},
            "Invalid quota entity combination, IP entity should",
        ),
        ((("ip", "not an address"),), {RATE: 1.0}, "not an address is not a valid IP or resolvable host."),
    ],
)
def test_invalid_alteration_is_rejected(wire: Wire, entity: Entity, quotas: dict[str, float], message: str) -> None:
    result = altered(wire, entity, **quotas)
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert (result.error_message or "").startswith(message)  # a space is missing in one of Kafka's
    assert described(wire) == {}


def test_other_entities_of_a_request_are_altered(wire: Wire) -> None:
    entries = [alteration(USER, producer_byte_rate=-1.0), alteration(ENTITIES[2], producer_byte_rate=1e6)]
    answer = wire.call(AlterClientQuotasRequest(entries=entries))
    assert sorted(each.error_code for each in answer.entries) == [0, ErrorCode.INVALID_REQUEST]
    settled(wire, ENTITIES[2], {"producer_byte_rate": 1e6})
    assert [*described(wire)] == [ENTITIES[2]]


def test_repeated_keys_and_entities_are_rejected(wire: Wire) -> None:
    twice = alteration(USER, producer_byte_rate=1e6)
    twice.ops *= 2
    again = [alteration(ENTITIES[2], consumer_byte_rate=1e6)] * 2
    answer = wire.call(AlterClientQuotasRequest(entries=[twice, *again]))
    found = {each.entity[0].entity_type: each for each in answer.entries}
    assert {each.error_code for each in found.values()} == {ErrorCode.INVALID_REQUEST}
    assert "uplicate" in (found["user"].error_message or "")
    assert found["client-id"].error_message == "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=loader})"


def test_too_many_changes_are_rejected(wire: Wire) -> None:
    quotas = dict.fromkeys(KEYS, 1e9)
    entries = [alteration((("user", f"user-{number}"),), **quotas) for number in range(2501)]
    answer = wire.call(AlterClientQuotasRequest(entries=entries))
    assert {each.error_code for each in answer.entries} == {ErrorCode.POLICY_VIOLATION}
    assert {each.entity[0].entity_name for each in answer.entries} == {f"user-{number}" for number in range(2501)}
    assert described(wire) == {}
