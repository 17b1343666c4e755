"""The driver of a membership in a group with a server-side assignor (KIP-848): heartbeats in the background, changes of
the assignment inside `poll`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client.consumer.consumer_group import NOT_SERVED, ConsumerMembership, Next, as_re2
from oncelog.client.consumer.member import Member
from oncelog.client.types import TopicPartition
from oncelog.net.connection import NoCommonVersionError

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader
    from oncelog.client.consumer.subscription import Subscription


class ConsumerMember(Member[ConsumerMembership]):
    """A reader's place in a group of which the coordinator divides the partitions."""

    def __init__(self, reader: Reader, subscription: Subscription) -> None:
        options = reader.options
        membership = ConsumerMembership(
            options["group_id"],
            str(uuid.uuid4()),
            instance_id=options["group_instance_id"],
            rack=options["client_rack"] or None,
            rebalance_timeout_ms=options["max_poll_interval_ms"],
            assignor=options["group_remote_assignor"],
        )
        super().__init__(reader, subscription, membership)
        self._wake = asyncio.Event()
        self._next_names = 0.0
        self._looked = False

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Read these topics, or those that match: the broker looks for the pattern, but in whole names only."""
        self.membership.subscribe(topics, "" if pattern is None else as_re2(pattern))
        self._wake.set()

    async def keep(self, limit: float) -> bool:
        """Be a member, and follow what the coordinator has assigned; False when time is up before it has."""
        self._raise_failure()
        membership = self.membership
        if membership.lost:
            await self._subscription.revoke(list(self._reader.states), lost=True)
            membership.rejoin()
            self._wake.set()
        if self._beating is None or self._beating.done():
            self._beating = self._loop.create_task(self._beat())
        if membership.target is None:
            await self._reader.wait(limit - self._loop.time())
        elif not self._looked:
            self._looked = True
            names = self._cluster.topology.names
            self._reader.metadata_watch.assigned(
                self._subscription.topics, [names[topic] for topic, _ in membership.target if topic in names]
            )
        if membership.due:
            await self._follow()
        return bool(self._reader.states)

    async def _follow(self) -> None:
        """Let go what is not ours any more, take what is new, and report it."""
        membership = self.membership
        target = set(membership.target or ())
        names = self._cluster.topology.names
        if any(topic_id not in names for topic_id, _ in target) and self._loop.time() >= self._next_names:
            self._next_names = self._loop.time() + self._reader.options["retry_backoff_ms"] / 1000
            with contextlib.suppress(errors.ConnectionFailedError):
                await self._cluster.refresh(None if membership.pattern else membership.topics)
            names = self._cluster.topology.names
        known = {(topic_id, partition) for topic_id, partition in target if topic_id in names}
        if known == membership.owned:
            return  # the rest is a topic that this broker has not heard of yet
        wanted: list[TopicPartition] = [(names[topic_id], partition) for topic_id, partition in known]
        try:
            await self._subscription.revoke(set(self._reader.states).difference(wanted))
            if membership.lost:
                return
        finally:
            if not membership.lost:
                membership.owned &= known
        try:
            await self._subscription.take(wanted)
        finally:
            if not membership.lost:
                membership.owned = known
                self._wake.set()

    async def _beat(self) -> None:
        """Heartbeats as long as this is a member or wants to be one."""
        membership = self.membership
        while True:
            if not membership.lost:
                if membership.epoch > 0 and self._overdue:
                    await self._make_room()
                    continue
                self._wake.clear()
                delay = await self._heartbeat()
                if delay is None:
                    return
            else:
                delay = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            self._wake.clear()

    async def _heartbeat(self) -> float | None:
        """One; seconds until the next one, None when there is none because this has failed for good."""
        membership = self.membership
        target, epoch = membership.target, membership.epoch
        try:
            response = await self._call(membership.heartbeat_request())
            if response is None:
                membership.failed()
                return self._pause()
            what = membership.answered(response, epoch)
        except (errors.KafkaError, NoCommonVersionError) as error:
            if isinstance(error, NoCommonVersionError):
                error = errors.UnsupportedError(f"{NOT_SERVED} ({error})")
            membership.forget()
            self._fail(error)
            return None
        if what is Next.GO_ON:
            self._backoff.reset()
            if membership.target is not target or membership.epoch != epoch:
                self._reader.notify()
            return membership.interval_ms / 1000
        if what is Next.FIND_COORDINATOR:
            self._forget_coordinator()
        if what is Next.GIVE_UP:
            self._reader.notify()
        return self._pause()
