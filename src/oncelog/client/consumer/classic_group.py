"""A member of a classic consumer group, without any I/O (KIP-62, 345, 394, 429, 447).

    UNJOINED -> JOINING -> SYNCING -> STABLE -> (rebalance) JOINING
        ^___________ member id unknown, generation gone, left ______|

`join_request` and `sync_request` are what is due, `joined` and `synced` take their answers in and tell what to do next.
Heartbeats are the driver's to send; `heartbeat_answered` says what they mean while STABLE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from oncelog import errors
from oncelog.client.consumer import protocol as consumer_protocol
from oncelog.client.consumer.assignors import ASSIGNORS, COOPERATIVE
from oncelog.client.consumer.protocol import decode_assignment, encode_assignment
from oncelog.client.consumer.sticky import Claim
from oncelog.client.group_offsets import NO_GENERATION, GroupMetadata
from oncelog.client.types import TopicPartition
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from oncelog.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from oncelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from oncelog.protocol.schema import Message

PROTOCOL_TYPE = "consumer"


class State(Enum):
    """Where a member stands."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Next(Enum):
    """What the driver does after an answer."""

    GO_ON = "send what is due"
    WAIT = "ask again after a back-off"
    FIND_COORDINATOR = "look the coordinator up, then ask again"


class Membership:
    """One member's side of one group."""

    def __init__(
        self,
        group_id: str,
        *,
        instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        strategies: Sequence[str] = ("range", "roundrobin"),
        rack: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.instance_id = instance_id
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.strategies = strategies
        """What we could divide by, best first; the group takes one that all its members know."""
        self.cooperative = set(strategies) <= COOPERATIVE
        """Whether partitions are kept during a rebalance: only where each way we could divide by allows it, as Java."""
        self.chosen = strategies[0]
        self.rack = rack
        self.state = State.UNJOINED
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self.topics: list[str] = []
        self.assignment: list[TopicPartition] = []
        self.owned: list[TopicPartition] = []
        """What this member still reads while it joins: nothing unless it is cooperative."""
        self.needs_join = True
        self.lost = False
        """Membership ended without our doing: partitions may be somebody else's already, do not commit."""
        self.members: dict[str, list[str]] = {}
        """Topics by member, known to the leader only, between join and sync."""
        self._claims: dict[str, Claim] = {}
        self._last: Claim | None = None
        """The last assignment, for the assignors that leave partitions where they are."""
        self._settled = GroupMetadata(group_id, group_instance_id=instance_id)

    @property
    def leading(self) -> bool:
        """Whether this member has to divide the partitions now."""
        return self.state is State.SYNCING and bool(self.members)

    def metadata(self) -> GroupMetadata:
        """What commits and transactions carry: who we were when the assignment was made, also after that has ended.

        Without generation and member the coordinator would take offsets from anybody, a zombie too (KIP-447).
        """
        return self._settled

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from the next join on."""
        wanted = sorted(set(topics))
        if wanted != self.topics:
            self.topics = wanted
            self.needs_join = True

    # -- joining --------------------------------------------------------------------------------------------------

    def join_request(self) -> JoinGroupRequest:
        """Enter the group, or its next generation."""
        self.state = State.JOINING
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(
                    name=strategy,
                    metadata=consumer_protocol.encode_subscription(
                        strategy, self.topics, Claim(self.owned, self.generation_id), self._last, self.rack
                    ),
                )
                for strategy in self.strategies
            ],
        )

    def joined(self, response: JoinGroupResponse) -> Next:
        """The answer to JoinGroup; KafkaError if there is no way in."""
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self.generation_id, self.member_id = response.generation_id, response.member_id
            self.state = State.SYNCING
            self.chosen = response.protocol_name or self.chosen
            self.members = {}
            if response.leader == response.member_id and not response.skip_assignment:
                found = {
                    member.member_id: consumer_protocol.decode_subscription(self.chosen, member.metadata)
                    for member in sorted(response.members, key=_place)
                }
                self.members = {member: topics for member, (topics, _) in found.items()}
                self._claims = {member: claim for member, (_, claim) in found.items()}
            return Next.GO_ON
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return Next.GO_ON
        return self._failed(code, "JoinGroup")

    def sync_request(self, partitions: Mapping[str, int]) -> SyncGroupRequest:
        """Fetch the assignment; the leader hands it out, given the number of `partitions` by topic."""
        assignments = []
        if self.members:
            divided = ASSIGNORS[self.chosen](partitions, self.members, self._claims)
            assignments = [
                SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(found))
                for member, found in divided.items()
            ]
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.chosen,
            assignments=assignments,
        )

    def synced(self, response: SyncGroupResponse) -> Next:
        """The answer to SyncGroup."""
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self.assignment = decode_assignment(response.assignment)
            self.state = State.STABLE
            self._last = Claim(self.assignment, self.generation_id)
            self._settled = GroupMetadata(self.group_id, self.generation_id, self.member_id, self.instance_id)
            self.needs_join = self.lost = False
            return Next.GO_ON
        return self._failed(code, "SyncGroup")

    def _failed(self, code: ErrorCode, what: str) -> Next:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.forget(keep_id=code is ErrorCode.ILLEGAL_GENERATION)
            return Next.GO_ON
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.state = State.UNJOINED
            return Next.GO_ON
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            return Next.FIND_COORDINATOR
        if code.retriable:
            return Next.WAIT
        raise errors.error_for(code, f"{what} of {self.group_id!r}: {code.text}")

    def forget(self, *, keep_id: bool = False) -> None:
        """We are no member any more."""
        if self.assignment:
            self.lost = True
        self.state = State.UNJOINED
        self.generation_id = NO_GENERATION
        self.needs_join = True
        self.members = {}
        if not keep_id:
            self.member_id = ""

    # -- being a member -------------------------------------------------------------------------------------------

    def heartbeat_request(self) -> HeartbeatRequest:
        """We live."""
        return HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )

    def heartbeat_answered(self, code: ErrorCode, generation_id: int) -> Next:
        """What an answer means, for the generation in which it was asked; FencedMemberError."""
        if code is ErrorCode.NONE or generation_id != self.generation_id:
            return Next.GO_ON
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.needs_join = True
            return Next.GO_ON
        return self._failed(code, "Heartbeat")

    @property
    def unnamed(self) -> bool:
        """Whether the coordinator may have a member of which only its answer will say that it is us (KIP-394)."""
        return self.state is State.JOINING and self.instance_id is None and not self.member_id

    def leave_request(self) -> Message | None:
        """Tell the others that we go, or do not come; None for a static member, whose place is kept for its successor.

        A member that was only promised a place is told, too: the others' next rebalance would wait for it.
        """
        if self.instance_id is not None or not self.member_id:
            return None
        return LeaveGroupRequest(
            group_id=self.group_id,
            members=[MemberIdentity(member_id=self.member_id, reason="the consumer is being closed")],
        )


def _place(member: JoinGroupResponseMember) -> tuple[bool, str]:
    """Static members come first, by their instance id, so that one that starts again is in its place (MemberInfo)."""
    instance = member.group_instance_id
    return instance is None, member.member_id if instance is None else instance
