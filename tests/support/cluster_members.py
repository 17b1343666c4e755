"""A group that rebalances in worlds with three brokers: members join, commit, and leave or disappear.

In some worlds, it is a group of the consumer protocol, otherwise one of the classic protocol.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from support.cluster_clients import TOPIC, Client, Routes
from support.cluster_consumers import SESSION_MS, TEAM, Consumer, LostError, Member
from support.cluster_plans import PARTITIONS, Membership, Work
from support.raw_client import RETRY_S, RefusedError
from support.replica_invariants import InvariantError

ROUND_S = 0.15
KINDS: Mapping[str, type[Member]] = {"classic": Member, "consumer": Consumer}


def _describe_error(response: Any) -> int:
    """Return the error, if it is not that the group has the other protocol."""
    code: int = response.groups[0].error_code
    return 0 if code == ErrorCode.GROUP_ID_NOT_FOUND else code


class Team:
    """Members commit increasing offsets. The next owner of a partition finds the last committed one. Invariant 10."""

    def __init__(self, routes: Routes, outcomes: Counter[str]) -> None:
        self.over = False
        self._routes = routes
        self._outcomes = outcomes
        self._commits = [(-1, -1)] * PARTITIONS
        """The last acknowledged offset of each partition, and the last one that was sent."""
        self._owners: dict[tuple[int, int], str] = {}
        """The member that has had a partition, by the generation or epoch and the partition."""

    async def live(self, index: int, workload: list[Work], rng: random.Random) -> None:
        """Carry out the steps of one member."""
        for work in workload:
            if isinstance(work, Membership) and work.member == index and not self.over:
                await self._live_once(work, rng)
                await asyncio.sleep(work.pause_s)

    async def _live_once(self, work: Membership, rng: random.Random) -> None:
        member, left = KINDS[work.protocol](self._routes, rng), work.count
        while not self.over:
            try:
                await member.join()
                offsets: dict[int, int] = {}
                await self._take(member, offsets)
                self._outcomes["joins" if work.protocol == "classic" else "consumers' joins"] += 1
                while left and not self.over:
                    left -= 1
                    await self._round(member, offsets, rng)
            except LostError:
                continue
            except RefusedError as error:
                if error.code == ErrorCode.UNKNOWN_MEMBER_ID:
                    member.member_id = ""
                await asyncio.sleep(RETRY_S)
                continue
            break
        if work.leave and member.member_id:
            await member.leave()

    async def _take(self, member: Member, offsets: dict[int, int]) -> None:
        """Begin with the partitions that a member has got, and stop those that it must give up."""
        for number in offsets.keys() - member.partitions:
            del offsets[number]
        for number in sorted(member.partitions):
            owner = self._owners.setdefault((member.generation, number), member.member_id)
            if owner != member.member_id:
                raise InvariantError(10, f"{TEAM}-{number} is {owner}'s and {member.member_id}'s")
            if number not in offsets:
                offsets[number] = await self.check_offset(member, number)

    async def _round(self, member: Member, offsets: dict[int, int], rng: random.Random) -> None:
        """Commit the next offset of each partition. Now and then, stop for longer than the session lasts before it."""
        await member.heartbeat()
        await self._take(member, offsets)
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
        member = Member(self._routes, random.Random(0))
        for request in (DescribeGroupsRequest(groups=[TEAM]), ConsumerGroupDescribeRequest(group_ids=[TEAM])):
            while (await member.call(request, _describe_error)).groups[0].members:
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
