"""The driver of a membership in a classic group: joins when told to, keeps it alive by heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client.consumer.classic_group import Membership, Next, State
from oncelog.client.consumer.member import Member, cancel
from oncelog.net.connection import NoCommonVersionError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.join_group import JoinGroupRequest

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader
    from oncelog.client.consumer.subscription import Subscription

JOIN_SLACK_MS = 5_000

NAMES_FIRST = 4
"""The version of JoinGroup from which on a new member is told its id at once, and joins under it (KIP-394)."""

HELD = (State.JOINING, State.SYNCING)
"""States whose request the coordinator answers when the other members have come."""


class ClassicMember(Member[Membership]):
    """A reader's place in a group of which a member divides the partitions."""

    def __init__(self, reader: Reader, subscription: Subscription) -> None:
        options = reader.options
        membership = Membership(
            options["group_id"],
            instance_id=options["group_instance_id"],
            session_timeout_ms=options["session_timeout_ms"],
            rebalance_timeout_ms=options["max_poll_interval_ms"],
            strategies=options["partition_assignment_strategy"],
            rack=options["client_rack"] or None,
        )
        super().__init__(reader, subscription, membership)
        self._interval = options["heartbeat_interval_ms"] / 1000
        self._join_timeout_ms = options["max_poll_interval_ms"] + JOIN_SLACK_MS
        self._joining: asyncio.Task[bool] | None = None
        self._leaving = False
        """Whether the join under way is to end when the coordinator has named us."""
        self._pattern: re.Pattern[str] | None = None
        self._next_look = 0.0
        self._counted: dict[str, int] = {}
        """Partitions by topic as the leader divided them last, 0 for a topic that did not exist; else empty."""

    @property
    def intact(self) -> bool:
        """Whether the partitions are ours for sure: the membership has not ended, and no rebalance is under way."""
        return super().intact and self._joining is None

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Read these topics, or those that match, from the next join on."""
        self._pattern = pattern
        self._next_look = 0.0
        if pattern is None:
            self.membership.subscribe(topics)

    async def keep(self, limit: float) -> bool:
        """Be a member with a current assignment; False when time is up before there is anything to read.

        A cooperative member goes on reading what it has while it joins.
        """
        await self._look_for_topics()
        self._raise_failure()
        membership = self.membership
        if not membership.needs_join and self._joining is None:
            self._go_on_beating()
            return True
        if self._joining is None:
            await self._prepare()
            membership.owned = list(self._reader.states)
            self._joining = self._loop.create_task(self._join())
            self._joining.add_done_callback(lambda _: self._reader.notify())
        reading = bool(self._reader.states)
        await self._reader.wait(0 if reading else limit - self._loop.time(), self._joining)
        if not self._joining.done():
            return reading
        task, self._joining = self._joining, None
        return await task and not membership.lost and await self._complete()

    async def _prepare(self) -> None:
        """Give up what cannot be kept during a rebalance (onJoinPrepare of Java's ConsumerCoordinator)."""
        revoke, states = self._subscription.revoke, list(self._reader.states)
        if self.membership.lost:
            await revoke(states, lost=True)
        elif not self.membership.cooperative:
            await revoke(states)
        else:
            await self._reader.commits.before_rebalance()
            await revoke([tp for tp in states if tp[0] not in self.membership.topics])

    async def _complete(self) -> bool:
        """Take the new assignment (onJoinComplete); False if it is for a former subscription."""
        membership = self.membership
        assigned = list(membership.assignment)
        if self._pattern is None and any(topic not in membership.topics for topic, _ in assigned):
            membership.needs_join = True
            return False
        gone = set(self._reader.states).difference(assigned)
        if gone:  # others get them once all know that they are free
            membership.needs_join = True
        try:
            await self._subscription.revoke(gone)
        finally:
            await self._subscription.take(assigned)
        return True

    async def _look_for_topics(self) -> None:
        """Now and then: topics that the pattern matches, and partitions that the group's leader has not divided."""
        options = self._reader.options
        if self._loop.time() < self._next_look or (self._pattern is None and not self._counted):
            return
        if self._pattern is not None:
            found = await self._cluster.topics(internal=not options["exclude_internal_topics"])
            self.membership.subscribe([name for name in found if self._pattern.search(name)])
        else:
            with contextlib.suppress(errors.ConnectionFailedError):  # looks again the next time
                await self._cluster.refresh(self._counted, create=options["allow_auto_create_topics"])
        self._compare_counts()
        soon = 0 in self._counted.values()  # a topic is to come yet
        wait_ms = options["retry_backoff_max_ms" if soon else "metadata_max_age_ms"]
        self._next_look = self._loop.time() + wait_ms / 1000

    async def _join(self) -> bool:
        """Through JoinGroup and SyncGroup, as often as it takes; False if what was kept meanwhile has been lost."""
        while not await self._join_once():
            if self._leaving or (self.membership.lost and self._reader.states):
                return False
        self._backoff.reset()
        return True

    async def _join_once(self) -> bool:
        """One round; whether it has led to an assignment. KafkaError if there is no way in."""
        membership = self.membership
        response = await self._call(membership.join_request(), self._join_timeout_ms)
        if response is None:
            await self._sleep()
            return False
        if not await self._proceed(membership.joined(response)) or membership.state is not State.SYNCING:
            return False
        self._go_on_beating()  # the user may take his time to poll, and take the assignment
        partitions = await self._count_partitions() if membership.leading else {}
        if not membership.leading:
            self._counted = {}
        response = await self._call(membership.sync_request(partitions), self._join_timeout_ms)
        if response is None:
            await self._sleep()
            return False
        return await self._proceed(membership.synced(response)) and not membership.needs_join

    async def _proceed(self, what: Next) -> bool:
        if what is Next.GO_ON:
            return True
        if what is Next.FIND_COORDINATOR:
            self._forget_coordinator()
        await self._sleep()
        return False

    async def _sleep(self) -> None:
        await asyncio.sleep(self._pause())

    async def _count_partitions(self) -> dict[str, int]:
        """Number of partitions of every topic that a member reads; unknown ones have none."""
        topics = {topic for wanted in self.membership.members.values() for topic in wanted}
        known = self._cluster.topology.topics
        if not topics <= known.keys():
            with contextlib.suppress(errors.ConnectionFailedError):  # then with what is known: it looks again soon
                await self._cluster.refresh(topics, create=self._reader.options["allow_auto_create_topics"])
        counts = {topic: len(known[topic].partitions) for topic in topics if topic in known}
        self._counted = {topic: counts.get(topic, 0) for topic in sorted(topics)}
        if 0 in self._counted.values():
            self._next_look = 0.0
        return counts

    def _compare_counts(self) -> None:
        """Join anew if topics that this member has divided have come or grown (ConsumerCoordinator's snapshots)."""
        known = self._cluster.topology.topics
        if any(topic in known and len(known[topic].partitions) != count for topic, count in self._counted.items()):
            self.membership.needs_join = True

    def _go_on_beating(self) -> None:
        if self._beating is None or self._beating.done():
            self._beating = self._loop.create_task(self._beat())

    async def _beat(self) -> None:
        """Heartbeats while this is a member; leaves when the user has not polled for max.poll.interval.ms."""
        membership = self.membership
        while membership.state is State.STABLE or self._joining is not None:
            await asyncio.sleep(self._interval)
            joining = self._joining is not None and not self._joining.done()
            if membership.state is not State.STABLE or joining:
                if not self._between_requests:
                    continue
            elif self._overdue:
                await self._make_room()
                return
            try:
                await self._heartbeat()
            except (errors.KafkaError, NoCommonVersionError) as error:
                self._fail(error if isinstance(error, errors.KafkaError) else errors.UnsupportedError(str(error)))
                return
            if membership.needs_join:
                self._reader.notify()

    @property
    def _between_requests(self) -> bool:
        """Whether JoinGroup is answered and SyncGroup not sent yet: the leader asks others for partitions, the
        coordinator has nothing of ours, and the session runs on.
        """
        connection = self._connection
        return self.membership.state is State.SYNCING and connection is not None and not connection.in_flight

    async def _heartbeat(self) -> None:
        """One. KafkaError; while joining, what the answer means is told by SyncGroup's as well."""
        membership = self.membership
        generation = membership.generation_id
        response = await self._call(membership.heartbeat_request())
        if response is None or membership.state is not State.STABLE:
            return
        what = membership.heartbeat_answered(ErrorCode.of(response.error_code), generation)
        if what is Next.FIND_COORDINATOR:
            self._forget_coordinator()

    async def leave(self) -> None:
        """Go, also while a join is under way; the others get our partitions at once."""
        if self._joining is not None and self._being_named:
            self._leaving = True
            await asyncio.wait([self._joining], timeout=self._reader.options["request_timeout_ms"] / 1000)
        await super().leave()

    @property
    def _being_named(self) -> bool:
        """Whether an answer is about to say who we are, without which the coordinator cannot be told that we go."""
        connection = self._connection
        if connection is None or connection.closed or not self.membership.unnamed:
            return False
        return connection.version_for(JoinGroupRequest) >= NAMES_FIRST

    async def _send_leave(self) -> None:
        connection = self._connection
        if connection is not None and connection.in_flight and self.membership.state in HELD:
            connection.close("the consumer leaves its group")  # a broker reads on when it has answered, and it does not
        await super()._send_leave()

    async def stop(self) -> None:
        """No join and no heartbeat any more; the group finds out by session.timeout.ms."""
        tasks = (self._joining, self._beating)
        self._joining = self._beating = None
        await cancel(*tasks)
