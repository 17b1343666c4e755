"""A group that rebalances in worlds with three brokers: members join, commit, and leave or disappear."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from oncelog.protocol.schema import Message
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support.cluster_clients import TOPIC, Client, Routes
from support.cluster_plans import PARTITIONS, Membership, Work
from support.raw_client import RETRIABLE, RETRY_S, RefusedError
from support.replica_invariants import InvariantError

TEAM = "team"
SESSION_MS = 1500
REBALANCE_MS = 1000
ROUND_S = 0.15


def _join_error(response: Any) -> int:
    code: int = response.error_code
    return 0 if code == ErrorCode.MEMBER_ID_REQUIRED else code


class _LostError(Exception):
    """The member has to join again."""


class _Member(Client):
    def __init__(self, routes: Routes) -> None:
        super().__init__(routes, "")
        self.member_id = ""
        self.generation = -1

    def _broker_of(self, request: Message) -> int:
        return self.routes.coordinator(CONSUMER_OFFSETS, TEAM)

    async def once(self, request: Message, error_of: Any, version: int) -> None:
        """Send a request of the generation until it succeeds. Raises _LostError.

        If a connection is lost, the request may still arrive. So join as another member, which makes it void.
        """
        while True:
            try:
                response = await (await self.connection(self._broker_of(request))).call(request, version)
            except ConnectionLostError as error:
                self.member_id = ""
                raise _LostError from error
            code = error_of(response)
            if not code:
                return
            if code not in RETRIABLE:
                if code == ErrorCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                raise _LostError
            await asyncio.sleep(RETRY_S)

    async def join(self) -> list[int]:
        """Join the group, and return the assigned partitions. Raises RefusedError if the group has changed again."""
        response: Any = None
        while response is None or response.error_code:
            protocol = JoinGroupRequestProtocol(name="spread", metadata=b"")
            request = JoinGroupRequest(
                group_id=TEAM,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            )
            response = await self.call(request, _join_error)
            self.member_id = response.member_id
        self.generation = response.generation_id
        shares = []
        if response.leader == self.member_id:
            members = sorted(each.member_id for each in response.members)
            for index, name in enumerate(members):
                mine = b",".join(b"%d" % number for number in range(PARTITIONS) if number % len(members) == index)
                shares.append(SyncGroupRequestAssignment(member_id=name, assignment=mine))
        sync = SyncGroupRequest(
            group_id=TEAM,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="spread",
            assignments=shares,
        )
        response = await self.call(sync)
        return [int(number) for number in response.assignment.split(b",") if number]


class Team:
    """Members commit increasing offsets. The next owner of a partition finds the last committed one. Invariant 10."""

    def __init__(self, routes: Routes, outcomes: Counter[str]) -> None:
        self.over = False
        self._routes = routes
        self._outcomes = outcomes
        self._commits = [(-1, -1)] * PARTITIONS
        """The last acknowledged offset of each partition, and the last one that was sent."""

    async def live(self, index: int, workload: list[Work], rng: random.Random) -> None:
        """Carry out the steps of one member."""
        for work in workload:
            if isinstance(work, Membership) and work.member == index and not self.over:
                await self._live_once(work, rng)
                await asyncio.sleep(work.pause_s)

    async def _live_once(self, work: Membership, rng: random.Random) -> None:
        member, left = _Member(self._routes), work.count
        while not self.over:
            try:
                partitions = await member.join()
                offsets = {number: await self.check_offset(member, number) for number in partitions}
                self._outcomes["joins"] += 1
                while left and not self.over:
                    left -= 1
                    await self._round(member, offsets, rng)
            except _LostError:
                continue
            except RefusedError as error:
                if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
                    member.member_id = ""
                await asyncio.sleep(RETRY_S)
                continue
            break
        if work.leave and member.member_id:
            request = LeaveGroupRequest(group_id=TEAM, members=[MemberIdentity(member_id=member.member_id)])
            await member.call(request)

    async def _round(self, member: _Member, offsets: dict[int, int], rng: random.Random) -> None:
        """Commit the next offset of each partition. Now and then, stop for longer than the session lasts before it."""
        heartbeat = HeartbeatRequest(group_id=TEAM, generation_id=member.generation, member_id=member.member_id)
        await member.once(heartbeat, lambda r: r.error_code, 4)
        await asyncio.sleep(2 * SESSION_MS / 1000 if rng.random() < 0.03 else rng.uniform(0, 2 * ROUND_S))
        for number in offsets:
            offset = offsets[number] = offsets[number] + 1
            acknowledged, most = self._commits[number]
            self._commits[number] = acknowledged, max(most, offset)
            wanted = OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
            request = OffsetCommitRequest(
                group_id=TEAM,
                generation_id_or_member_epoch=member.generation,
                member_id=member.member_id,
                topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[wanted])],
            )
            await member.once(request, lambda r: r.topics[0].partitions[0].error_code, 9)
            acknowledged, most = self._commits[number]
            if offset < acknowledged:
                raise InvariantError(10, f"{TEAM}-{number}: {offset} was acknowledged after {acknowledged}")
            self._commits[number] = offset, most
            self._outcomes["team commits"] += 1

    async def end(self) -> None:
        """Wait until the sessions of all members have ended, because the coordinator writes when one ends."""
        member, request = _Member(self._routes), DescribeGroupsRequest(groups=[TEAM])
        while (await member.call(request, lambda r: r.groups[0].error_code)).groups[0].members:
            await asyncio.sleep(SESSION_MS / 1000)

    async def check_offset(self, client: Client, number: int, broker: int | None = None) -> int:
        """Return the offset of a partition, from its coordinator or if possible from a given broker."""
        least, _ = self._commits[number]
        if broker is None:
            found = await client.committed_offset(TEAM, TOPIC, number)
        else:
            answer = await client.offset_at(broker, TEAM, TOPIC, number)
            found = least if answer is None else answer
        most = self._commits[number][1]
        if not least <= found <= most:
            raise InvariantError(10, f"{TEAM}-{number} has {found}, but {least} to {most} were committed")
        return found

    async def check(self, client: Client, living: list[int]) -> None:
        """Check the offsets at the end, also on former coordinators."""
        for number in range(PARTITIONS):
            await self.check_offset(client, number)
            for broker in living:
                await self.check_offset(client, number, broker)
