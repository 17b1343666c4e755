"""Administration in worlds with three brokers: preferred leaders, and a topic that is created again and again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from support.cluster_clients import TOPIC, Client, Routes
from support.cluster_plans import BROKERS, Elect, Recreate, Work
from support.cluster_watch import RECREATED
from support.replica_invariants import InvariantError


class Administration:
    """Carry out the steps of a plan. All requests are repeated until they succeed."""

    def __init__(self, routes: Routes, outcomes: Counter[str], now_ms: Callable[[], int]) -> None:
        self.over = False
        self._routes = routes
        self._client = Client(routes, "")
        self._outcomes = outcomes
        self._now_ms = now_ms
        self._topic_id: UUID | None = None
        self._acknowledged: dict[int, list[bytes]] = {}
        """The values of each partition of the topic that exists now."""
        self._number = 0

    async def elect(self, workload: list[Work]) -> None:
        """Elect preferred leaders. The election may fail; the store shows each one."""
        for work in workload:
            if isinstance(work, Elect) and not self.over:
                topic = ElectLeadersTopic(topic=TOPIC, partitions=work.partitions)
                request = ElectLeadersRequest(topic_partitions=[topic], timeout_ms=1000)
                try:
                    response = await (await self._client.connection(self._routes.any())).call(request)
                except ConnectionLostError:
                    pass
                else:
                    results = [each for topic in response.replica_election_results for each in topic.partition_result]
                    self._outcomes["elections"] += sum(each.error_code == 0 for each in results)
                await asyncio.sleep(work.pause_s)

    async def recreate(self, workload: list[Work]) -> None:
        """Create the topic, write to it, and delete it. The last topic stays."""
        for work in workload:
            if isinstance(work, Recreate) and not self.over:
                if self._topic_id is not None:
                    await self._delete()
                await self._create(work)
                await self._write(range(work.partitions), work.count)
                if work.added:
                    await self._add_partitions(work.partitions + work.added)
                    await self._write(range(work.partitions, work.partitions + work.added), work.count)
                self._outcomes["topics"] += 1
                await asyncio.sleep(work.pause_s)

    async def check(self, *, complete: bool) -> None:
        """Check that the topic has the records that were written to it and acknowledged, and no others.

        `complete` is False if records may be lost, because a machine has crashed. Invariants 1, 5 and 9.
        """
        for partition, values in self._acknowledged.items():
            found = await self._client.read_committed(self._topic_id, partition)  # type: ignore[arg-type]
            if not set(found) <= set(values):
                raise InvariantError(
                    1, f"{RECREATED}-{partition} has records of a deleted topic: {found}, not {values}"
                )
            distinct = list(dict.fromkeys(found))  # a repeated request may write again, because no producer id is used
            if complete and distinct != values:
                raise InvariantError(5, f"{RECREATED}-{partition} has {found}, but {values} were acknowledged")

    async def _until(self, request: Any, is_done: Callable[[], bool]) -> None:
        """Send a request until the store shows its effect. A broker with an old image may reject it."""
        while not is_done():
            await self._client.call(request, lambda _: 0)
            if not is_done():
                await asyncio.sleep(0.05)

    async def _create(self, work: Recreate) -> None:
        topic = CreatableTopic(name=RECREATED, num_partitions=work.partitions, replication_factor=len(BROKERS))
        request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        await self._until(request, lambda: self._routes.topic_id(RECREATED) is not None)
        self._topic_id = self._routes.topic_id(RECREATED)
        assert self._topic_id is not None
        self._client.topics[self._topic_id] = RECREATED
        self._acknowledged = {}

    async def _add_partitions(self, count: int) -> None:
        topic = CreatePartitionsTopic(name=RECREATED, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000)
        await self._until(request, lambda: self._routes.has_partition(RECREATED, count - 1))

    async def _delete(self) -> None:
        topic_id, self._topic_id, self._acknowledged = self._topic_id, None, {}
        assert topic_id is not None
        request = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic_id)], timeout_ms=1000)
        await self._until(request, lambda: self._routes.topic_id(RECREATED) != topic_id)

    async def _write(self, partitions: range, count: int) -> None:
        assert self._topic_id is not None
        for partition in partitions:
            values = self._acknowledged[partition] = []
            for _ in range(count):
                values.append(b"r%d" % self._number)
                self._number += 1
                batch = build_batch([Record(0, self._now_ms(), None, values[-1])])
                data = PartitionProduceData(index=partition, records=bytes(batch))
                topic = TopicProduceData(topic_id=self._topic_id, partition_data=[data])
                request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
                await self._client.call(request, lambda r: r.responses[0].partition_responses[0].error_code)
