"""The sources of broker settings in DescribeConfigs: given at the start or default, and under which name.

Source: Kafka's `ConfigHelper.configSynonyms` (KIP-226).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.configs import BROKER, DEFAULT, DYNAMIC_BROKER, ME, SET, STATIC, TOPIC, alter, shown, wait_until_value
from support.servers import Server
from support.wire import Wire

BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = range(1, 8)
LISTS = ("listeners", "advertised.listeners", "controller.listener.names", "log.dirs", "log.dir", "log.cleanup.policy")
GIVEN = {
    "num.partitions": "1",  # equals the default
    "message.max.bytes": "700000",
    "log.retention.hours": "5",
    "log.roll.ms": "3600000",
    "log.roll.hours": "2",  # the synonym takes precedence
}


def synonyms(entry: Any) -> list[tuple[str, str | None, int]]:
    """Return all places that the value could come from, the effective one first."""
    return [(each.name, each.value, each.source) for each in entry.synonyms]


def test_sources_of_given_and_default_settings(start_server: Callable[..., Server], name: str) -> None:
    """DIFFERS: oncelog lists a setting that was given under its synonym with that name. Kafka omits it."""
    server = start_server(GIVEN)
    ours = server.name == "oncelog"
    with Wire(server.bootstrap) as wire:
        wire.create_topic(name)
        broker, topic = shown(wire, BROKER, ME), shown(wire, TOPIC, name)
        found = broker["num.partitions"]
        assert (found.value, found.config_source, found.read_only) == ("1", STATIC, True)
        assert synonyms(found) == [("num.partitions", "1", STATIC), ("num.partitions", "1", DEFAULT)]
        found = topic["max.message.bytes"]
        assert (found.value, found.config_source) == ("700000", STATIC)
        assert synonyms(found) == [("message.max.bytes", "700000", STATIC), ("message.max.bytes", "1048588", DEFAULT)]
        assert (broker["node.id"].value, broker["node.id"].config_source) == (ME, STATIC)
        for key in ("listeners", "log.dirs"):
            assert broker[key].config_source == STATIC
        found = topic["segment.ms"]
        assert (found.value, found.config_source) == ("3600000", STATIC)
        assert synonyms(found)[0] == ("log.roll.ms", "3600000", STATIC)
        found = topic["retention.ms"]
        assert (found.value, found.config_source) == ("18000000", STATIC if ours else DEFAULT)
        assert synonyms(found) == (
            [("log.retention.hours", "5", STATIC), ("log.retention.ms", "604800000", DEFAULT)] if ours else []
        )
        assert not alter(wire, BROKER, ME, ("log.retention.ms", SET, "60000")).error_code
        wait_until_value(wire, TOPIC, name, "retention.ms", ("60000", DYNAMIC_BROKER))


def test_setting_without_a_value(wire: Wire) -> None:
    """The setting was not given and has no default: its value is null."""
    found = shown(wire, BROKER, ME)["advertised.listeners"]
    assert (found.value, found.config_source, synonyms(found)) == (None, DEFAULT, [])


def test_types_of_settings(wire: Wire) -> None:
    broker = shown(wire, BROKER, ME)
    assert {key: broker[key].config_type for key in LISTS} == dict.fromkeys(LISTS, LIST)
    assert broker["default.replication.factor"].config_type == INT
    assert broker["offsets.topic.replication.factor"].config_type == SHORT
    assert broker["log.retention.ms"].config_type == LONG
    assert broker["log.cleaner.min.cleanable.ratio"].config_type == DOUBLE
    assert broker["log.cleaner.enable"].config_type == BOOLEAN
    assert broker["compression.type"].config_type == STRING
