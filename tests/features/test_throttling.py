"""Clients that exceed a quota must pause: the response says how long, and the broker reads no request until then.

No test measures a time. Where one shows that a client pauses, the pause is an hour, and other clients go on meanwhile.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID
from zlib import crc32

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.metadata import MetadataRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.fixtures import Server
from support.quotas import Entity, altered, remove_all, settled
from support.wire import Wire, batch, until

LOADER = "loader"
CLIENT: Entity = (("client-id", LOADER),)
EVERYONE: Entity = (("user", None),)
ANONYMOUS: Entity = (("user", "ANONYMOUS"),)
HOUR_MS = 3_600_000
BYTES = b"x" * 400_000


@pytest.fixture(autouse=True)
def _no_quotas_remain(wire: Wire) -> Iterator[None]:
    yield
    remove_all(wire)


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    """Create a topic, and return its id."""
    return wire.create_topic(name)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"throttled-{crc32(request.node.name.encode()):08x}"


def limited(wire: Wire, entity: Entity = CLIENT, **quotas: float) -> None:
    assert altered(wire, entity, **quotas).error_code == 0
    settled(wire, entity, quotas)


def producing(name: str, *, acks: int = -1, values: bytes = BYTES) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=bytes(batch([values])))
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=name, partition_data=[data])])


def paused(server: Server, ask: Callable[[Wire], Any], client_id: str = LOADER) -> tuple[Wire, Any]:
    """Return the first connection whose client must pause, and the response that says so.

    Kafka's brokers apply a quota a moment after they describe it.
    """
    opened: list[Wire] = []

    def asked() -> Any:
        while opened:
            opened.pop().close()
        opened.append(Wire(server.bootstrap, client_id))
        return ask(opened[0])

    answer = until(asked, lambda found: found.throttle_time_ms > 0, "the client need not pause")
    return opened[0], answer


def is_silent(wire: Wire) -> bool:
    """Return whether a connection has nothing to read."""
    found: tuple[list[socket.socket], Any, Any] = select.select([wire._socket], [], [], 0)
    return not found[0]


def goes_on(wire: Wire, throttled: Wire) -> None:
    """Show that a throttled client gets no response, while another one gets many."""
    throttled.send(MetadataRequest(topics=[]), 8)
    for _ in range(50):
        assert wire.call(MetadataRequest(topics=[]), 8).throttle_time_ms == 0
    assert is_silent(throttled)


@pytest.mark.usefixtures("topic")
def test_producer_above_its_rate_pauses_while_others_go_on(server: Server, wire: Wire, name: str) -> None:
    limited(wire, producer_byte_rate=100.0)
    loader, answer = paused(server, lambda client: client.call(producing(name), 11))
    with loader:
        assert answer.throttle_time_ms > HOUR_MS
        assert answer.responses[0].partition_responses[0].error_code == 0
        goes_on(wire, loader)
        assert wire.call(producing(name), 11).throttle_time_ms == 0


@pytest.mark.usefixtures("topic")
def test_producer_without_responses_pauses(server: Server, wire: Wire, name: str) -> None:
    limited(wire, producer_byte_rate=100.0)
    paused(server, lambda client: client.call(producing(name), 11))[0].close()
    with Wire(server.bootstrap, LOADER) as loader:
        loader.send(producing(name, acks=0), 11)
        goes_on(wire, loader)


@pytest.mark.usefixtures("topic")
def test_rate_counts_all_connections_of_a_client_id(server: Server, wire: Wire, name: str) -> None:
    limited(wire, producer_byte_rate=100.0)
    paused(server, lambda client: client.call(producing(name), 11))[0].close()
    with Wire(server.bootstrap, LOADER) as other:
        assert other.call(producing(name, values=b"small"), 11).throttle_time_ms > HOUR_MS


@pytest.mark.usefixtures("topic")
def test_higher_or_removed_quota_counts_at_once(server: Server, wire: Wire, name: str) -> None:
    limited(wire, producer_byte_rate=100.0)
    paused(server, lambda client: client.call(producing(name), 11))[0].close()

    def pause() -> int:
        with Wire(server.bootstrap, LOADER) as client:
            return int(client.call(producing(name, values=b"small"), 11).throttle_time_ms)

    limited(wire, producer_byte_rate=1e12)
    until(pause, lambda found: found == 0, "the old quota counts")
    limited(wire, producer_byte_rate=100.0)
    until(pause, lambda found: found > 0, "the new quota does not count")
    assert altered(wire, CLIENT, producer_byte_rate=None).error_code == 0
    until(pause, lambda found: found == 0, "the removed quota counts")


@pytest.mark.parametrize(
    ("ample", "scarce"),
    [
        (((*ANONYMOUS, *CLIENT)), (*ANONYMOUS, ("client-id", None))),
        ((*ANONYMOUS, ("client-id", None)), ANONYMOUS),
        (ANONYMOUS, (*EVERYONE, *CLIENT)),
        ((*EVERYONE, *CLIENT), (*EVERYONE, ("client-id", None))),
        ((*EVERYONE, ("client-id", None)), EVERYONE),
        (EVERYONE, CLIENT),
        (CLIENT, (("client-id", None),)),
    ],
    ids=str,
)
@pytest.mark.usefixtures("topic")
def test_most_specific_quota_counts(server: Server, wire: Wire, name: str, ample: Entity, scarce: Entity) -> None:
    def pause() -> int:
        with Wire(server.bootstrap, LOADER) as client:
            return int(client.call(producing(name), 11).throttle_time_ms)

    limited(wire, scarce, producer_byte_rate=100.0)
    until(pause, lambda found: found > HOUR_MS, "the only quota does not count")
    limited(wire, ample, producer_byte_rate=1e12)
    until(pause, lambda found: found == 0, "the less specific quota counts")


def test_consumer_above_its_rate_gets_no_records_and_pauses(server: Server, wire: Wire, topic: UUID, name: str) -> None:
    for _ in range(20):
        assert wire.produce(name, batch([b"x" * 900])).error_code == 0
    limited(wire, consumer_byte_rate=500.0)
    read = 0

    def fetching(epoch: int) -> FetchRequest:
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 24)
        where = FetchTopic(topic_id=topic, partitions=[wanted])
        return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, session_epoch=epoch, topics=[where])

    def fetched(client: Wire) -> Any:
        nonlocal read
        answer = client.call(fetching(-1), 16)
        read = sum(len(part.records or b"") for each in answer.responses for part in each.partitions)
        return answer

    loader, answer = paused(server, fetched)
    with loader:
        assert (answer.error_code, answer.responses, read) == (0, [], 0)
    with Wire(server.bootstrap, LOADER) as client:  # a session that begins with a pause is no session
        answer = client.call(fetching(0), 16)
        assert (answer.session_id, answer.responses) == (0, [])
        assert answer.throttle_time_ms > 0
    assert wire.fetch(topic).records


def test_fetch_returns_at_most_what_the_quota_admits_at_once(
    server: Server, wire: Wire, topic: UUID, name: str
) -> None:
    for _ in range(20):
        assert wire.produce(name, batch([b"x" * 900])).error_code == 0
    limited(wire, consumer_byte_rate=500.0)

    wanted = FetchPartition(partition=0, partition_max_bytes=1 << 24)
    where = FetchTopic(topic_id=topic, partitions=[wanted])
    request = FetchRequest(max_wait_ms=0, max_bytes=1 << 24, session_epoch=-1, topics=[where])

    def size() -> int:
        with Wire(server.bootstrap, LOADER) as client:
            answer = client.call(request, 16)
            return sum(len(part.records or b"") for each in answer.responses for part in each.partitions)

    until(size, lambda found: 0 < found <= 5_000, "the Fetch is not limited")


def test_any_request_counts_for_the_time_of_a_client(server: Server, wire: Wire) -> None:
    limited(wire, request_percentage=0.001)
    loader, answer = paused(server, lambda client: client.call(DescribeClusterRequest()))
    with loader:
        assert 0 < answer.throttle_time_ms <= 1000, "at most one window"
        assert loader.call(MetadataRequest(topics=[]), 8).throttle_time_ms > 0
        assert wire.call(MetadataRequest(topics=[]), 8).throttle_time_ms == 0


def test_topics_above_the_mutation_rate_are_rejected(server: Server, wire: Wire, name: str) -> None:
    limited(wire, controller_mutation_rate=0.0001)
    made = 0

    def creating(client: Wire, version: int = 7) -> Any:
        nonlocal made
        made += 1
        wanted = CreatableTopic(name=f"{name}-{made}", num_partitions=3, replication_factor=1)
        return client.call(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), version)

    exceeded = [ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    loader, answer = paused(server, creating)
    with loader:
        assert [each.error_code for each in answer.topics] == exceeded
        assert answer.throttle_time_ms > HOUR_MS
    with Wire(server.bootstrap, LOADER) as client:  # an older client is only throttled
        answer = creating(client, 5)
        assert (answer.topics[0].error_code, answer.throttle_time_ms > HOUR_MS) == (0, True)
    present = f"{name}-{made}"
    extended = CreatePartitionsTopic(name=present, count=4, assignments=None)
    with Wire(server.bootstrap, LOADER) as client:
        answer = client.call(CreatePartitionsRequest(topics=[extended], timeout_ms=10_000), 3)
        assert [each.error_code for each in answer.results] == exceeded
        assert answer.throttle_time_ms > HOUR_MS
    gone = DeleteTopicsRequest(topics=[DeleteTopicState(name=present)], timeout_ms=10_000)
    with Wire(server.bootstrap, LOADER) as client:
        answer = client.call(gone, 6)
        assert [each.error_code for each in answer.responses] == exceeded
        assert answer.throttle_time_ms > HOUR_MS
    assert wire.call(gone, 6).responses[0].error_code == 0


def test_validation_alone_counts_as_a_mutation(server: Server, wire: Wire, name: str) -> None:
    limited(wire, controller_mutation_rate=0.0001)

    def validated(client: Wire) -> Any:
        wanted = CreatableTopic(name=name, num_partitions=3, replication_factor=1)
        return client.call(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000, validate_only=True), 7)

    paused(server, validated)[0].close()


def test_client_without_an_id_has_only_quotas_of_users(server: Server, wire: Wire, name: str, topic: UUID) -> None:
    del topic
    limited(wire, (("client-id", None),), producer_byte_rate=100.0)
    limited(wire, (("user", None), ("client-id", None)), producer_byte_rate=100.0)
    paused(server, lambda client: client.call(producing(name), 11))[0].close()
    with Wire(server.bootstrap, "") as client:
        assert client.call(producing(name), 11).throttle_time_ms == 0
    limited(wire, EVERYONE, producer_byte_rate=100.0)
    paused(server, lambda client: client.call(producing(name), 11), "")[0].close()
