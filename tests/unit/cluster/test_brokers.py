"""Registrations of brokers in the tree: what a node holds, and that every field survives."""

from __future__ import annotations

import msgspec
import pytest

from oncelog.cluster.brokers import (
    BROKERS,
    BrokerInfo,
    Endpoint,
    broker_path,
    decode_broker,
    encode_broker,
    read_registrations,
)
from oncelog.cluster.store import ensure
from oncelog.cluster.store_memory import MemoryStore

FULL = BrokerInfo(
    7,
    {"PLAINTEXT": Endpoint("broker-1.example", 9092), "IN": Endpoint("::1", 9093, "SSL")},
    rack="r1",
    shutting_down=True,
    lost_unsynced=True,
    intact=frozenset({("t", 1), ("u", 2)}),
    offline=frozenset({("t", 0), ("t", 3)}),
)


@pytest.mark.parametrize("info", [FULL, BrokerInfo(0, {"PLAINTEXT": Endpoint("localhost", 1)}), BrokerInfo(3)])
def test_a_broker_is_the_same_after_it_was_stored(info: BrokerInfo) -> None:
    assert decode_broker(encode_broker(info)) == info


def test_the_node_has_the_fields_of_kafkas_tree() -> None:
    node = msgspec.json.decode(encode_broker(FULL))
    assert node["endpoints"] == ["PLAINTEXT://broker-1.example:9092", "IN://[::1]:9093"]
    assert node["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT", "IN": "SSL"}
    assert (node["host"], node["port"], node["rack"], node["version"]) == ("broker-1.example", 9092, "r1", 5)


def test_a_broker_whose_session_ended_is_not_listed() -> None:
    store = MemoryStore(lambda: 0)
    ensure(store, BROKERS)
    session = store.open_session("broker-1", 1000)
    store.create(broker_path(1), encode_broker(BrokerInfo(4)), session=session)
    assert read_registrations(store) == {1: BrokerInfo(4)}
    store.close_session(session)
    assert read_registrations(store) == {}
