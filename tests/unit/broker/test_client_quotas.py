"""Which quota counts for a client, and what the broker remembers of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oncelog.broker.quotas import client_quotas
from oncelog.broker.quotas.client_quotas import ClientQuotas
from oncelog.broker.quotas.metering import Metering
from oncelog.broker.quotas.rates import Windows
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.quotas import CONNECTIONS, CONSUMER, DEFAULT, MUTATIONS, PRODUCER, REQUESTS, QuotaEntity, QuotaSet
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.messages.produce import ProduceResponse

ORDER = [
    (QuotaEntity("u", "c"), ("u", "c")),
    (QuotaEntity("u", DEFAULT), ("u", "c")),
    (QuotaEntity("u"), ("u", "")),
    (QuotaEntity(DEFAULT, "c"), ("u", "c")),
    (QuotaEntity(DEFAULT, DEFAULT), ("u", "c")),
    (QuotaEntity(DEFAULT), ("u", "")),
    (QuotaEntity(None, "c"), ("", "c")),
    (QuotaEntity(None, DEFAULT), ("", "c")),
]
"""The entities in their order of precedence, and who shares the quota."""


class World:
    """Quotas with a clock that only the test advances."""

    def __init__(self, **limits: float) -> None:
        self.now = 1000.0
        self.cache = MetadataCache()
        self.quotas = ClientQuotas(self.cache, Windows(), Windows(), lambda: self.now)
        self.limit({QuotaEntity(None, DEFAULT): limits})

    def limit(self, quotas: dict[QuotaEntity, dict[str, float]]) -> None:
        self.cache.image = replace(self.cache.image, quotas=QuotaSet(quotas))


def test_most_specific_quota_counts() -> None:
    quotas = QuotaSet({entity: {PRODUCER: float(number)} for number, (entity, _) in enumerate(ORDER, 1)})
    for number, (entity, owner) in enumerate(ORDER, 1):
        assert quotas.find(PRODUCER, "u", "c") == (number, owner)
        quotas = quotas.with_changes({entity: {}})
    assert quotas.find(PRODUCER, "u", "c") is None
    assert not quotas


def test_quotas_of_other_users_and_kinds_do_not_count() -> None:
    quotas = QuotaSet({QuotaEntity("other"): {PRODUCER: 1.0}, QuotaEntity(None, "other"): {PRODUCER: 1.0}})
    assert quotas.find(PRODUCER, "u", "c") is None
    assert quotas.find(CONSUMER, "other", "c") is None


def test_client_without_an_id_has_only_quotas_of_users() -> None:
    quotas = QuotaSet({entity: {PRODUCER: float(number)} for number, (entity, _) in enumerate(ORDER, 1)})
    assert quotas.find(PRODUCER, "u", "") == (3.0, ("u", ""))
    assert quotas.with_changes({QuotaEntity("u"): {}}).find(PRODUCER, "u", "") == (6.0, ("u", ""))


def test_quota_of_an_address_counts_in_each_form_of_the_address() -> None:
    quotas = QuotaSet(
        {QuotaEntity(ip="0:0:0:0:0:0:0:1"): {CONNECTIONS: 3.0}, QuotaEntity(ip=DEFAULT): {CONNECTIONS: 9.0}}
    )
    assert quotas.connection_rates == {"::1": 3.0, DEFAULT: 9.0}
    assert not quotas, "no client has a quota"
    assert not QuotaSet().connection_rates


def test_users_share_the_quota_of_their_client_id() -> None:
    world = World(producer_byte_rate=1000.0)
    assert world.quotas.record(PRODUCER, "a", "c", 10_000) == 0
    assert world.quotas.record(PRODUCER, "b", "c", 1000) == 1
    assert world.quotas.record(PRODUCER, "a", "other", 1000) == 0


def test_changed_limit_counts_for_what_was_used_before() -> None:
    world = World(producer_byte_rate=1000.0)
    world.quotas.record(PRODUCER, "u", "c", 11_000)
    world.limit({QuotaEntity(None, "c"): {PRODUCER: 500.0}})
    assert world.quotas.record(PRODUCER, "u", "c", 0) == 2
    world.limit({})
    assert world.quotas.record(PRODUCER, "u", "c", 10**9) == 0
    assert world.quotas.most_at_once(PRODUCER, "u", "c") is None


def test_consumer_gets_a_batch_that_exceeds_its_quota_after_a_pause() -> None:
    world = World(consumer_byte_rate=10.0)
    assert world.quotas.most_at_once(CONSUMER, "u", "c") == 100
    assert world.quotas.admit(CONSUMER, "u", "c", 1000) == (True, 90)
    admitted, pause = world.quotas.admit(CONSUMER, "u", "c", 1000)
    assert (admitted, pause) == (False, 100)
    world.now += pause
    assert world.quotas.admit(CONSUMER, "u", "c", 1000)[0] is True


def test_strict_mutations_are_rejected_until_no_token_is_owed() -> None:
    world = World(controller_mutation_rate=1.0)
    assert world.quotas.mutate("u", "c", 13, strict=True) == (True, 0)
    assert world.quotas.mutate("u", "c", 1, strict=True) == (False, 2)
    assert world.quotas.mutate("u", "c", 1, strict=False) == (True, 3)
    world.now += 3
    assert world.quotas.mutate("u", "c", 1, strict=True) == (True, 0)
    assert world.quotas.mutate("u", "c", 1, strict=True) == (False, 1)
    assert world.cache.image.quotas.has(MUTATIONS)


def test_invented_client_ids_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MOST_OWNERS", 50)
    world = World(producer_byte_rate=1000.0)
    for number in range(500):
        world.quotas.record(PRODUCER, "u", f"invented-{number}" + "x" * 30_000, 1.0)
        world.quotas.record(PRODUCER, "u", "known", 1000.0)
    assert world.quotas.remembered == 50
    names = [name for owner in world.quotas._buckets[PRODUCER]._kept for name in owner]
    assert max(map(len, names)) < 300
    assert world.quotas.record(PRODUCER, "u", "known", 0.0) == 490, "a client in use is remembered"


def test_idle_clients_are_forgotten() -> None:
    world = World(producer_byte_rate=1000.0)
    for number in range(10):
        world.quotas.record(PRODUCER, "u", str(number), 1.0)
    world.now += client_quotas.IDLE_S
    world.quotas.record(PRODUCER, "u", "new", 1.0)
    assert world.quotas.remembered == 1


@pytest.mark.parametrize("key", [PRODUCER, CONSUMER, MUTATIONS, REQUESTS])
@pytest.mark.parametrize("limit", [5e-324, 1e-300, 1e300, 1.7e308])
def test_extreme_limit_has_a_pause_that_the_response_can_hold(key: str, limit: float) -> None:
    world = World(**{key: limit})
    session = Session()
    pauses: list[float] = []
    session.throttle = pauses.append
    busy = iter(range(100))
    metering = Metering(world.quotas, lambda: float(next(busy)))
    for api_key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.CREATE_TOPICS) * 2:
        meter = metering.meter(session, "c", api_key, 4, 10**9)
        if api_key is ApiKey.FETCH:
            assert meter.most_fetched is None or meter.most_fetched >= 0
            meter.admit_fetched(10**9)
        if api_key is ApiKey.CREATE_TOPICS:
            meter.mutate(10**6)
        response = ProduceResponse()
        meter.finish(response)
        assert 0 <= response.throttle_time_ms < 2**31
    assert bool(pauses) == (limit < 1)
