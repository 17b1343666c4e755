"""The driver of a membership in a classic group: joins inside `poll`, and sends heartbeats in the background."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from oncelog import errors
from oncelog.client.consumer.background import Background, PollTimer, cancel
from oncelog.client.consumer.classic_membership import ClassicMembership, Followup, MemberState
from oncelog.client.consumer.group_waits import explain_wait, unjoined_members
from oncelog.client.consumer.member import Member
from oncelog.client.consumer.rebalance import Rebalancer
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.join_group import JoinGroupRequest

JOIN_SLACK_MS = 5_000

ID_BEFORE_JOIN = 4
"""The first version of JoinGroup in which the coordinator returns a new member's id before it joins (KIP-394)."""

HELD = (MemberState.JOINING, MemberState.SYNCING)
"""States in which the coordinator answers the request only when the other members have sent theirs."""


class ClassicMember(Member[ClassicMembership]):
    """Keep a consumer in a group in which a member assigns the partitions."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: Mapping[str, Any],
        rebalancer: Rebalancer,
        background: Background,
        poll_timer: PollTimer,
    ) -> None:
        membership = ClassicMembership(
            options["group_id"],
            instance_id=options["group_instance_id"],
            session_timeout_ms=options["session_timeout_ms"],
            rebalance_timeout_ms=options["max_poll_interval_ms"],
            strategies=options["partition_assignment_strategy"],
            rack=options["client_rack"] or None,
        )
        super().__init__(cluster, options, membership, rebalancer, background, poll_timer)
        self._interval = options["heartbeat_interval_ms"] / 1000
        self._join_timeout_ms = options["max_poll_interval_ms"] + JOIN_SLACK_MS
        self._joining: asyncio.Task[bool] | None = None
        self._leaving = False
        """Whether the current join ends when the coordinator has returned our member id."""
        self._pattern: re.Pattern[str] | None = None
        self._next_look = 0.0
        self._counted: dict[str, int] = {}
        """Partitions by topic in the last assignment that this member made; 0 for a topic that did not exist."""
        self._seen_version = 0
        """The version of the topology that was last compared with them."""

    @property
    def intact(self) -> bool:
        """Whether this member certainly owns its partitions: it is in the group, and no rebalance is in progress."""
        return super().intact and self._joining is None

    @property
    def joining(self) -> bool:
        """Whether JoinGroup or SyncGroup is in flight, so that the next generation begins or has begun."""
        return self._joining is not None and not self._joining.done()

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Read these topics, or the topics that match the pattern, from the next join on."""
        self._pattern = pattern
        self._next_look = 0.0
        if pattern is None:
            self.membership.subscribe(topics)

    # -- joining --------------------------------------------------------------------------------------------------

    async def ensure_active(self, limit: float) -> bool:
        """Join the group if needed. Return False if the timeout expires before there is an assignment.

        A cooperative member reads the partitions that it has while it joins.
        """
        await self._look_for_topics()
        self._raise_failure()
        membership = self.membership
        if not membership.needs_join and self._joining is None:
            self._start_heartbeats()
            return True
        if self._joining is None:
            await self._prepare()
            membership.owned = self._rebalancer.assigned
            self._joining = self._loop.create_task(self._join())
            self._joining.add_done_callback(lambda _: self._background.notify())
        reading = bool(self._rebalancer.assigned)
        await self._background.wait(0 if reading else limit - self._loop.time(), self._joining)
        if not self._joining.done():
            return reading
        task, self._joining = self._joining, None
        return await task and not membership.lost and await self._complete()

    async def _prepare(self) -> None:
        """Revoke the partitions that this member cannot keep in a rebalance (Java's onJoinPrepare)."""
        rebalancer = self._rebalancer
        if self.membership.lost:
            await rebalancer.revoke(rebalancer.assigned, lost=True)
        elif not self.membership.cooperative:
            await rebalancer.revoke(rebalancer.assigned)
        else:
            await rebalancer.revoke_unsubscribed(self.membership.topics)

    async def _complete(self) -> bool:
        """Apply the new assignment (Java's onJoinComplete). Return False if it is for a former subscription."""
        membership = self.membership
        assigned = list(membership.assignment)
        if self._pattern is None and any(topic not in membership.topics for topic, _ in assigned):
            membership.needs_join = True
            return False
        revoked = set(self._rebalancer.assigned).difference(assigned)
        if revoked:  # other members get them in the next rebalance
            membership.needs_join = True
        try:
            await self._rebalancer.revoke(revoked)
        finally:
            await self._rebalancer.assign(assigned)
        return True

    async def _join(self) -> bool:
        """Send JoinGroup and SyncGroup until there is an assignment. Return False if the old one was lost meanwhile."""
        wait = self._loop.create_task(self._explain_wait())
        try:
            while not await self._join_once():
                if self._leaving or (self.membership.lost and self._rebalancer.assigned):
                    return False
            self._backoff.reset()
            return True
        finally:
            await cancel(wait)

    async def _explain_wait(self) -> None:
        membership, session_ms = self.membership, self._options["session_timeout_ms"]

        def own_id() -> str:
            return membership.instance_id or membership.member_id

        group = membership.group_id
        await explain_wait(group, lambda: unjoined_members(self._cluster, group, own_id, session_ms))

    async def _join_once(self) -> bool:
        """Return whether one round has led to an assignment. Raise KafkaError if a retry would not help."""
        membership = self.membership
        response = await self._call(membership.join_request(), self._join_timeout_ms)
        if response is None:
            await self._sleep()
            return False
        if not await self._proceed(membership.joined(response)) or membership.state is not MemberState.SYNCING:
            return False
        self._start_heartbeats()  # the user may not poll soon, and the assignment waits for a poll
        partitions = await self._count_partitions() if membership.leading else {}
        if not membership.leading:
            self._counted = {}
        response = await self._call(membership.sync_request(partitions), self._join_timeout_ms)
        if response is None:
            await self._sleep()
            return False
        return await self._proceed(membership.synced(response)) and not membership.needs_join

    async def _proceed(self, followup: Followup) -> bool:
        if followup is Followup.PROCEED:
            return True
        if followup is Followup.FIND_COORDINATOR:
            self._forget_coordinator()
        await self._sleep()
        return False

    async def _sleep(self) -> None:
        await asyncio.sleep(self._backoff.next_s())

    # -- topics ---------------------------------------------------------------------------------------------------

    async def _look_for_topics(self) -> None:
        """Check at intervals for new topics that match the pattern, and for partitions that are not assigned."""
        options = self._options
        self._see_changes()
        if self._loop.time() < self._next_look or (self._pattern is None and not self._counted):
            return
        if self._pattern is not None:
            found = await self._cluster.topics(internal=not options["exclude_internal_topics"])
            self.membership.subscribe([name for name in found if self._pattern.search(name)])
        else:
            with contextlib.suppress(errors.ConnectionFailedError):  # the next check retries
                await self._cluster.refresh(self._counted, create=options["allow_auto_create_topics"])
        self._compare_counts()
        soon = 0 in self._counted.values()  # a topic does not exist yet
        wait_ms = options["retry_backoff_max_ms" if soon else "metadata_max_age_ms"]
        self._next_look = self._loop.time() + wait_ms / 1000

    async def _count_partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic that a member reads. Omit topics that do not exist."""
        topics = {topic for wanted in self.membership.members.values() for topic in wanted}
        known = self._cluster.topology.topics
        if not topics <= known.keys():
            with contextlib.suppress(
                errors.ConnectionFailedError
            ):  # the leader then assigns known topics, and later the others
                await self._cluster.refresh(topics, create=self._options["allow_auto_create_topics"])
        counts = {topic: len(known[topic].partitions) for topic in topics if topic in known}
        self._counted = {topic: counts.get(topic, 0) for topic in sorted(topics)}
        if 0 in self._counted.values():
            self._next_look = 0.0
        return counts

    def _see_changes(self) -> None:
        """Compare at once after each Metadata response, which a Fetch error may have caused, as Java does."""
        topology = self._cluster.topology
        if topology.version == self._seen_version:
            return
        self._seen_version = topology.version
        if self._pattern is None:
            self._compare_counts()
        elif any(topology.lacks(topic, 0) for topic in self.membership.topics):
            self._next_look = 0.0

    def _compare_counts(self) -> None:
        """Join again if topics that this member has assigned are new, have grown or were deleted.

        Java compares a MetadataSnapshot.
        """
        topology = self._cluster.topology
        known = topology.topics
        for topic, count in self._counted.items():
            now = len(known[topic].partitions) if topic in known else 0 if topology.lacks(topic, 0) else count
            if now != count:
                self.membership.needs_join = True

    # -- heartbeats -----------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        """Send heartbeats while this is a member. Leave if the user has not polled for max.poll.interval.ms."""
        membership = self.membership
        while membership.state is MemberState.STABLE or self._joining is not None:
            await asyncio.sleep(self._interval)
            if membership.state is not MemberState.STABLE or self.joining:
                if not self._between_requests:
                    continue
            elif self._poll_timer.expired:
                await self._leave_until_next_poll()
                return
            await self._heartbeat()
            if membership.needs_join:
                self._background.notify()

    @property
    def _between_requests(self) -> bool:
        """Whether JoinGroup is answered and SyncGroup is not sent yet, because the leader requests metadata.

        The coordinator has no request of this member then, so the session can time out.
        """
        connection = self._connection
        return self.membership.state is MemberState.SYNCING and connection is not None and not connection.in_flight

    async def _heartbeat(self) -> None:
        """Send one heartbeat. Raise KafkaError if a retry would not help. While joining, SyncGroup reports the same."""
        membership = self.membership
        generation = membership.generation_id
        response = await self._call(membership.heartbeat_request())
        if response is None or membership.state is not MemberState.STABLE:
            return
        followup = membership.heartbeat_answered(ErrorCode.of(response.error_code), generation)
        if followup is Followup.FIND_COORDINATOR:
            self._forget_coordinator()

    # -- leaving --------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Leave the group, also during a join, so that other members get the partitions at once."""
        if self._joining is not None and self._awaits_member_id:
            self._leaving = True
            await asyncio.wait([self._joining], timeout=self._options["request_timeout_ms"] / 1000)
        await super().leave()

    @property
    def _awaits_member_id(self) -> bool:
        """Whether the next response has our member id. Without it, this member cannot leave."""
        connection = self._connection
        if connection is None or connection.closed or not self.membership.awaits_member_id:
            return False
        return connection.version_for(JoinGroupRequest) >= ID_BEFORE_JOIN

    async def _send_leave(self) -> None:
        connection = self._connection
        if connection is not None and connection.in_flight and self.membership.state in HELD:
            connection.close("the consumer is leaving its group")  # the broker reads no request before it has answered
        await super()._send_leave()

    async def stop(self) -> None:
        """End the join and the heartbeats. The coordinator removes this member after session.timeout.ms."""
        joining, self._joining = self._joining, None
        await cancel(joining)
        await super().stop()
