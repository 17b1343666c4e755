"""I4: up to five requests in flight, in order whatever happens to them."""

from __future__ import annotations

import random
import threading

import pytest

from oncelog import Producer
from oncelog.errors import ConfigError
from oncelog.protocol.errors import ErrorCode
from support.processes import wait_until
from support.proxy import LOSE_ANSWER, LOSE_REQUEST, PASS, Produced, Proxy
from support.servers import Server
from support.wire import Wire

RETRY_SOON = {"retry_backoff_ms": 2, "retry_backoff_max_ms": 10, "linger_ms": 0}


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_max_in_flight_requests_is_respected(wire: Wire, server: Server, proxy: Proxy, name: str, limit: int) -> None:
    wire.create_topic(name)
    gate = threading.Event()
    waiting: list[int] = []

    def rule(request: Produced) -> str:
        if request.number > 0:
            waiting.append(request.number)
            gate.wait(30)
        return PASS

    proxy.rule = rule
    options = {"linger_ms": 0, "batch_size": 1, "max_in_flight_requests_per_connection": limit}
    with Producer(server.bootstrap, None, **options) as producer:
        try:
            producer.send(name, b"first").result(30)
            futures = [producer.send(name, b"%d" % number) for number in range(12)]
            wait_until(lambda: producer._core.sender.in_flight.get(1, 0) == limit, "as many as allowed are in flight")
            assert len(waiting) == 1, "the proxy holds the first request, and the others wait for it"
        finally:
            gate.set()
        assert [future.result(30).offset for future in futures] == list(range(1, 13))


@pytest.mark.parametrize("fate", [LOSE_REQUEST, LOSE_ANSWER, ErrorCode.NOT_ENOUGH_REPLICAS])
@pytest.mark.parametrize("position", [1, 2, 5])
def test_order_is_kept_if_one_of_five_requests_fails(
    wire: Wire, server: Server, proxy: Proxy, name: str, fate: str | ErrorCode, position: int
) -> None:
    """The batches after it get OUT_OF_ORDER_SEQUENCE_NUMBER or lose their connection. All are sent again in order."""
    topic = wire.create_topic(name)
    proxy.rule = lambda request: fate if request.number == position else PASS
    with Producer(server.bootstrap, None, batch_size=1, **RETRY_SOON) as producer:
        producer.send(name, b"0").result(30)
        futures = [producer.send(name, b"%d" % number) for number in range(1, 9)]
        assert [future.result(30).offset for future in futures] == list(range(1, 9))
        assert producer.producer_epoch == 0
    assert wire.values(topic) == [b"%d" % number for number in range(9)]
    repeated = [request.sequence for request in proxy.seen[position + 1 :]]
    assert position in repeated


def test_no_batch_is_sent_again_before_the_one_in_front_of_it_is_in_the_log(
    wire: Wire, server: Server, proxy: Proxy, name: str
) -> None:
    """Batches that were never sent may leave meanwhile, as in Kafka's Sender."""
    wire.create_topic(name)
    proxy.rule = lambda request: ErrorCode.NOT_ENOUGH_REPLICAS if 1 <= request.number < 8 else PASS
    with Producer(server.bootstrap, None, batch_size=1, **RETRY_SOON) as producer:
        producer.send(name, b"0").result(30)
        futures = [producer.send(name, b"%d" % number) for number in range(1, 9)]
        assert [future.result(30).offset for future in futures] == list(range(1, 9))
    sequences = [request.sequence for request in proxy.seen]
    again = [sequence for index, sequence in enumerate(sequences) if sequence in sequences[:index]]
    assert len(again) >= 2
    assert again == sorted(again)


def test_more_than_five_is_rejected_with_idempotence(server: Server) -> None:
    options = {"max_in_flight_requests_per_connection": 6, "enable_idempotence": True}
    with pytest.raises(ConfigError, match="max_in_flight_requests_per_connection"):
        Producer(server.bootstrap, None, **options)


def test_any_mix_of_faults_keeps_order_and_count(wire: Wire, server: Server, proxy: Proxy, name: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    topic = wire.create_topic(name, 2)
    fates = [LOSE_REQUEST, LOSE_ANSWER, ErrorCode.NOT_ENOUGH_REPLICAS]

    def rule(request: Produced) -> str | ErrorCode:
        return chance.choice(fates) if chance.random() < 0.3 else PASS

    proxy.rule = rule
    with Producer(server.bootstrap, None, batch_size=150, **RETRY_SOON) as producer:
        futures = [producer.send(name, b"%d" % number, partition=number % 2) for number in range(400)]
        producer.flush()
        proxy.rule = lambda request: PASS
        found = [future.result(30) for future in futures]
    for partition in range(2):
        assert wire.values(topic, partition) == [b"%d" % number for number in range(partition, 400, 2)]
        assert [each.offset for each in found[partition::2]] == list(range(200))
