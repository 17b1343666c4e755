"""`oncelog topic consume` over several partitions: an unavailable leader delays no other. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

import pytest

from oncelog import errors
from oncelog.cli.partition_tailer import READ_UNCOMMITTED, PartitionTailer
from oncelog.client.discovery.topology import Partition, Topic
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import NO_UUID
from oncelog.sim.loop import SimLoop

COUNT = 5
"""Records of each partition."""


class Cluster:
    """Topic t: broker 1 leads partitions 0 and 1, broker 2 the third. A Fetch returns a record of each partition."""

    def __init__(self) -> None:
        self.topology = self
        self.codes = dict.fromkeys(range(3), ErrorCode.NONE)
        self.away: set[int] = set()
        self.asked: list[set[int]] = []
        self.forgotten = 0

    def forget(self, topic: str) -> None:
        self.forgotten += 1

    async def topic(self, name: str) -> Topic:
        return Topic(name, NO_UUID, False, {number: self.place(number) for number in range(3)})

    async def partition(self, topic: str, partition: int) -> Partition:
        return self.place(partition)

    def place(self, number: int) -> Partition:
        return Partition(1 if number < 2 else 2, 0, (), ())

    async def connection(self, node: int) -> Any:
        if node in self.away:
            raise errors.ConnectionFailedError(f"broker {node} is away")
        return self

    async def call(self, request: FetchRequest) -> FetchResponse:
        asked = request.topics[0].partitions
        self.asked.append({item.partition for item in asked})
        assert len(self.asked) < 1_000, "requests without a pause"
        found = [self.answer(item.partition, item.fetch_offset) for item in asked]
        if not any(data.records or data.error_code for data in found):
            await asyncio.sleep(0.5)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=found)])

    def answer(self, number: int, offset: int) -> PartitionData:
        code = self.codes[number]
        if code:
            return PartitionData(partition_index=number, error_code=code)
        value = b"%d of %d" % (offset, number)
        records = bytes(build_batch([Record(0, 0, None, value)], base_offset=offset)) if offset < COUNT else b""
        return PartitionData(partition_index=number, records=records)


def run(body: Callable[[Cluster, PartitionTailer], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop()
    cluster = Cluster()
    tailer = PartitionTailer(cluster, "t", range(3), isolation=READ_UNCOMMITTED, markers=False)  # type: ignore[arg-type]
    with closing(loop):
        loop.run_until_complete(body(cluster, tailer))


async def values(tailer: PartitionTailer) -> list[bytes | None]:
    return [item.value async for _, item in tailer.read(dict.fromkeys(range(3), COUNT)) if isinstance(item, Record)]


@pytest.mark.parametrize("which", ["refuses", "is away", "hangs up"])
def test_other_partitions_are_read_while_one_is_unavailable(which: str) -> None:
    lost = 2 if which != "refuses" else 0

    async def body(cluster: Cluster, tailer: PartitionTailer) -> None:
        loop = asyncio.get_running_loop()
        others = set(range(3)) - {lost}
        if which == "refuses":
            cluster.codes[lost] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif which == "is away":
            cluster.away.add(2)
        else:
            answer = cluster.answer

            def hung_up(number: int, offset: int) -> PartitionData:
                if number == lost and loop.time() < 10:
                    raise ConnectionLostError("hung up")
                return answer(number, offset)

            cluster.answer = hung_up  # type: ignore[method-assign]

        def back() -> None:
            assert all(tailer.positions[number] == COUNT for number in others), "the requests did not wait"
            assert tailer.positions[lost] == 0
            cluster.codes[lost] = ErrorCode.NONE
            cluster.away.clear()

        loop.call_later(10, back)
        found = await values(tailer)
        assert sorted(found, key=str) == sorted((b"%d of %d" % (i, n) for n in range(3) for i in range(COUNT)), key=str)
        assert loop.time() > 9.9
        assert cluster.forgotten > 1, "metadata is requested again"
        assert sum(lost in asked for asked in cluster.asked) < 200, "with pauses"

    run(body)


def test_rejected_fetches_are_retried_with_pauses() -> None:
    async def body(cluster: Cluster, tailer: PartitionTailer) -> None:
        cluster.codes = dict.fromkeys(range(3), ErrorCode.LEADER_NOT_AVAILABLE)
        asyncio.get_running_loop().call_later(10, lambda: cluster.codes.update(dict.fromkeys(range(3), ErrorCode.NONE)))
        assert len(await values(tailer)) == 3 * COUNT
        assert len(cluster.asked) < 300

    run(body)


def test_permanent_error_is_raised() -> None:
    async def body(cluster: Cluster, tailer: PartitionTailer) -> None:
        cluster.codes[1] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(errors.AuthorizationError):
            await values(tailer)

    run(body)


@pytest.mark.parametrize("which", ["refuses", "is away", "ends before its end"])
def test_bounded_read_times_out_without_progress(which: str) -> None:
    async def body(cluster: Cluster, tailer: PartitionTailer) -> None:
        ends = dict.fromkeys(range(3), COUNT)
        if which == "refuses":
            cluster.codes[2] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif which == "is away":
            cluster.away.add(2)
        else:
            ends[2] += 1
        found = []
        with pytest.raises(errors.TimedOutError, match=f"t-2 has not returned .* to its end {ends[2]}"):
            found = [item async for item in tailer.read(ends)]
        assert found == []
        assert tailer.positions[0] == tailer.positions[1] == COUNT

    run(body)


def test_slow_reader_does_not_time_out() -> None:
    async def body(cluster: Cluster, tailer: PartitionTailer) -> None:
        count = 0
        async for _ in tailer.read(dict.fromkeys(range(3), COUNT)):
            count += 1
            await asyncio.sleep(100)
        assert count == 3 * COUNT

    run(body)
