"""I13: idempotence is enabled by default. An explicit conflict is an error that names both options."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer

from oncelog import Producer
from oncelog.errors import ConfigError
from oncelog.protocol.records import BatchHeader, iter_batches
from support.servers import Server
from support.wire import Wire


def only_batch(wire: Wire, topic: UUID) -> BatchHeader:
    ((header, _),) = iter_batches(wire.fetch(topic).records)
    return header


@pytest.mark.parametrize(
    ("options", "idempotent"),
    [
        ({}, True),
        ({"acks": "all"}, True),
        ({"acks": "-1", "retries": 1, "max_in_flight_requests_per_connection": 5}, True),
        ({"enable_idempotence": True}, True),
        ({"enable_idempotence": False}, False),
        ({"acks": 1}, False),
        ({"retries": 0}, False),
        ({"max_in_flight_requests_per_connection": 6, "enable_idempotence": False}, False),
        ({"acks": 1, "enable_idempotence": False}, False),
    ],
)
def test_records_have_a_producer_id_if_idempotence_is_enabled(
    wire: Wire, server: Server, name: str, options: dict[str, Any], idempotent: bool
) -> None:
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, None, **options) as producer:
        assert producer.send(name, b"v").result(30).offset == 0
        header = only_batch(wire, topic)
        assert (header.producer_id, header.producer_epoch) == (producer.producer_id, producer.producer_epoch)
    assert (header.producer_id >= 0, header.base_sequence, header.is_transactional) == (
        idempotent,
        0 if idempotent else -1,
        False,
    )


CONFLICTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"acks": 1}, {"acks": 1}),
    ({"acks": 0}, {"acks": 0}),
    ({"retries": 0}, {"retries": 0}),
    ({"max_in_flight_requests_per_connection": 6}, {"max.in.flight": 6}),
]


@pytest.mark.parametrize(("option", "confluents"), CONFLICTS)
@pytest.mark.parametrize("demand", ["enable_idempotence", "transactional_id"])
def test_explicit_conflict_names_both_options(
    server: Server, option: dict[str, Any], confluents: dict[str, Any], demand: str
) -> None:
    """librdkafka also rejects it."""
    demanded = {demand: True if demand == "enable_idempotence" else "some-id"}
    ((conflicting, value),) = option.items()
    with pytest.raises(ConfigError, match=f"{demand} needs {conflicting} = .+, but {conflicting} = {value}"):
        Producer(server.bootstrap, None, **option, **demanded)
    dotted = {"enable.idempotence": True} if demand == "enable_idempotence" else {"transactional.id": "some-id"}
    with pytest.raises(KafkaException):
        ConfluentProducer({"bootstrap.servers": server.bootstrap, **confluents, **dotted})


def test_transactional_id_needs_idempotence(server: Server) -> None:
    with pytest.raises(ConfigError, match="transactional_id needs enable_idempotence"):
        Producer(server.bootstrap, transactional_id="some-id", enable_idempotence=False)


def test_idempotence_works_without_transactions(wire: Wire, server: Server, name: str) -> None:
    """The record is not transactional: any reader gets it at once."""
    topic = wire.create_topic(name)
    with Producer(server.bootstrap, enable_idempotence=True) as producer:
        producer.send(name, b"v").result(30)
        assert wire.values(topic, committed=True) == [b"v"]
        assert wire.offset(name, committed=True) == 1
