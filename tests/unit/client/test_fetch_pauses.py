"""Rejected requests are retried with growing pauses, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.consumer.options import consumer_options
from oncelog.client.discovery.topology import Partition, Topic
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from oncelog.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from oncelog.sim.loop import SimLoop

TOPIC_ID = uuid.uuid4()
BACKOFF = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 1_000}
GROWING = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
"""Seconds, each with up to 20 % jitter."""


class Brokers:
    """Nodes 1 and 2, with configured answers to each Fetch. `leader` leads partitions 0 and 1 of a topic."""

    def __init__(self, core: ConsumerCore) -> None:
        self.answer: Callable[[int, int], PartitionData | ErrorCode | Exception] = lambda node, partition: (
            ErrorCode.NONE
        )
        self.fetched: list[tuple[float, int, int]] = []
        """Time, node and partition of each Fetch."""
        self.refreshed: list[float] = []
        self.validated: list[float] = []
        """Times of requests for the end of a leader epoch. The answer is empty."""
        self.leader = Partition(1, 5, (1, 2), (1, 2))
        self.core = core
        self.learn()
        core.cluster.connection = self.connection  # type: ignore[method-assign, assignment]
        core.cluster.refresh = self.refresh  # type: ignore[method-assign, assignment]

    def learn(self) -> None:
        topology = self.core.cluster.topology
        topology.brokers = {1: ("a", 1), 2: ("b", 1)}
        topology.topics["t"] = Topic("t", TOPIC_ID, False, {0: self.leader, 1: Partition(1, 5, (1, 2), (1, 2))})
        topology.names[TOPIC_ID] = "t"

    async def refresh(self, topics: object = None, **_: object) -> None:
        self.refreshed.append(self.core.background.loop.time())
        assert len(self.refreshed) < 1_000, "requests without a pause"
        self.learn()

    async def connection(self, node: int, purpose: str = "") -> Any:
        async def call(request: Message, version: int | None = None, **_: object) -> Message:
            if isinstance(request, OffsetForLeaderEpochRequest):
                self.validated.append(self.core.background.loop.time())
                assert len(self.validated) < 1_000, "requests without a pause"
                return OffsetForLeaderEpochResponse(topics=[])
            assert isinstance(request, FetchRequest)
            found = []
            for item in request.topics[0].partitions:
                self.fetched.append((self.core.background.loop.time(), node, item.partition))
                assert len(self.fetched) < 1_000, "requests without a pause"
                answer = self.answer(node, item.partition)
                if isinstance(answer, Exception):
                    raise answer
                if isinstance(answer, ErrorCode):
                    answer = PartitionData(error_code=answer)
                answer.partition_index = item.partition
                found.append(answer)
            if not any(item.error_code or item.records for item in found):
                await asyncio.sleep(request.max_wait_ms / 1000)
            return FetchResponse(responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=found)])

        return SimpleNamespace(call=call, version_for=lambda request: request.MAX_VERSION)

    def pauses(self, partition: int = 0) -> list[float]:
        times = [at for at, _, of in self.fetched if of == partition]
        return [later - earlier for earlier, later in pairwise(times)]


def run(
    body: Callable[[ConsumerCore, Brokers], Coroutine[Any, Any, None]], partitions: int = 1, **options: object
) -> None:
    loop = SimLoop()

    async def main() -> None:
        core = ConsumerCore(consumer_options(None, {"bootstrap_servers": "n:1", **BACKOFF, **options}), loop)
        core.assign([("t", index) for index in range(partitions)])
        for state in core.subscription.partitions.values():
            state.seek(50)
        await body(core, Brokers(core))
        await core.close()

    with closing(loop):
        loop.run_until_complete(main())


def records() -> PartitionData:
    return PartitionData(records=bytes(build_batch([Record(50, 1_000, None, b"x")], base_offset=50, leader_epoch=5)))


def grow(pauses: list[float]) -> bool:
    return all(0.79 * due <= pause <= 1.21 * due for pause, due in zip(pauses, GROWING, strict=False))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
@pytest.mark.parametrize("polls", [True, False])
def test_rejected_fetches_are_retried_with_growing_pauses(code: ErrorCode, polls: bool) -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.answer = lambda node, partition: code
        await core.poll(3_000 if polls else 0)
        if not polls:
            await asyncio.sleep(3)
        assert len(brokers.fetched) >= 5
        assert grow(brokers.pauses()), brokers.pauses()
        assert len(brokers.refreshed) <= len(brokers.fetched)
        brokers.answer = lambda node, partition: records()
        assert len(await core.poll(3_000)) == 1
        count = len(brokers.fetched)
        brokers.answer = lambda node, partition: code
        await core.poll(500)
        assert grow(brokers.pauses()[count:]), "the pauses start small again after an answer"

    run(body)


def test_new_leader_is_asked_at_once() -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.answer = lambda node, partition: ErrorCode.NOT_LEADER_OR_FOLLOWER if node == 1 else records()
        await core.poll(2_000)
        begun = core.background.loop.time()
        brokers.leader = Partition(2, 6, (1, 2), (1, 2))
        brokers.learn()
        assert len(await core.poll(2_000)) == 1
        assert core.background.loop.time() == begun

    run(body)


def test_metadata_requests_without_a_leader_back_off() -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.leader = Partition(-1, 5, (1, 2), ())
        brokers.learn()
        await core.poll(3_000)
        assert len(brokers.refreshed) >= 5
        assert grow([later - earlier for earlier, later in pairwise(brokers.refreshed)]), brokers.refreshed
        brokers.leader = Partition(2, 6, (1, 2), (1, 2))
        brokers.answer = lambda node, partition: records()
        assert len(await core.poll(3_000)) == 1

    run(body)


def test_other_partitions_of_a_broker_do_not_wait() -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.answer = lambda node, partition: records() if partition else ErrorCode.OFFSET_NOT_AVAILABLE
        assert len(await core.poll(2_000)) == 1
        assert core.background.loop.time() == 0

    run(body, partitions=2)


def test_seek_ends_the_pause() -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.answer = lambda node, partition: ErrorCode.OFFSET_NOT_AVAILABLE
        await core.poll(2_000)
        brokers.answer = lambda node, partition: records()
        begun = core.background.loop.time()
        core.subscription.seek(("t", 0), 40)
        assert len(await core.poll(2_000)) == 1
        assert core.background.loop.time() == begun

    run(body)


def test_fetches_back_off_if_a_broker_closes_the_connection() -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.answer = lambda node, partition: ConnectionLostError("gone")
        await core.poll(3_000)
        assert len(brokers.fetched) >= 5
        assert grow(brokers.pauses()), brokers.pauses()

    run(body)


def test_broker_and_leader_that_are_missing_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.answer = lambda node, partition: ConnectionLostError("broker 1: gone")
        for _ in range(10):
            await core.poll(1_000)
        (line,) = caplog.messages
        assert "cannot read from broker 1: gone" in line
        assert "advertised.listeners" in line
        brokers.answer = lambda node, partition: ErrorCode.NONE
        await core.poll(2_000)
        assert caplog.messages[1].startswith("over after 1")
        caplog.clear()
        brokers.leader = Partition(-1, 6, (1, 2), ())
        brokers.learn()
        for _ in range(10):
            await core.poll(1_000)
        (line,) = caplog.messages
        assert line.startswith("cannot read: no leader of t-0. Check that the brokers with its replicas run")
        brokers.leader = Partition(2, 7, (1, 2), (2,))
        await core.poll(2_000)
        assert len(caplog.messages) == 2, "and once when it is over"
        assert {record.name for record in caplog.records} == {"oncelog.client.consumer"}

    run(body)


def test_persistent_error_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.answer = lambda node, partition: ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(errors.AuthorizationError):
            await core.poll(2_000)
        brokers.answer = lambda node, partition: ErrorCode.UNKNOWN_SERVER_ERROR
        await core.poll(250)
        assert "t-0" in caplog.text, "the broker's log must be inspected"

    with caplog.at_level(logging.WARNING):
        run(body)


def test_poll_raises_the_unexpected_error_of_a_fetch() -> None:
    """Before, the task ended without a trace, and the same request was repeated at once, forever."""

    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        brokers.answer = lambda node, partition: ZeroDivisionError("a bug")
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await core.poll(2_000)
        brokers.answer = lambda node, partition: records()
        assert len(await core.poll(2_000)) == 1

    run(body)


def test_position_validation_backs_off() -> None:
    async def body(core: ConsumerCore, brokers: Brokers) -> None:
        core.subscription.seek(("t", 0), OffsetAndMetadata(50, leader_epoch=4))
        assert await core.poll(2_000) == []
        assert len(brokers.validated) >= 5
        pauses = [later - earlier for earlier, later in pairwise(brokers.validated)]
        assert min(pauses) > 0.07, "retry.backoff.ms is 100 ms, less a fifth at random"
        assert not brokers.fetched, "records at a position that may no longer exist"

    run(body)
