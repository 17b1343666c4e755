"""Find partitions, leaders and connections for a producer's batches.

`Sender` uses what is cached. `Routes` looks up the rest in tasks beside the sender's turns, then wakes the sender up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from oncelog import errors
from oncelog.client.calls import Calls, ends_when_closed
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.reasons import (
    known_partitions,
    unavailable_topic,
    unknown_partition,
    unreachable_broker,
    without_leader,
)
from oncelog.client.guards import Guard
from oncelog.client.metrics.sends import Sends
from oncelog.client.producer.accumulator import Accumulator
from oncelog.client.producer.partitioner import spread
from oncelog.client.producer.sender_loop import SenderLoop
from oncelog.client.records import check_topic
from oncelog.client.troubles import Troubles
from oncelog.net.connection import ClientConnection

WEIGHTS_MS = 20
"""How long a topic's weights are used: with many partitions they take longer than a batch."""


class Routes:
    """Know the partitions and brokers of one producer, on its event loop. `lock` guards the accumulator."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: Mapping[str, Any],
        accumulator: Accumulator,
        lock: Guard,
        sender_loop: SenderLoop,
        sends: Sends,
        troubles: Troubles,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._accumulator = accumulator
        self._lock = lock
        self._sender_loop = sender_loop
        self._sends = sends
        self.rejected: Callable[[errors.AuthenticationError], None] = lambda error: None
        """The sender sets it: called if a broker rejects the login, so that no batch waits for its timeout."""
        self._connecting: set[int] = set()
        self._looking: set[str] = set()
        self._fresh = False
        self._stuck: dict[int, int] = {}
        """Brokers that accept no request although a batch is ready, with the time since when."""
        self._weights: dict[tuple[str, int], tuple[int, list[int] | None]] = {}
        self._used: dict[str, int] = {}
        """When `_forget_idle` last found that a record had been added to a topic."""
        self.counts: dict[str, int] = {}
        """Number of partitions by topic, so that `append` needs a single lookup."""
        self._troubles = troubles

    def to(self, node: int) -> ClientConnection | None:
        """Return the connection to a broker. If there is none, return None and open one."""
        connection = self._cluster.open_connection(node, "produce")
        if connection is None and node not in self._connecting:
            self._connecting.add(node)
            self._sender_loop.spawn(self._connect(node))
        return connection

    def set_ready(self, node: int, *, ready: bool) -> None:
        """Record whether a broker accepts the batches that are ready for it."""
        if ready:
            self._stuck.pop(node, None)
        elif node not in self._stuck:
            self._stuck[node] = self._sender_loop.now_ms()

    def weights(self, topic: str, count: int) -> list[int] | None:
        """Return how often to choose each partition for records without a key (KIP-794); None: equally often."""
        now = self._sender_loop.now_ms()
        until, known = self._weights.get((topic, count), (0, None))
        if now < until:
            return known
        options, leader = self._options, self._cluster.topology.leader
        limit = options["partitioner_availability_timeout_ms"] or now + 1
        late = {node for node, since in self._stuck.copy().items() if now - since > limit}
        usable = [(at := leader(topic, partition)) >= 0 and at not in late for partition in range(count)]
        queues = [0] * count
        if options["partitioner_adaptive_partitioning_enable"]:
            queues = [self._accumulator.queued((topic, partition)) for partition in range(count)]
        found = spread(queues, usable)
        self._weights[topic, count] = (now + WEIGHTS_MS, found)
        return found

    @property
    def _calls(self) -> Calls:
        return self._cluster.calls

    @ends_when_closed
    async def learn_topic(self, topic: str, partition: int | None = None) -> None:
        """Get a topic's number of partitions, and create the topic if allowed. Raises KafkaError and UsageError.

        Wait up to max.block.ms until the topic has `partition`, which may just have been added (Java's
        `waitOnMetadata`).
        """
        check_topic(topic)
        begun = asyncio.get_running_loop().time()
        create = self._options["allow_auto_create_topics"]
        limit = self._options["max_block_ms"]
        try:
            found = await self._cluster.topic(topic, create=create, timeout_ms=limit)
        except errors.ConnectionFailedError as error:
            raise errors.TimedOutError(
                f"cannot get the partitions of topic {topic!r} within {limit} ms (max_block_ms): {error.message}",
                advice=error.advice,
            ) from error
        self.counts[topic] = len(found.partitions)
        if not self._fresh:
            self._fresh = True
            self._sender_loop.spawn(self._keep_fresh())
        if partition is not None:
            await self._await_partition(topic, partition, begun + limit / 1000)

    async def _await_partition(self, topic: str, partition: int, until: float) -> None:
        backoff = self._cluster.backoff()
        try:
            async with asyncio.timeout_at(until) as scope:
                while partition >= self.counts[topic]:
                    with contextlib.suppress(errors.ConnectionFailedError):
                        await self._cluster.refresh([topic])
                        self._count(topic)
                    if partition >= self.counts[topic]:
                        known = f"{known_partitions(topic, self.counts[topic])}, not {partition}"
                        self._troubles.waiting((topic, partition), f"send() waits: {known}")
                        await asyncio.sleep(backoff.next_s())
            self._troubles.over((topic, partition))
        except TimeoutError:
            if not scope.expired():
                raise
            self._troubles.forget((topic, partition))
            limit = self._options["max_block_ms"]
            when = f", after {limit} ms (max_block_ms)"
            raise unknown_partition(topic, self.counts[topic], partition, when) from None

    def _count(self, topic: str) -> None:
        found = self._cluster.topology.topics.get(topic)
        if found is not None:
            self.counts[topic] = len(found.partitions)

    async def _keep_fresh(self) -> None:
        """Refresh the metadata every metadata.max.age.ms, so that new partitions get records without an error first."""
        age = max(self._options["metadata_max_age_ms"], self._options["retry_backoff_max_ms"]) / 1000
        while not self._sender_loop.closed:
            await asyncio.sleep(age)
            self._forget_idle()
            with contextlib.suppress(errors.KafkaError):  # no broker is reachable now; the next round retries
                await self._cluster.refresh(list(self.counts))
            for topic in self.counts:
                self._count(topic)

    def _forget_idle(self) -> None:
        """Forget the topics that got no record for metadata.max.idle.ms (KIP-526)."""
        now, limit = self._sender_loop.now_ms(), self._options["metadata_max_idle_ms"]
        with self._lock:
            used = self._accumulator.used_topics | {batch.tp[0] for batch in self._accumulator.incomplete()}
            self._accumulator.used_topics = set()
        self._used.update(dict.fromkeys(used, now))
        for topic in list(self.counts):
            if now - self._used.setdefault(topic, now) > limit:
                self._used.pop(topic)
                self._weights.pop((topic, self.counts.pop(topic)), None)
                self._cluster.topology.forget(topic)
                self._sends.forget(topic)

    async def _connect(self, node: int) -> None:
        try:
            await self._until_connected(node)
            self._troubles.over(node)
        finally:
            self._connecting.discard(node)
            self._sender_loop.wake()

    async def _until_connected(self, node: int) -> None:
        """Connect to a broker. Give up if it leaves the cluster, or if no batch waits any more."""
        backoff = self._cluster.backoff()
        while not self._sender_loop.closed and self._accumulator.waiting:
            try:
                await self._cluster.connection(node, "produce")
                return
            except errors.AuthenticationError as error:
                self.rejected(error)
                return
            except errors.ConnectionFailedError as error:
                self._troubles.waiting(node, unreachable_broker("send to", error.message))
                await asyncio.sleep(backoff.next_s())
                with contextlib.suppress(errors.KafkaError):
                    await self._cluster.refresh(self.counts)
                if node not in self._cluster.topology.brokers:
                    return

    def find_leaders(self, topic: str) -> None:
        """Look up a topic's leaders, unless a task is already doing so."""
        if topic not in self._looking:
            self._looking.add(topic)
            self._sender_loop.spawn(self._learn_again(topic))

    async def _learn_again(self, topic: str) -> None:
        try:
            await self._until_led(topic)
            self._troubles.over(topic)
        finally:
            self._looking.discard(topic)
            self._sender_loop.wake()

    async def _until_led(self, topic: str) -> None:
        """Look up a topic until each partition with waiting batches has a leader. Give up if no batch waits."""
        backoff = self._cluster.backoff()
        while not self._sender_loop.closed:
            try:
                await self._cluster.refresh([topic])
            except errors.AuthenticationError as error:
                self.rejected(error)
                return
            except errors.KafkaError:
                pass
            if topic in self._cluster.topology.topics:
                self._count(topic)
                with self._lock:
                    waiting = self._accumulator.partitions_waiting(topic)
                # A topic that was created again may lack this partition, which then has no leader either.
                without = [each for each in waiting if self._cluster.topology.leader(topic, each) < 0]
                if not without:
                    return
                why = without_leader(topic, without)
                self._sender_loop.wake()  # the partitions that have a leader need not wait for the others
            else:
                why = unavailable_topic(topic, self._cluster.topology.failures.get(topic))
            self._troubles.waiting(topic, f"records wait in the buffer: {why}")
            await asyncio.sleep(backoff.next_s())
            if not self._accumulator.waiting:
                return
