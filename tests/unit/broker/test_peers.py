"""Connections between brokers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listeners import require_broker_listener
from oncelog.broker.config.settings import load
from oncelog.broker.peers import MAX_IN_FLIGHT, Failure, Peers, Purpose
from oncelog.cluster.brokers import Endpoint
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from support.peer_world import PeerWorld, with_brokers


def ask(peers: PeerWorld, purpose: Purpose = Purpose.MARKERS, *, timeout_ms: int = 1000) -> asyncio.Future[object]:
    """Let broker 1 send a request to broker 2."""
    machine = peers.world.brokers[1]
    request = DescribeClusterRequest(endpoint_type=1)
    work = links(peers).request(2, purpose, request, DescribeClusterResponse, timeout_ms)
    return peers.world.loop.spawn(machine.process, work)


def links(peers: PeerWorld) -> Peers:
    return peers.broker(1).peers


def test_request_reaches_another_broker() -> None:
    async def scenario(peers: PeerWorld) -> None:
        answer = await ask(peers)
        assert isinstance(answer, DescribeClusterResponse)
        assert answer.error_code == ErrorCode.NONE

    with_brokers(scenario)


def test_unknown_broker_is_a_failure() -> None:
    async def scenario(peers: PeerWorld) -> None:
        request = DescribeClusterRequest(endpoint_type=1)
        answer = await links(peers).request(7, Purpose.MARKERS, request, DescribeClusterResponse, 1000)
        assert answer == Failure("broker 7 is not registered")
        assert not links(peers).knows(7)

    with_brokers(scenario)


def test_broker_without_the_listener_is_a_failure() -> None:
    async def scenario(peers: PeerWorld) -> None:
        cache = peers.broker(1).metadata
        other = replace(cache.image.brokers[2], endpoints={"OTHER": Endpoint("broker-2", 9092)})
        cache.image = replace(cache.image, brokers={**cache.image.brokers, 2: other})
        assert await ask(peers) == Failure("broker 2 is not registered")

    with_brokers(scenario)


def test_long_poll_does_not_delay_another_purpose() -> None:
    async def scenario(peers: PeerWorld) -> None:
        topic_id = await peers.create("t", [2])
        wanted = FetchTopic(topic_id=topic_id, partitions=[FetchPartition(partition=0, partition_max_bytes=100)])
        poll = FetchRequest(max_wait_ms=5000, min_bytes=1, max_bytes=100, topics=[wanted])
        machine, loop = peers.world.brokers[1], asyncio.get_running_loop()
        fetch = peers.world.loop.spawn(
            machine.process, links(peers).request(2, Purpose.FETCH, poll, FetchResponse, 20_000)
        )
        await asyncio.sleep(1)
        began = loop.time()
        assert isinstance(await ask(peers), DescribeClusterResponse)
        assert loop.time() - began < 0.2
        assert not fetch.done()
        assert isinstance(await fetch, FetchResponse)

    with_brokers(scenario)


def test_broker_that_does_not_answer_is_a_failure_in_time() -> None:
    async def scenario(peers: PeerWorld) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(await ask(peers), DescribeClusterResponse)
        peers.world.network.cut("broker-2", "broker-1", both_ways=False)
        began = loop.time()
        failure = await ask(peers)
        assert isinstance(failure, Failure)
        assert failure.sent, "the broker may have processed the request"
        assert loop.time() - began < 1.1
        failure = await ask(peers)  # the connection was closed, and there is no new one
        assert isinstance(failure, Failure)
        assert not failure.sent
        peers.world.network.heal()
        await asyncio.sleep(10)
        assert isinstance(await ask(peers), DescribeClusterResponse)

    with_brokers(scenario)


def test_requests_wait_before_they_connect_again() -> None:
    async def scenario(peers: PeerWorld) -> None:
        peers.world.brokers[2].kill()
        failures = [await ask(peers) for _ in range(20)]
        reasons = [failure.reason for failure in failures if isinstance(failure, Failure) and not failure.sent]
        assert len(reasons) == 20
        assert sum("later" in reason for reason in reasons) > 15
        await peers.world.brokers[2].start()
        await asyncio.sleep(1)
        assert isinstance(await ask(peers), DescribeClusterResponse)

    with_brokers(scenario)


def test_connection_to_a_former_process_is_closed() -> None:
    """Its answers would come from a broker that has another epoch."""

    async def scenario(peers: PeerWorld) -> None:
        assert isinstance(await ask(peers), DescribeClusterResponse)
        peers.world.network.cut("broker-2", "broker-1", both_ways=False)
        waiting = ask(peers, timeout_ms=60_000)
        await asyncio.sleep(1)
        assert not waiting.done()
        await peers.expire(2)
        failure = await waiting
        assert isinstance(failure, Failure)
        assert failure.sent
        peers.world.network.heal()
        assert isinstance(await ask(peers), DescribeClusterResponse)

    with_brokers(scenario)


def test_number_of_waiting_requests_is_bounded() -> None:
    async def scenario(peers: PeerWorld) -> None:
        peers.world.network.cut("broker-2", "broker-1", both_ways=False)
        waiting = [ask(peers, timeout_ms=60_000) for _ in range(MAX_IN_FLIGHT)]
        await asyncio.sleep(0.1)
        assert await ask(peers) == Failure(f"{MAX_IN_FLIGHT} requests wait for broker 2")
        peers.world.network.heal()
        answers = await asyncio.gather(*waiting)
        assert all(isinstance(answer, DescribeClusterResponse) for answer in answers)

    with_brokers(scenario)


def test_stop_fails_the_requests() -> None:
    async def scenario(peers: PeerWorld) -> None:
        peers.world.network.cut("broker-2", "broker-1", both_ways=False)
        waiting = ask(peers, timeout_ms=60_000)
        await asyncio.sleep(0.1)
        links(peers).close()
        assert isinstance(await waiting, Failure)
        assert await ask(peers) == Failure("this broker stops")

    with_brokers(scenario)


def test_listener_for_brokers_is_in_upper_case() -> None:
    listeners = "PLAINTEXT://127.0.0.1:9092,INNER://127.0.0.1:9093"
    config = load(
        {
            "listeners": listeners,
            "listener.security.protocol.map": "INNER:PLAINTEXT",
            "inter.broker.listener.name": "inner",
        }
    )
    assert config.inter_broker_listener_name == "INNER"


def test_listener_for_brokers_must_exist() -> None:
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name must be one of the listeners \(PLAINTEXT\)"):
        load({"inter.broker.listener.name": "INNER"})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "PLAINTEXT"),
        ({"listeners": "OUTER://127.0.0.1:1,PLAINTEXT://127.0.0.1:2"}, "PLAINTEXT"),
        ({"listeners": "OUTER://127.0.0.1:1,SSL://127.0.0.1:2", "security.inter.broker.protocol": "ssl"}, "SSL"),
        ({"listeners": "OUTER://127.0.0.1:1"}, ""),
    ],
)
def test_one_listener_is_for_brokers(given: dict[str, str], found: str) -> None:
    more = {"listener.security.protocol.map": "OUTER:PLAINTEXT", "ssl.keystore.location": "/broker.pem"}
    assert load({**more, **given}).broker_listener == found


def test_several_brokers_need_a_listener_for_brokers() -> None:
    config = load({"listeners": "OUTER://127.0.0.1:1", "listener.security.protocol.map": "OUTER:PLAINTEXT"})
    with pytest.raises(ConfigError, match=r"Set inter\.broker\.listener\.name to one of the listeners \(OUTER\)"):
        require_broker_listener(config.broker_listener, config.client_listeners)
    require_broker_listener("OUTER", config.client_listeners)


def test_protocol_without_its_listener_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"security\.inter\.broker\.protocol must be one of the listeners"):
        load({"security.inter.broker.protocol": "SSL"})
