"""The driver of a group membership: joins when told to, keeps it alive by heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.batch import TopicPartition
from oncelog.client.group import Membership, Next, State
from oncelog.net.connection import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.schema import Message

if TYPE_CHECKING:
    from oncelog.client.reader import Reader

JOIN_SLACK_MS = 5_000


class Member:
    """A reader's place in its group."""

    def __init__(self, reader: Reader) -> None:
        options = reader.options
        self._reader = reader
        self._cluster = reader.cluster
        self._loop = reader.loop
        self.membership = Membership(
            options["group_id"],
            instance_id=options["group_instance_id"],
            session_timeout_ms=options["session_timeout_ms"],
            rebalance_timeout_ms=options["max_poll_interval_ms"],
            strategies=options["partition_assignment_strategy"],
        )
        self._interval = options["heartbeat_interval_ms"] / 1000
        self._poll_interval = options["max_poll_interval_ms"] / 1000
        self._join_timeout_ms = options["max_poll_interval_ms"] + JOIN_SLACK_MS
        self._last_poll = reader.loop.time()
        self._beating: asyncio.Task[None] | None = None
        self._joining: asyncio.Task[None] | None = None
        self._failure: errors.KafkaError | None = None
        self.counted: dict[str, int] = {}
        """Partitions by topic as the leader divided them last, 0 for a topic that did not exist; else empty."""
        self._backoff = Backoff(options["retry_backoff_ms"], options["retry_backoff_max_ms"])

    def polled(self) -> None:
        """The user is alive (max.poll.interval.ms)."""
        self._last_poll = self._loop.time()

    @property
    def must_join(self) -> bool:
        """Whether `rejoin` has something to do: a join is due, under way, or done but its assignment not taken."""
        return self.membership.needs_join or self._joining is not None

    def raise_failure(self) -> None:
        """Raise what ended the membership for good, if something did."""
        if self._failure is not None:
            raise self._failure

    async def rejoin(
        self,
        limit: float,
        *,
        before: Callable[[], Awaitable[None]],
        after: Callable[[list[TopicPartition]], Awaitable[None]],
    ) -> bool:
        """Join the next generation; False if time is up first (the next call goes on with it)."""
        if self._joining is None:
            await before()
            self._joining = self._loop.create_task(self._join())
        done, _ = await asyncio.wait([self._joining], timeout=max(limit - self._loop.time(), 0))
        if not done:
            return False
        task, self._joining = self._joining, None
        await task
        await after(list(self.membership.assignment))
        if self._beating is None or self._beating.done():
            self._beating = self._loop.create_task(self._beat())
        return True

    async def _call(self, request: Message, timeout_ms: float | None = None) -> Any:
        group = self.membership.group_id
        try:
            node = await self._cluster.coordinator("group", group)
            connection = await self._cluster.connection(node, "group")
            return await connection.call(request, timeout_ms=timeout_ms)
        except (ConnectionLostError, errors.RetriableError):
            self._cluster.forget_coordinator("group", group)
            return None

    async def _join(self) -> None:
        """Through JoinGroup and SyncGroup, as often as it takes."""
        while not await self._join_once():
            pass
        self._backoff.reset()

    async def _join_once(self) -> bool:
        """One round; whether it has led to an assignment. KafkaError if there is no way in."""
        membership = self.membership
        response = await self._call(membership.join_request(), self._join_timeout_ms)
        if response is None:
            await self._pause()
            return False
        if not await self._proceed(membership.joined(response)) or membership.state is not State.SYNCING:
            return False
        partitions = await self._count_partitions() if membership.leading else {}
        if not membership.leading:
            self.counted = {}
        response = await self._call(membership.sync_request(partitions), self._join_timeout_ms)
        if response is None:
            await self._pause()
            return False
        return await self._proceed(membership.synced(response)) and not membership.needs_join

    async def _proceed(self, what: Next) -> bool:
        if what is Next.GO_ON:
            return True
        if what is Next.FIND_COORDINATOR:
            self._cluster.forget_coordinator("group", self.membership.group_id)
        await self._pause()
        return False

    async def _pause(self) -> None:
        await asyncio.sleep(self._backoff.next_ms(random.random()) / 1000)

    async def _count_partitions(self) -> dict[str, int]:
        """Number of partitions of every topic that a member reads; unknown ones have none."""
        topics = {topic for wanted in self.membership.members.values() for topic in wanted}
        counts = {}
        for topic in topics:
            with contextlib.suppress(errors.KafkaError):
                counts[topic] = len((await self._cluster.topic(topic)).partitions)
        self.counted = {topic: counts.get(topic, 0) for topic in sorted(topics)}
        return counts

    def compare_counts(self) -> None:
        """Join anew if topics that this member has divided have come or grown (ConsumerCoordinator's snapshots)."""
        known = self._cluster.topology.topics
        if any(topic in known and len(known[topic].partitions) != count for topic, count in self.counted.items()):
            self.membership.needs_join = True

    async def _beat(self) -> None:
        """Heartbeats while this is a member; leaves when the user has not polled for max.poll.interval.ms."""
        membership = self.membership
        while membership.state is State.STABLE or self._joining is not None:
            await asyncio.sleep(self._interval)
            if membership.state is not State.STABLE or self._joining is not None:
                continue
            if self._loop.time() - self._last_poll > self._poll_interval:
                await self._send_leave()
                membership.forget()
                return
            generation = membership.generation_id
            response = await self._call(membership.heartbeat_request())
            if response is None:
                continue
            try:
                what = membership.heartbeat_answered(ErrorCode.of(response.error_code), generation)
            except errors.KafkaError as error:
                self._failure = error
                self._reader.notify()
                return
            if what is Next.FIND_COORDINATOR:
                self._cluster.forget_coordinator("group", membership.group_id)
            if membership.needs_join:
                self._reader.notify()

    async def _send_leave(self) -> None:
        request = self.membership.leave_request()
        if request is not None:
            await self._call(request)

    async def leave(self) -> None:
        """Go; the others get our partitions at once."""
        await self.stop()
        await self._send_leave()
        self.membership.forget()

    async def stop(self) -> None:
        """No join and no heartbeat any more; the group finds out by session.timeout.ms."""
        tasks = [task for task in (self._joining, self._beating) if task is not None]
        self._joining = self._beating = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
