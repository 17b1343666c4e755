"""Settings of groups: limits of the broker that have changed, settings of other versions, the limit of their number."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.config import group_configs
from oncelog.broker.config.group_configs import check_changed_settings, check_name, consumer_settings
from oncelog.broker.config.settings import BrokerConfig, load
from oncelog.broker.metadata import settings as administration
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.named_configs import GROUPS
from oncelog.cluster.store import Set
from oncelog.coordinator.groups.registry import ConsumerSettings
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.broker_fixtures import BrokerStorage

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.mark.parametrize(
    ("own", "session_ms", "heartbeat_ms"),
    [
        ({}, 45_000, 5_000),
        ({SESSION: "50000"}, 50_000, 5_000),
        ({SESSION: "1", HEARTBEAT: "99999999"}, 45_000, 15_000),
        ({SESSION: "9999999999", HEARTBEAT: "-5"}, 60_000, 5_000),
        ({SESSION: "text", "later": "1"}, 45_000, 5_000),
    ],
)
def test_value_outside_of_the_brokers_limits_counts_as_the_limit(
    own: dict[str, str], session_ms: int, heartbeat_ms: int
) -> None:
    found = consumer_settings(BrokerConfig(), own)
    assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (session_ms, heartbeat_ms)


def test_settings_of_broker_and_coordinator_have_the_same_defaults() -> None:
    assert consumer_settings(BrokerConfig(), {}) == ConsumerSettings()


def test_setting_of_another_version_stays_until_the_group_has_no_others() -> None:
    before = {SESSION: "50000", "later": "1"}
    config = load({})
    assert check_changed_settings(config, before, {**before, SESSION: " 55000 "}) == {SESSION: "55000", "later": "1"}
    assert check_changed_settings(config, before, {"later": "1"}) == {}
    with pytest.raises(ProtocolError, match="Unknown group config name: other"):
        check_changed_settings(config, before, {**before, "other": "1"})


@pytest.mark.parametrize("name", ["", "g" * 256])
def test_name_of_a_group_with_settings_has_a_limit(name: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_name(name)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


async def _set(broker: Broker, name: str, **settings: Any) -> None:
    wanted = {f"consumer.{key.replace('_', '.')}": str(value) for key, value in settings.items()}
    await broker.settings.alter_group(name, lambda before: {**before, **wanted}, validate_only=False)


def test_number_of_groups_with_settings_is_limited(storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert administration._GROUPS.most == group_configs.MOST_GROUPS == 10_000
    monkeypatch.setattr(administration, "_GROUPS", administration._GROUPS._replace(most=2))

    async def life(broker: Broker) -> None:
        for name in ("a", "b"):
            await _set(broker, name, session_timeout_ms=50_000)
        with pytest.raises(ProtocolError, match="at most 2 groups") as caught:
            await _set(broker, "c", session_timeout_ms=50_000)
        assert caught.value.code == ErrorCode.POLICY_VIOLATION
        await _set(broker, "a", session_timeout_ms=55_000)
        assert broker.metadata.image.group_configs["a"] == {SESSION: "55000"}

    storage.run_broker(life)


def test_damaged_node_is_omitted_and_repaired_by_the_next_change(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        await _set(broker, "good/1", session_timeout_ms=50_000)
        await _set(broker, "bad", session_timeout_ms=50_000)
        broker.store.multi([Set(GROUPS.path("bad"), b"{")])
        assert GROUPS.read_all(broker.store) == {"good/1": {SESSION: "50000"}}
        await _set(broker, "bad", heartbeat_interval_ms=6_000)
        assert broker.metadata.image.group_configs["bad"] == {HEARTBEAT: "6000"}

    storage.run_broker(life)


def test_change_of_another_broker_takes_effect_without_a_restart(storage: BrokerStorage) -> None:
    async def life(broker: Broker) -> None:
        other = ChangeLog(storage.store)
        for settings in ({HEARTBEAT: "6000"}, {HEARTBEAT: "7000"}, {}):
            GROUPS.update(other, "g", lambda _, settings=settings: settings)  # type: ignore[misc]
            while broker.metadata.image.group_configs.get("g", {}) != settings:
                await asyncio.sleep(0.01)
        assert "g" not in broker.metadata.image.group_configs

    storage.run_broker(life)
