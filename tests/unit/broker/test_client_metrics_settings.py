"""Settings of client metrics subscriptions: patterns, settings of other versions, the limit of their number."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.config.client_metrics import (
    MOST_SUBSCRIPTIONS,
    check_changed_settings,
    check_settings,
    parse,
)
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.named_configs import CLIENT_METRICS
from oncelog.cluster.store import Set
from oncelog.net.session import Session
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.broker_fixtures import BrokerStorage

CLIENT = {"client_id": "etl-1", "client_software_name": "apache-kafka-java", "client_source_port": "1234"}


@pytest.mark.parametrize(
    ("match", "selected"),
    [
        ("", True),
        ("client_id=etl-[0-9]", True),
        ("client_id=etl", False),
        ("client_id=etl-1,client_software_name=librdkafka", False),
        ("client_id=b,client_id=etl.*", True),
        ("client_id=etl.*,client_id=b", False),
    ],
)
def test_whole_values_of_all_attributes_must_match(match: str, selected: bool) -> None:
    assert parse({"match": match}).selects(CLIENT) is selected


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\1", "(((a*)*){100}){100}"])
def test_pattern_that_may_need_exponential_time_is_rejected(pattern: str) -> None:
    with pytest.raises(ProtocolError, match="Illegal client matching pattern") as caught:
        check_settings({"match": f"client_id={pattern}"})
    assert caught.value.code == ErrorCode.INVALID_CONFIG


def test_setting_of_another_version_stays_until_the_subscription_is_deleted() -> None:
    before = {"metrics": "a", "later": "1"}
    assert check_changed_settings(before, {**before, "metrics": "b"}) == {"metrics": "b", "later": "1"}
    assert check_changed_settings(before, {"later": "1"}) == {}


async def _set(broker: Broker, name: str, **settings: str) -> None:
    await broker.settings.alter_client_metrics(name, lambda before: {**before, **settings}, validate_only=False)


def test_number_of_subscriptions_is_limited(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        for number in range(MOST_SUBSCRIPTIONS):
            await _set(broker, f"s{number}", metrics="*")
        with pytest.raises(ProtocolError, match="at most 100 client metrics subscriptions") as caught:
            await _set(broker, "another", metrics="*")
        assert caught.value.code == ErrorCode.POLICY_VIOLATION
        await _set(broker, "s0", metrics="org")
        assert broker.metadata.image.client_metrics["s0"] == {"metrics": "org"}

    storage.run_broker(life)


def test_damaged_node_is_omitted_and_repaired_by_the_next_change(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await _set(broker, "good", metrics="*")
        await _set(broker, "bad", metrics="*")
        broker.store.multi([Set(CLIENT_METRICS.path("bad"), b"{")])
        assert CLIENT_METRICS.read_all(broker.store) == {"good": {"metrics": "*"}}
        await _set(broker, "bad", metrics="org")
        assert broker.metadata.image.client_metrics["bad"] == {"metrics": "org"}
        assert broker.store.children(CLIENT_METRICS.parent) == ["bad", "good"]

    storage.run_broker(life)


def test_change_of_another_broker_is_followed_without_a_restart(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        telemetry = broker.services.telemetry
        session = Session("127.0.0.1", 1, 1)
        instance_id, before = telemetry.subscribe(UUID(int=0), "a", session)
        assert before.wanted.metrics == ()
        other = ChangeLog(storage.store)
        for settings in ({"metrics": "org.a"}, {"metrics": "org.b", "later": "1"}, {"match": "("}):
            CLIENT_METRICS.update(other, "s", lambda known, settings=settings: settings)  # type: ignore[misc]
            while broker.metadata.image.client_metrics.get("s") != settings:
                await asyncio.sleep(0.01)
            _, found = telemetry.subscribe(instance_id, "a", session)
            # What this version cannot read is ignored.
            assert found.wanted.metrics == (("org.a",) if settings == {"metrics": "org.a"} else ())

    storage.run_broker(life)
