"""List offsets within the given time, with the true cause, and with incomplete answers. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import Partition, Topic
from oncelog.client.requests.offsets import LATEST, Listed, list_offsets
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from oncelog.protocol.schema import NO_UUID
from oncelog.sim.loop import SimLoop

BOTH = {("t", 0): LATEST, ("t", 1): LATEST}
NEVER = 1e9


class Broker:
    """A connection to a broker that answers after a while, with a configured answer for each partition.

    None: no answer.
    """

    closed = False

    def __init__(self) -> None:
        self.takes = 0.0
        self.lost = False
        self.asked: list[ListOffsetsRequest] = []
        self.answers: dict[int, ErrorCode | None] = {}

    async def call(self, request: ListOffsetsRequest, version: int | None) -> ListOffsetsResponse:
        self.asked.append(request)
        assert len(self.asked) < 1_000, "requests without a pause"
        await asyncio.sleep(self.takes)
        if self.lost:
            raise ConnectionLostError("hung up")
        (topic,) = request.topics
        found = [
            ListOffsetsPartitionResponse(partition_index=item.partition_index, error_code=code, offset=7)
            for item in topic.partitions
            if (code := self.answers.get(item.partition_index, ErrorCode.NONE)) is not None
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=found)])


class Cluster(ClusterClient):
    """A cluster with topic t of two partitions, led by one broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__("nowhere:1")
        self.broker: Any = broker
        self.leader = 1
        self.connects = 0.0

    async def topic(self, name: str, **options: Any) -> Topic:
        one = Partition(self.leader, 0, (), ())
        return Topic(name, NO_UUID, False, {0: one, 1: one})

    async def connection(self, node_id: int, purpose: str = "") -> Any:
        await asyncio.sleep(self.connects)
        return self.broker


def run(body: Callable[[Cluster, Broker], Coroutine[Any, Any, None]]) -> float:
    """Return the virtual seconds that it took."""
    loop = SimLoop()
    broker = Broker()
    with closing(loop):
        loop.run_until_complete(body(Cluster(broker), broker))
        return loop.time()


@pytest.mark.parametrize("which", ["refuses", "never answers"])
def test_missing_metadata_take_no_longer_than_the_timeout(which: str) -> None:
    async def connect(host: str, port: int) -> Any:
        if which == "never answers":
            await asyncio.sleep(NEVER)
        raise ConnectionLostError("refused")

    async def body(_: Cluster, __: Broker) -> None:
        async with ClusterClient("nowhere:1") as cluster:
            cluster._connections._connect_once = connect  # type: ignore[assignment]
            said = "refused" if which == "refuses" else "1000 ms"
            with pytest.raises((errors.ConnectionFailedError, errors.TimedOutError), match=said):
                await list_offsets(cluster, BOTH, timeout_ms=1_000)

    assert run(body) <= 1.001


@pytest.mark.parametrize("which", ["connects", "takes"])
def test_unresponsive_leader_takes_no_longer_than_the_timeout(which: str) -> None:
    async def body(cluster: Cluster, broker: Broker) -> None:
        setattr(cluster if which == "connects" else broker, which, NEVER)
        with pytest.raises(errors.TimedOutError, match="1000 ms"):
            await list_offsets(cluster, BOTH, timeout_ms=1_000)

    assert run(body) <= 1.001


def test_patience_ends_retries_but_not_a_pending_request() -> None:
    async def body(cluster: Cluster, broker: Broker) -> None:
        broker.takes = 5.0
        assert len(await list_offsets(cluster, BOTH, patience_ms=1_000)) == 2
        broker.lost = True
        with pytest.raises(errors.ConnectionFailedError, match="hung up"):
            await list_offsets(cluster, BOTH, patience_ms=1_000)
        assert len(broker.asked) == 2, "no request is sent after it"

    run(body)


def test_original_error_is_kept_as_the_cause() -> None:
    async def body(cluster: Cluster, broker: Broker) -> None:
        cluster.leader = -1
        with pytest.raises(
            errors.RetriableError, match=r"the offset of t-0: the partition has no leader \(LEADER_NOT"
        ) as no_leader:
            await list_offsets(cluster, BOTH, timeout_ms=1_000)
        assert no_leader.value.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert "bootstrap" not in str(no_leader.value)
        cluster.leader, broker.lost = 1, True
        with pytest.raises(errors.ConnectionFailedError, match="hung up"):
            await list_offsets(cluster, BOTH, timeout_ms=1_000)

    run(body)


@pytest.mark.parametrize("takes", [0.0, 0.4])
def test_partition_missing_from_an_answer_is_retried_with_pauses_and_then_named(takes: float) -> None:
    async def body(cluster: Cluster, broker: Broker) -> None:
        broker.answers[1], broker.takes = None, takes
        found: dict[tuple[str, int], Listed] = {}
        with pytest.raises(errors.KafkaError, match="the response of broker 1 does not contain the offset of t-1"):
            await list_offsets(cluster, BOTH, timeout_ms=2_000, into=found)
        assert list(found) == [("t", 0)]
        assert 2 <= len(broker.asked) < 20
        assert [item.partition_index for item in broker.asked[-1].topics[0].partitions] == [1]
        del broker.answers[1]
        assert await list_offsets(cluster, {("t", 1): LATEST}) == {("t", 1): Listed(7, -1, -1)}

    assert run(body) <= 3


def test_retriable_error_is_retried() -> None:
    async def body(cluster: Cluster, broker: Broker) -> None:
        broker.answers[1] = ErrorCode.OFFSET_NOT_AVAILABLE
        asyncio.get_running_loop().call_later(5, broker.answers.clear)
        assert set(await list_offsets(cluster, BOTH)) == set(BOTH)
        broker.answers[1] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(errors.AuthorizationError):
            await list_offsets(cluster, BOTH)

    run(body)
