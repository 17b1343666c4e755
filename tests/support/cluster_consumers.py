"""The members of a group in worlds with three brokers, one class for each protocol."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from oncelog.protocol.schema import Message
from oncelog.protocol.topics import CONSUMER_OFFSETS
from support.cluster_clients import TOPIC, Client, Routes
from support.cluster_plans import PARTITIONS
from support.raw_client import RETRIABLE, RETRY_S, RefusedError

TEAM = "team"
SESSION_MS = 1500
"""Of both protocols: see the settings of brokers in `cluster_plans`."""
REBALANCE_MS = 1000
_REJOIN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND})
"""The errors after which a member has lost its partitions, and joins again."""


def _join_error(response: Any) -> int:
    code: int = response.error_code
    return 0 if code == ErrorCode.MEMBER_ID_REQUIRED else code


class LostError(Exception):
    """The member has to join again."""


class Member(Client):
    """A member that uses the classic protocol."""

    def __init__(self, routes: Routes, rng: random.Random) -> None:
        super().__init__(routes, "")
        self.rng = rng
        self.member_id = ""
        self.generation = -1
        """The generation, or the epoch."""
        self.partitions: set[int] = set()

    def _broker_of(self, request: Message) -> int:
        return self.routes.coordinator(CONSUMER_OFFSETS, TEAM)

    async def once(self, request: Message, error_of: Any, version: int) -> None:
        """Send a request of the generation until it succeeds. Raises LostError.

        If a connection is lost, the request may still arrive. So join as another member, which makes it void.
        """
        while True:
            try:
                response = await (await self.connection(self._broker_of(request))).call(request, version)
            except ConnectionLostError as error:
                self.member_id = ""
                raise LostError from error
            code = error_of(response)
            if not code:
                return
            if code not in RETRIABLE:
                if code == ErrorCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                raise LostError
            await asyncio.sleep(RETRY_S)

    async def join(self) -> None:
        """Join the group, and take the assigned partitions. Raises RefusedError if the group has changed again."""
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
        self.partitions = {int(number) for number in response.assignment.split(b",") if number}

    async def heartbeat(self) -> None:
        """Stay in the group. Raises LostError."""
        request = HeartbeatRequest(group_id=TEAM, generation_id=self.generation, member_id=self.member_id)
        await self.once(request, lambda r: r.error_code, 4)

    async def leave(self) -> None:
        """Leave the group."""
        await self.call(LeaveGroupRequest(group_id=TEAM, members=[MemberIdentity(member_id=self.member_id)]))


class Consumer(Member):
    """A member that uses the consumer protocol (KIP-848)."""

    async def join(self) -> None:
        """Join the group, and take the partitions that are free."""
        self.member_id = self.member_id or f"{self.rng.getrandbits(64):x}"
        self.generation, self.partitions = 0, set()
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Report what the member owns, and take what it is assigned. Raises LostError."""
        says_all = self.generation == 0
        while True:
            request = self._request(says_all=says_all)
            says_all = True  # the response to this one may be lost
            try:
                response: Any = await (await self.connection(self._broker_of(request))).call(request)
            except ConnectionLostError:
                await asyncio.sleep(RETRY_S)
                continue
            if response.error_code in _REJOIN:
                raise LostError
            if not response.error_code:
                break
            if response.error_code not in RETRIABLE:
                raise RefusedError(request, response.error_code)
            await asyncio.sleep(RETRY_S)
        self.generation = response.member_epoch
        if response.assignment is not None:
            self.partitions = {each for topic in response.assignment.topic_partitions for each in topic.partitions}

    def _request(self, *, says_all: bool) -> ConsumerGroupHeartbeatRequest:
        topic_id = self.routes.topic_id(TOPIC)
        assert topic_id is not None
        owned = [TopicPartitions(topic_id=topic_id, partitions=sorted(self.partitions))] if self.partitions else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=TEAM, member_id=self.member_id, member_epoch=self.generation, topic_partitions=owned
        )
        if says_all:
            request.rebalance_timeout_ms, request.subscribed_topic_names = REBALANCE_MS, [TOPIC]
        return request

    async def leave(self) -> None:
        """Leave the group, if it has the member."""
        request = ConsumerGroupHeartbeatRequest(group_id=TEAM, member_id=self.member_id, member_epoch=-1)
        await self.call(request, lambda r: 0 if r.error_code in _REJOIN else r.error_code)
