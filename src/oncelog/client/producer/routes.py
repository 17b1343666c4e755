"""The ways from a producer's batches to their brokers: partitions, leaders and connections, found beside its turns.

`Sender` asks what is known and goes on; what is not known is looked for in tasks that wake it when they have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client.calls import Calls, ends_when_closed
from oncelog.client.connections.backoff import Backoff
from oncelog.client.producer.partitioner import spread
from oncelog.client.records import check_topic

if TYPE_CHECKING:
    from oncelog.client.producer.send_loop import SendLoop
    from oncelog.net.connection import ClientConnection


WEIGHTS_MS = 20
"""How long a topic's weights are used: with many partitions they take longer than a batch."""


class Routes:
    """What a sender knows of partitions and brokers. Runs on the sender's loop."""

    def __init__(self, sender: SendLoop) -> None:
        self._sender = sender
        self._cluster = sender.cluster
        self._backoff = (sender.options["retry_backoff_ms"], sender.options["retry_backoff_max_ms"])
        self._connecting: set[int] = set()
        self._looking: set[str] = set()
        self._fresh = False
        self._stuck: dict[int, int] = {}
        """Brokers that take nothing although something is ready, since when."""
        self._weights: dict[tuple[str, int], tuple[int, list[int] | None]] = {}
        self._used: dict[str, int] = {}
        """When something was last added to a topic, as far as was looked."""
        self.counts: dict[str, int] = {}
        """Number of partitions by topic: kept beside the topology so that `append` needs one look."""
        self.trouble: dict[int, str] = {}
        """Why a broker that is wanted cannot be reached."""

    def to(self, node: int) -> ClientConnection | None:
        """The connection to a broker; None while there is none, which is made then."""
        connection = self._cluster.open_connection(node, "produce")
        if connection is None and node not in self._connecting:
            self._connecting.add(node)
            self._sender.spawn(self._connect(node))
        return connection

    def note(self, node: int, *, ready: bool) -> None:
        """Whether a broker for which something is ready takes it."""
        if ready:
            self._stuck.pop(node, None)
        elif node not in self._stuck:
            self._stuck[node] = self._sender.now_ms()

    def weights(self, topic: str, count: int) -> list[int] | None:
        """How often each partition is to be chosen for records without a key (KIP-794); None: all alike."""
        now = self._sender.now_ms()
        until, known = self._weights.get((topic, count), (0, None))
        if now < until:
            return known
        options, leader = self._sender.options, self._cluster.topology.leader
        limit = options["partitioner_availability_timeout_ms"] or now + 1
        late = {node for node, since in self._stuck.copy().items() if now - since > limit}
        usable = [(at := leader(topic, partition)) >= 0 and at not in late for partition in range(count)]
        queues = [0] * count
        if options["partitioner_adaptive_partitioning_enable"]:
            queues = [self._sender.accumulator.queued((topic, partition)) for partition in range(count)]
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
        create = self._sender.options["allow_auto_create_topics"]
        limit = self._sender.options["max_block_ms"]
        try:
            found = await self._cluster.topic(topic, create=create, timeout_ms=limit)
        except errors.ConnectionFailedError as error:
            raise errors.TimedOutError(
                f"the partitions of topic {topic!r} are not known after {limit} ms (max_block_ms): {error}"
            ) from error
        self.counts[topic] = len(found.partitions)
        if not self._fresh:
            self._fresh = True
            self._sender.spawn(self._keep_fresh())
        if partition is not None:
            await self._await_partition(topic, partition, begun + limit / 1000)

    async def _await_partition(self, topic: str, partition: int, until: float) -> None:
        backoff = Backoff(*self._backoff)
        try:
            async with asyncio.timeout_at(until) as scope:
                while partition >= self.counts[topic]:
                    with contextlib.suppress(errors.ConnectionFailedError):
                        await self._cluster.refresh([topic])
                        self._count(topic)
                    if partition >= self.counts[topic]:
                        await asyncio.sleep(backoff.next_ms(random.random()) / 1000)
        except TimeoutError:
            if not scope.expired():
                raise
            limit = self._sender.options["max_block_ms"]
            raise errors.UnknownTopicError(
                f"topic {topic!r} has partitions 0 to {self.counts[topic] - 1}, not {partition}, "
                f"after {limit} ms (max_block_ms)"
            ) from None

    def _count(self, topic: str) -> None:
        found = self._cluster.topology.topics.get(topic)
        if found is not None:
            self.counts[topic] = len(found.partitions)

    async def _keep_fresh(self) -> None:
        """Ask again by age (metadata.max.age.ms), so that new partitions get records without an error first."""
        age = max(self._sender.options["metadata_max_age_ms"], self._sender.options["retry_backoff_max_ms"]) / 1000
        while not self._sender.closed:
            await asyncio.sleep(age)
            self._forget_idle()
            with contextlib.suppress(errors.KafkaError):  # no broker now: the next round asks again
                await self._cluster.refresh(list(self.counts))
            for topic in self.counts:
                self._count(topic)

    def _forget_idle(self) -> None:
        """Ask no more for topics that nothing was sent to (metadata.max.idle.ms, KIP-526)."""
        now, limit = self._sender.now_ms(), self._sender.options["metadata_max_idle_ms"]
        with self._sender.lock:
            accumulator = self._sender.accumulator
            used = accumulator.used_topics | {batch.tp[0] for batch in accumulator.incomplete()}
            accumulator.used_topics = set()
        self._used.update(dict.fromkeys(used, now))
        for topic in list(self.counts):
            if now - self._used.setdefault(topic, now) > limit:
                self._used.pop(topic)
                self._weights.pop((topic, self.counts.pop(topic)), None)
                self._cluster.topology.forget(topic)

    async def _connect(self, node: int) -> None:
        backoff = Backoff(*self._backoff)
        try:
            while not self._sender.closed and self._sender.accumulator.waiting:
                try:
                    await self._cluster.connection(node, "produce")
                    self.trouble.pop(node, None)
                    return
                except errors.ConnectionFailedError as error:
                    self.trouble[node] = error.message
                    await asyncio.sleep(backoff.next_ms(random.random()) / 1000)
                    with contextlib.suppress(errors.KafkaError):
                        await self._cluster.refresh(self.counts)
                    if node not in self._cluster.topology.brokers:
                        return
        finally:
            self._connecting.discard(node)
            self._sender.wake()

    def find_leaders(self, topic: str) -> None:
        """Look for a topic's leaders, unless that is being done."""
        if topic not in self._looking:
            self._looking.add(topic)
            self._sender.spawn(self._learn_again(topic))

    async def _learn_again(self, topic: str) -> None:
        backoff = Backoff(*self._backoff)
        try:
            while not self._sender.closed:
                with contextlib.suppress(errors.KafkaError):
                    await self._cluster.refresh([topic])
                if topic in self._cluster.topology.topics:
                    self._count(topic)
                    with self._sender.lock:
                        waiting = self._sender.accumulator.partitions_waiting(topic)
                    # A topic that was created again may lack this partition, which then has no leader either.
                    if all(self._cluster.topology.leader(topic, partition) >= 0 for partition in waiting):
                        return
                    self._sender.wake()  # those that have a leader need not wait for the others
                await asyncio.sleep(backoff.next_ms(random.random()) / 1000)
                if not self._sender.accumulator.waiting:
                    return
        finally:
            self._looking.discard(topic)
            self._sender.wake()
