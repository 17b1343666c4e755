"""Settings of brokers and levels of their loggers, changed at run time (KIP-226, 412)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from oncelog.protocol.apis import ApiKey
from support.configs import (
    APPEND,
    BROKER,
    DEFAULT,
    DELETE,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT,
    LOGGER,
    ME,
    OF_LOGGER,
    SET,
    SUBTRACT,
    TOPIC,
    Op,
    alter,
    replace,
    set_topic,
    shown,
    value,
    wait_until_accepted,
    wait_until_rejected,
    wait_until_value,
)
from support.servers import Server
from support.wire import WAIT_S, Wire, batch, code, until

# -- brokers -----------------------------------------------------------------------------------------------------------


KEPT = {"min.insync.replicas"}
"""A setting that Kafka itself sets for all brokers. With eligible leader replicas (KIP-966), it cannot be unset."""


@pytest.fixture
def clean(wire: Wire) -> Iterator[Wire]:
    """Return a connection. Broker settings of the test are unset afterwards."""
    yield wire
    for broker in (ME, ""):
        names = [
            key
            for key, entry in shown(wire, BROKER, broker).items()
            if entry.config_source == (DYNAMIC_BROKER if broker else DYNAMIC_DEFAULT) and key not in KEPT
        ]
        if names:
            assert not alter(wire, BROKER, broker, *((key, DELETE, None) for key in names)).error_code
    until(
        lambda: {entry.config_source for key, entry in shown(wire, BROKER, ME).items() if key not in KEPT},
        lambda found: not found & {DYNAMIC_BROKER, DYNAMIC_DEFAULT},
        "the broker's settings are unset",
    )


def test_precedence_of_a_broker_setting(clean: Wire, name: str) -> None:
    """The broker's own value precedes the default of all brokers, which precedes the start-up value.

    A topic's value precedes all.
    """
    wire, key = clean, "message.max.bytes"
    wire.create_topic(name)
    assert value(wire, TOPIC, name, "max.message.bytes") == ("1048588", DEFAULT)
    assert not alter(wire, BROKER, "", (key, SET, "7000")).error_code
    wait_until_value(wire, BROKER, ME, key, ("7000", DYNAMIC_DEFAULT))
    assert not alter(wire, BROKER, ME, (key, SET, "4000")).error_code
    wait_until_value(wire, BROKER, ME, key, ("4000", DYNAMIC_BROKER))
    entry = shown(wire, TOPIC, name)["max.message.bytes"]
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        (key, "4000", DYNAMIC_BROKER),
        (key, "7000", DYNAMIC_DEFAULT),
        (key, "1048588", DEFAULT),
    ]
    assert not entry.read_only
    wait_until_rejected(wire, name, batch([b"x" * 5000]), "MESSAGE_TOO_LARGE")
    assert set(shown(wire, BROKER, "")) - KEPT == {key}
    assert not alter(wire, BROKER, ME, (key, DELETE, None)).error_code
    wait_until_value(wire, TOPIC, name, "max.message.bytes", ("7000", DYNAMIC_DEFAULT))
    wait_until_accepted(wire, name, batch([b"x" * 5000]))
    set_topic(wire, name, "max.message.bytes", "3000")
    wait_until_rejected(wire, name, batch([b"x" * 5000]), "MESSAGE_TOO_LARGE")


# Values that do not affect other tests on the server.
DYNAMIC = {
    "log.retention.ms": "604800001",
    "log.retention.bytes": "99999999999",
    "log.segment.bytes": "1048576",
    "log.cleaner.backoff.ms": "15001",
    "log.cleaner.io.max.bytes.per.second": "9000000.0",
    "log.flush.interval.messages": "500000",
    "log.cleanup.policy": "delete",
    "max.connections": "1000",
    "max.connections.per.ip": "900",
    "max.connections.per.ip.overrides": "127.0.0.1:800",
    "max.connection.creation.rate": "5000",
    "producer.id.expiration.ms": "86400001",
    "transaction.partition.verification.enable": "true",
    "unclean.leader.election.enable": "true",
}


@pytest.mark.parametrize("broker", [ME, ""])
def test_settings_that_change_while_a_broker_runs(clean: Wire, broker: str) -> None:
    answer = alter(clean, BROKER, broker, *((key, SET, text) for key, text in DYNAMIC.items()))
    assert not answer.error_code, answer
    source = DYNAMIC_BROKER if broker else DYNAMIC_DEFAULT

    def current() -> dict[str, tuple[str, int]]:
        entries = shown(clean, BROKER, ME)
        return {key: (entries[key].value, entries[key].config_source) for key in DYNAMIC}

    # Kafka shows the new source a little before the new value.
    until(
        current,
        lambda found: found == {key: (text, source) for key, text in DYNAMIC.items()},
        "all settings are changed",
    )
    described = shown(clean, BROKER, ME)
    assert not any(described[key].read_only for key in DYNAMIC)
    assert described["log.dirs"].read_only
    assert described["num.partitions"].read_only


@pytest.mark.parametrize("broker", [ME, ""])
@pytest.mark.parametrize("key", ["num.partitions", "auto.create.topics.enable", "log.dirs", "log.retention.hours"])
def test_settings_that_are_fixed_at_the_start(wire: Wire, key: str, broker: str) -> None:
    answer = alter(wire, BROKER, broker, (key, SET, "1"))
    assert answer.error_code == code("INVALID_REQUEST")
    assert "Cannot update these configs dynamically" in answer.error_message
    assert key in answer.error_message


def test_values_of_broker_settings_are_checked(wire: Wire) -> None:
    answer = alter(wire, BROKER, ME, ("log.segment.bytes", SET, "100"))
    assert answer.error_code == code("INVALID_REQUEST")
    for part in ("log.segment.bytes", "100", "1048576"):
        assert part in answer.error_message
    assert alter(wire, BROKER, ME, ("log.retention.ms", APPEND, "1")).error_code == code("INVALID_CONFIG")
    assert alter(wire, BROKER, ME, ("log.retention.ms", SET, None)).error_code == code("INVALID_REQUEST")
    assert not alter(wire, BROKER, ME, ("log.retention.ms", SET, "9"), validate_only=True).error_code
    assert value(wire, BROKER, ME, "log.segment.bytes")[1] != DYNAMIC_BROKER


def test_unknown_setting(clean: Wire, server: Server) -> None:
    """DIFFERS: Kafka keeps it for plugins. oncelog has no plugins, so it rejects it as a mistake."""
    answer = alter(clean, BROKER, ME, ("log.retention.mss", SET, "1"))
    assert answer.error_code == (0 if server.name == "apache-kafka" else code("INVALID_REQUEST"))
    if server.name == "apache-kafka":
        assert not alter(clean, BROKER, ME, ("log.retention.mss", DELETE, None)).error_code


def test_legacy_alter_configs_of_a_broker(clean: Wire) -> None:
    assert not replace(clean, BROKER, ME, {"log.retention.bytes": "77"}).error_code
    wait_until_value(clean, BROKER, ME, "log.retention.bytes", ("77", DYNAMIC_BROKER))
    assert not replace(clean, BROKER, ME, {"log.flush.interval.messages": "88"}).error_code
    wait_until_value(clean, BROKER, ME, "log.flush.interval.messages", ("88", DYNAMIC_BROKER))
    assert value(clean, BROKER, ME, "log.retention.bytes") == ("-1", DEFAULT)
    assert replace(clean, BROKER, ME, {"num.partitions": "2"}).error_code == code("INVALID_REQUEST")


ASK_FOR_VERSIONS = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1)
"""A request of version 0 without a client id."""


def test_max_connections_takes_effect_at_once(own_server: Server) -> None:
    """One more connection waits.

    The test has its own server: if other tests have connections open, the least recently used one is closed.
    """
    host, port = own_server.bootstrap.rsplit(":", 1)
    with Wire(own_server.bootstrap) as wire:
        assert not alter(wire, BROKER, ME, ("max.connections", SET, "1")).error_code
        wait_until_value(wire, BROKER, ME, "max.connections", ("1", DYNAMIC_BROKER))
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as other:
            other.sendall(ASK_FOR_VERSIONS)
            for _ in range(20):
                value(wire, BROKER, ME, "max.connections")
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.recv(1)
            other.settimeout(WAIT_S)
            assert not alter(wire, BROKER, ME, ("max.connections", DELETE, None)).error_code
            wait_until_value(wire, BROKER, ME, "max.connections", (str(2**31 - 1), DEFAULT))
            assert other.recv(1), "the answer, once another connection is accepted"
        with Wire(own_server.bootstrap):
            pass


# -- loggers, groups, client metrics -----------------------------------------------------------------------------------


def test_levels_of_loggers(wire: Wire, server: Server) -> None:
    before = shown(wire, LOGGER, ME)
    assert before["root"].value in {"INFO", "WARN", "ERROR"}
    logger = next(each for each in sorted(before) if each != "root" and before[each].value == before["root"].value)
    assert not alter(wire, LOGGER, ME, (logger, SET, "DEBUG")).error_code
    assert value(wire, LOGGER, ME, logger) == ("DEBUG", OF_LOGGER)
    assert not alter(wire, LOGGER, ME, (logger, SET, "ERROR"), validate_only=True).error_code
    assert value(wire, LOGGER, ME, logger) == ("DEBUG", OF_LOGGER)
    assert not alter(wire, LOGGER, ME, (logger, DELETE, None)).error_code
    assert value(wire, LOGGER, ME, logger) == (before["root"].value, OF_LOGGER)


@pytest.mark.parametrize(
    ("broker", "op", "error"),
    [
        (ME, ("root", SET, "LOUD"), "INVALID_CONFIG"),
        (ME, ("no.such.logger", SET, "INFO"), "INVALID_CONFIG"),
        (ME, ("no.such.logger", DELETE, None), "INVALID_CONFIG"),
        (ME, ("root", DELETE, None), "INVALID_REQUEST"),
        (ME, ("root", APPEND, "INFO"), "INVALID_REQUEST"),
        (ME, ("root", SUBTRACT, "INFO"), "INVALID_REQUEST"),
        ("17", ("root", SET, "INFO"), "INVALID_REQUEST"),
        ("", ("root", SET, "INFO"), "INVALID_REQUEST"),
        ("x", ("root", SET, "INFO"), "INVALID_REQUEST"),
    ],
)
def test_invalid_logger_levels_are_rejected(wire: Wire, broker: str, op: Op, error: str) -> None:
    assert alter(wire, LOGGER, broker, op).error_code == code(error)
