"""The broker's settings of the consumer protocol: defaults, limits, and checks between them (KIP-848)."""

from __future__ import annotations

import pytest

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.settings import BrokerConfig, load

OF_SESSION = "group.consumer.session.timeout.ms"
OF_HEARTBEAT = "group.consumer.heartbeat.interval.ms"
ASSIGNORS = "group.consumer.assignors"
PROTOCOLS = "group.coordinator.rebalance.protocols"
POLICY = "group.consumer.migration.policy"


def test_defaults_are_kafkas() -> None:
    config = BrokerConfig()
    assert (config.group_consumer_session_timeout_ms, config.group_consumer_heartbeat_interval_ms) == (45_000, 5_000)
    assert (config.consumer_assignors, config.group_consumer_migration_policy) == (
        ("uniform", "range"),
        "bidirectional",
    )
    assert config.consumer_protocol_enabled


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({OF_SESSION: "44999"}, f"{OF_SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"),
        ({OF_SESSION: "60001"}, f"{OF_SESSION} must be less than or equal to group.consumer.max.session.timeout.ms"),
        (
            {"group.consumer.max.session.timeout.ms": "1"},
            "group.consumer.max.session.timeout.ms must be greater than or equal to"
            " group.consumer.min.session.timeout.ms",
        ),
        (
            {OF_SESSION: "9000", OF_HEARTBEAT: "9000", "group.consumer.min.session.timeout.ms": "1"},
            f"{OF_HEARTBEAT} must be less than {OF_SESSION}",
        ),
        (
            {"group.consumer.assignment.interval.ms": "15001"},
            "group.consumer.assignment.interval.ms must be less than or equal to"
            " group.consumer.max.assignment.interval.ms",
        ),
        ({"group.consumer.regex.refresh.interval.ms": "9999"}, "must be at least 10000, not 9999"),
        ({"group.consumer.max.size": "0"}, "must be at least 1, not 0"),
        ({ASSIGNORS: ""}, f"{ASSIGNORS} must not be empty"),
        ({ASSIGNORS: "range,"}, f"{ASSIGNORS} must have uniform, range only, not ''"),
        (
            {ASSIGNORS: "range,org.example.Mine"},
            f"{ASSIGNORS} must have uniform, range only, not 'org.example.Mine'; the broker cannot load classes",
        ),
        ({POLICY: "no"}, f"{POLICY} must be one of disabled, downgrade, upgrade, bidirectional, not 'no'"),
        ({PROTOCOLS: "consumer"}, f"{PROTOCOLS} must have classic: it cannot be turned off"),
        ({PROTOCOLS: "Classic"}, f"{PROTOCOLS} must have consumer, classic, share, streams only, not 'Classic'"),
    ],
)
def test_illegal_settings(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        load(settings)


def test_legal_settings() -> None:
    config = load({ASSIGNORS: "org.apache.kafka.coordinator.group.assignor.RangeAssignor, range", POLICY: "UPGRADE"})
    assert (config.consumer_assignors, config.warnings) == (("range",), ())
    assert not load({PROTOCOLS: "classic, share"}).consumer_protocol_enabled
    name = "group.consumer.assignment.interval.ms"
    assert not load({name: "0"}).warnings
