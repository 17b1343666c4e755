"""The driver of a membership in a group with a server-side assignor (KIP-848).

It sends heartbeats in the background, and changes the assignment inside `poll`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from oncelog import errors
from oncelog.client.consumer.background import Background, PollTimer, cancel
from oncelog.client.consumer.consumer_membership import NOT_SERVED, ConsumerMembership, HeartbeatResult, as_re2
from oncelog.client.consumer.group_waits import explain_wait, partition_owners
from oncelog.client.consumer.member import Member
from oncelog.client.consumer.rebalance import Rebalancer
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.net.connection import NoCommonVersionError
from oncelog.protocol.topics import TopicPartition


class ConsumerMember(Member[ConsumerMembership]):
    """Keep a consumer in a group in which the coordinator assigns the partitions."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: Mapping[str, Any],
        rebalancer: Rebalancer,
        background: Background,
        poll_timer: PollTimer,
    ) -> None:
        membership = ConsumerMembership(
            options["group_id"],
            str(uuid.uuid4()),
            instance_id=options["group_instance_id"],
            rack=options["client_rack"] or None,
            rebalance_timeout_ms=options["max_poll_interval_ms"],
            assignor=options["group_remote_assignor"],
        )
        super().__init__(cluster, options, membership, rebalancer, background, poll_timer)
        self._wake = asyncio.Event()
        """Set when the next heartbeat must not wait for its interval."""
        self._next_names = 0.0
        self._names_backoff = cluster.backoff()
        self._reported = False
        """Whether missing topics were reported after the first assignment."""
        self._wait: asyncio.Task[None] | None = None
        """Explains why this member has no partitions, while it has none."""

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Read these topics, or the topics whose whole names match the pattern, which the broker applies."""
        self.membership.subscribe(topics, "" if pattern is None else as_re2(pattern))
        self._wake.set()

    async def ensure_active(self, limit: float) -> bool:
        """Join the group and apply the assignment. Return False if the timeout expires before there is one."""
        self._raise_failure()
        membership = self.membership
        if membership.lost:
            await self._rebalancer.revoke(self._rebalancer.assigned, lost=True)
            membership.rejoin()
            self._wake.set()
        self._start_heartbeats()
        if membership.target is None:
            await self._background.wait(limit - self._loop.time())
        elif not self._reported:
            self._reported = True
            names = self._cluster.topology.names
            self._rebalancer.report_missing_topics([names[topic] for topic, _ in membership.target if topic in names])
        if membership.needs_reconciliation:
            await self._reconcile()
        active = bool(self._rebalancer.assigned)
        if active:
            await self._end_wait()
        elif self._wait is None and membership.epoch > 0:
            group, member = membership.group_id, membership.member_id
            reason = partial(partition_owners, self._cluster, group, member)
            self._wait = self._loop.create_task(explain_wait(group, reason))
        return active

    async def _end_wait(self) -> None:
        if self._wait is not None:
            wait, self._wait = self._wait, None
            await cancel(wait)

    async def stop(self) -> None:
        """Send no more heartbeats. The coordinator removes this member after its session timeout."""
        await self._end_wait()
        await super().stop()

    async def _reconcile(self) -> None:
        """Revoke partitions that are not in the target assignment, add the new ones, and report them."""
        membership = self.membership
        target = set(membership.target or ())
        names = self._cluster.topology.names
        if all(topic_id in names for topic_id, _ in target):
            self._names_backoff.reset()
        elif self._loop.time() >= self._next_names:
            self._next_names = self._loop.time() + self._names_backoff.next_s()
            with contextlib.suppress(errors.ConnectionFailedError):
                await self._cluster.refresh(None if membership.pattern else membership.topics)
            names = self._cluster.topology.names
        known = {(topic_id, partition) for topic_id, partition in target if topic_id in names}
        if known == membership.owned:
            return  # the rest belongs to a topic whose metadata the broker does not have yet
        wanted: list[TopicPartition] = [(names[topic_id], partition) for topic_id, partition in known]
        kept = {(names[topic_id], partition) for topic_id, partition in known & membership.owned}
        try:  # a partition of a topic that was created again is another partition, although it has the same name
            await self._rebalancer.revoke(set(self._rebalancer.assigned).difference(kept))
            if membership.lost:
                return
        finally:
            if not membership.lost:
                membership.owned &= known
        try:
            await self._rebalancer.assign(wanted)
        finally:
            if not membership.lost:
                membership.owned = known
                self._wake.set()

    async def _send_heartbeats(self) -> None:
        """Send heartbeats while this is a member or joins."""
        membership = self.membership
        while True:
            if not membership.lost:
                if membership.epoch > 0 and self._poll_timer.expired:
                    await self._leave_until_next_poll()
                    continue
                self._wake.clear()
                delay: float | None = await self._heartbeat()
            else:
                delay = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            self._wake.clear()

    async def _heartbeat(self) -> float:
        """Send one heartbeat; return the seconds until the next. Raise KafkaError if a retry would not help."""
        membership = self.membership
        target, epoch = membership.target, membership.epoch
        try:
            response = await self._call(membership.heartbeat_request())
            if response is None:
                membership.failed()
                return self._backoff.next_s()
            result = membership.answered(response, epoch)
        except errors.KafkaError:
            membership.forget()
            raise
        except NoCommonVersionError as error:
            membership.forget()
            raise errors.UnsupportedError(f"{NOT_SERVED} ({error})") from error
        if result is HeartbeatResult.ACCEPTED:
            self._backoff.reset()
            if membership.target is not target or membership.epoch != epoch:
                self._background.notify()
            return membership.interval_ms / 1000
        if result is HeartbeatResult.FIND_COORDINATOR:
            self._forget_coordinator()
        if result is HeartbeatResult.FENCED:
            self._background.notify()
        return self._backoff.next_s()
