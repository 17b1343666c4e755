"""Limits of connections: of an address, of a listener, of the broker; at the start and changed at run time."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncelog.protocol.apis import ApiKey
from support.configs import (
    BROKER,
    DEFAULT,
    DELETE,
    DYNAMIC_BROKER,
    DYNAMIC_DEFAULT,
    ME,
    SET,
    STATIC,
    Op,
    alter,
    shown,
    value,
    wait_until_value,
)
from support.quotas import RATE, altered, settled
from support.servers import Server
from support.two_listeners import started
from support.wire import WAIT_S, Wire, code, until

ASK_FOR_VERSIONS = struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, 1, -1)
"""A request of version 0 without a client id."""
OUTER_LIMIT = "listener.name.outer.max.connections"
PER_IP, OVERRIDES = "max.connections.per.ip", "max.connections.per.ip.overrides"
UNLIMITED = (str(2**31 - 1), DEFAULT)


class Connection:
    """A socket that asks a broker for its versions."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=WAIT_S)

    def served(self) -> bool:
        """Return True after an answer, False after the end of the connection. Otherwise, wait."""
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(ASK_FOR_VERSIONS)
            return len(self.socket.recv(4096)) > 4
        return False

    def waits(self, wire: Wire) -> bool:
        """Send a request, and return whether it has no answer when another client has many."""
        self.socket.sendall(ASK_FOR_VERSIONS)
        for _ in range(20):
            value(wire, BROKER, ME, "max.connections")
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(4096)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(WAIT_S)

    def answered(self) -> bool:
        """Wait for the answer to the request of `waits`."""
        return len(self.socket.recv(4096)) > 4

    def close(self) -> None:
        """Close it."""
        self.socket.close()


class Broker:
    """A server with two listeners, a client of the inner one, and connections of the test."""

    def __init__(self, server: Server, outer: str, wire: Wire) -> None:
        self.server, self.outer, self.wire = server, outer, wire
        self.opened: list[Connection] = []
        self.changes = 0

    def connect(self, address: str = "") -> Connection:
        """Connect to the outer listener, or to another address."""
        self.opened.append(Connection(address or self.outer))
        return self.opened[-1]

    def served(self, why: str, address: str = "") -> Connection:
        """Connect again and again, until a connection is served."""

        def ask() -> Connection | None:
            made = self.connect(address)
            return made if made.served() else None

        made = until(ask, lambda found: found is not None, why)
        assert made
        return made

    def set(self, key: str, text: str) -> None:
        """Change a setting of the broker, and wait until it applies.

        Kafka does not show a listener's limit. It applies all settings of a request together.
        """
        self.changes += 1
        mark = "log.cleaner.backoff.ms", str(20_000 + self.changes)
        assert not alter(self.wire, BROKER, ME, (key, SET, text), (mark[0], SET, mark[1])).error_code
        wait_until_value(self.wire, BROKER, ME, mark[0], (mark[1], DYNAMIC_BROKER))
        if key != OUTER_LIMIT:
            wait_until_value(self.wire, BROKER, ME, key, (text, DYNAMIC_BROKER))


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    settings = getattr(request.function, "settings", {})
    with started(request.param, tmp_path, settings) as (server, outer), Wire(server.bootstrap) as wire:
        broker = Broker(server, outer, wire)
        yield broker
        for each in broker.opened:
            each.close()


def test_connections_of_one_address(own_server: Broker) -> None:
    """The client of the test is the first one. `localhost` is a name that overrides must resolve."""
    own_server.set(PER_IP, "2")
    second = own_server.connect()
    assert second.served()
    assert not own_server.connect().served()
    own_server.set(OVERRIDES, "localhost:3,10.1.1.1:1")
    third = own_server.served("the name is resolved")
    assert not own_server.connect().served()
    third.close()
    own_server.served("the broker has seen the end of the connection")
    own_server.set(PER_IP, "0")
    assert second.served(), "connections that are open stay open"


def test_new_connections_above_the_quota_of_an_address_are_closed(own_server: Broker) -> None:
    """A quota is a rate over eleven seconds at most (KIP-612). Connections that are open are served."""
    entity = (("ip", "127.0.0.1"),)
    assert altered(own_server.wire, entity, **{RATE: 1.0}).error_code == 0
    settled(own_server.wire, entity, {RATE: 1.0})
    answers = [own_server.connect(own_server.server.bootstrap).served() for _ in range(50)]
    assert answers.count(False) > 10
    assert altered(own_server.wire, entity, **{RATE: None}).error_code == 0
    settled(own_server.wire, entity, {})
    own_server.served("the quota is removed", own_server.server.bootstrap)


def test_connections_of_one_listener(own_server: Broker) -> None:
    """Those of the other listener are served."""
    own_server.set(OUTER_LIMIT, "1")
    first, second, third = [own_server.connect() for _ in range(3)]
    assert first.served()
    assert second.waits(own_server.wire)
    assert third.waits(own_server.wire)
    assert own_server.connect(own_server.server.bootstrap).served()
    first.close()
    assert second.answered()
    own_server.set(OUTER_LIMIT, "3")
    assert third.answered()


def test_listener_of_brokers_is_protected(own_server: Broker) -> None:
    """Its connections replace those of other listeners."""
    own_server.set("max.connections", "2")
    replaced = own_server.connect()
    assert replaced.served()
    waiting = own_server.connect()
    assert waiting.waits(own_server.wire)
    inner = own_server.connect(own_server.server.bootstrap)
    assert inner.served()
    with contextlib.suppress(ConnectionError):
        assert replaced.socket.recv(1) == b""
    assert inner.served()
    inner.close()
    assert waiting.answered()


def test_limits_that_the_broker_was_started_with(own_server: Broker) -> None:
    """A listener's limit overrides that of the broker, also one that was set later.

    DIFFERS: DescribeConfigs of Kafka shows that a listener's limit cannot change, and among the values that it
    overrides only the default of the broker's limit.
    """
    assert value(own_server.wire, BROKER, ME, OUTER_LIMIT) == ("1", STATIC)
    assert value(own_server.wire, BROKER, ME, PER_IP) == ("7", STATIC)
    first = own_server.connect()
    assert first.served()
    own_server.set("max.connections", "50")
    second = own_server.connect()
    assert second.waits(own_server.wire)
    assert not alter(own_server.wire, BROKER, "", (OUTER_LIMIT, SET, "2")).error_code
    assert second.answered()
    entry = until(
        lambda: shown(own_server.wire, BROKER, ME)[OUTER_LIMIT], lambda found: found.value == "2", "the new limit"
    )
    assert (entry.config_source, entry.read_only) == (DYNAMIC_DEFAULT, own_server.server.name != "oncelog")
    found = [(each.name, each.value, each.source) for each in entry.synonyms]
    assert found[:2] == [(OUTER_LIMIT, "2", DYNAMIC_DEFAULT), (OUTER_LIMIT, "1", STATIC)]
    if own_server.server.name == "oncelog":
        assert found[2] == ("max.connections", "50", DYNAMIC_BROKER)
    assert shown(own_server.wire, BROKER, "")[OUTER_LIMIT].value == "2"


test_limits_that_the_broker_was_started_with.settings = {OUTER_LIMIT: "1", PER_IP: "7"}  # type: ignore[attr-defined]


REFUSED: dict[str, tuple[Op, ...]] = {
    "no connection": (("max.connections", SET, "0"),),
    "no connection of a listener": (("listener.name.plaintext.max.connections", SET, "0"),),
    "no new connection": (("max.connection.creation.rate", SET, "0"),),
    "no connection of an address": ((PER_IP, SET, "0"),),
    "no overrides": ((PER_IP, SET, "0"), (OVERRIDES, SET, "")),
    "negative": ((PER_IP, SET, "-1"),),
    "negative of a listener": ((OUTER_LIMIT, SET, "-1"),),
    "no number": ((OUTER_LIMIT, SET, "x"),),
    "no count": ((OVERRIDES, SET, "127.0.0.1"),),
    "no number in overrides": ((OVERRIDES, SET, "127.0.0.1:x"),),
    "no host": ((OVERRIDES, SET, "a b:1"),),
    "fixed": (("connections.max.idle.ms", SET, "5"),),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_illegal_limits_are_refused(wire: Wire, case: str) -> None:
    answer = alter(wire, BROKER, ME, *REFUSED[case], validate_only=True)
    assert answer.error_code == code("INVALID_REQUEST"), answer


def test_legal_limits_are_applied(own_server: Broker) -> None:
    legal = {
        "max.connection.creation.rate": "1000",
        "listener.name.outer.max.connection.creation.rate": "500",
        "listener.name.unknown.max.connections": "1",
        OVERRIDES: "127.0.0.1:1000,::1:20",
        PER_IP: "0",
    }
    for broker, source in ((ME, DYNAMIC_BROKER), ("", DYNAMIC_DEFAULT)):
        assert not alter(own_server.wire, BROKER, broker, *((key, SET, text) for key, text in legal.items())).error_code
        for key, text in legal.items():
            if own_server.server.name == "oncelog" or not key.startswith("listener.name."):
                wait_until_value(own_server.wire, BROKER, ME, key, (text, source))
        assert own_server.connect().served()
        assert not alter(own_server.wire, BROKER, broker, *((key, DELETE, None) for key in legal)).error_code
        wait_until_value(own_server.wire, BROKER, ME, PER_IP, UNLIMITED)
