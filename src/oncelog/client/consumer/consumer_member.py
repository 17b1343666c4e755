"""The driver of a membership in a group with a server-side assignor (KIP-848): heartbeats in the background, changes of
the assignment inside `poll`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.consumer.classic_member import SLOW
from oncelog.client.consumer.consumer_group import NOT_SERVED, ConsumerMembership, Next, as_re2
from oncelog.client.group_metadata import GroupMetadata
from oncelog.client.types import TopicPartition
from oncelog.net.connection import ConnectionLostError, NoCommonVersionError
from oncelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader
    from oncelog.client.consumer.subscription import Subscription

log = logging.getLogger(__name__)


class ConsumerMember:
    """A reader's place in its group."""

    def __init__(self, reader: Reader, subscription: Subscription) -> None:
        options = reader.options
        self._reader = reader
        self._subscription = subscription
        self._cluster = reader.cluster
        self._loop = reader.loop
        self.membership = ConsumerMembership(
            options["group_id"],
            str(uuid.uuid4()),
            instance_id=options["group_instance_id"],
            rack=options["client_rack"] or None,
            rebalance_timeout_ms=options["max_poll_interval_ms"],
            assignor=options["group_remote_assignor"],
        )
        self._poll_interval = options["max_poll_interval_ms"] / 1000
        self._last_poll = reader.loop.time()
        self._beating: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failure: errors.KafkaError | None = None
        self._backoff = Backoff(options["retry_backoff_ms"], options["retry_backoff_max_ms"])
        self._next_names = 0.0
        self._looked = False

    def metadata(self) -> GroupMetadata:
        """Who commits."""
        return self.membership.metadata()

    @property
    def intact(self) -> bool:
        """Whether the partitions are ours for sure."""
        return not self.membership.lost and self._failure is None

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Read these topics, or those that match: the broker looks for the pattern, but in whole names only."""
        self.membership.subscribe(topics, "" if pattern is None else as_re2(pattern))
        self._wake.set()

    async def keep(self, limit: float) -> bool:
        """Be a member, and follow what the coordinator has assigned; False when time is up before it has."""
        self._last_poll = self._loop.time()
        if self._failure is not None:
            raise self._failure
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
                if membership.epoch > 0 and self._loop.time() - self._last_poll > self._poll_interval:
                    await self._stale()
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

    async def _stale(self) -> None:
        """The user has not polled for max.poll.interval.ms: the others get our partitions."""
        log.warning(SLOW, self._poll_interval * 1000, self.membership.group_id)
        await self._send_leave()
        self.membership.forget()
        self._reader.notify()

    async def _heartbeat(self) -> float | None:
        """One; seconds until the next one, None when there is none because this has failed for good."""
        membership = self.membership
        target, epoch = membership.target, membership.epoch
        try:
            response = await self._call(membership.heartbeat_request())
            if response is None:
                membership.failed()
                return self._backoff.next_ms(random.random()) / 1000
            what = membership.answered(response, epoch)
        except (errors.KafkaError, NoCommonVersionError) as error:
            if isinstance(error, NoCommonVersionError):
                error = errors.UnsupportedError(f"{NOT_SERVED} ({error})")
            self._failure = error
            membership.forget()
            self._reader.notify()
            return None
        if what is Next.GO_ON:
            self._backoff.reset()
            if membership.target is not target or membership.epoch != epoch:
                self._reader.notify()
            return membership.interval_ms / 1000
        if what is Next.FIND_COORDINATOR:
            self._cluster.forget_coordinator("group", membership.group_id)
        if what is Next.GIVE_UP:
            self._reader.notify()
        return self._backoff.next_ms(random.random()) / 1000

    async def _call(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse | None:
        group = self.membership.group_id
        try:
            node = await self._cluster.coordinator("group", group)
            connection = await self._cluster.connection(node, "group")
            response: ConsumerGroupHeartbeatResponse = await connection.call(request)
            return response
        except (ConnectionLostError, errors.RetriableError):
            self._cluster.forget_coordinator("group", group)
            return None

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
        """No heartbeat any more; the group finds out by its session time-out."""
        task, self._beating = self._beating, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
