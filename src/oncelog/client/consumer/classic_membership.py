"""A member of a classic consumer group, without any I/O (KIP-62, 345, 394, 429, 447).

    UNJOINED -> JOINING -> SYNCING -> STABLE -> (rebalance) JOINING
        ^___________ member id unknown, generation gone, left ______|

`join_request` and `sync_request` return the next request. `joined` and `synced` apply its response, and return what to
do next. The driver sends the heartbeats. `heartbeat_answered` applies their responses while STABLE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from oncelog import errors
from oncelog.client.consumer.assignors import ASSIGNORS, COOPERATIVE, Claim
from oncelog.client.consumer.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from oncelog.client.group_offsets import NO_GENERATION, GroupMetadata
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
from oncelog.protocol.topics import TopicPartition

PROTOCOL_TYPE = "consumer"


class MemberState(Enum):
    """The steps of a member through a rebalance."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Followup(Enum):
    """What the driver does after a response."""

    PROCEED = "send the next request"
    BACK_OFF = "retry the request after a back-off"
    FIND_COORDINATOR = "find the coordinator, then retry the request"


class ClassicMembership:
    """One member's view of one group."""

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
        """The assignors that this member supports, best first. The group chooses one that all its members support."""
        self.cooperative = set(strategies) <= COOPERATIVE
        """Whether partitions are kept during a rebalance: only if each assignor allows it, as in Java."""
        self.chosen = strategies[0]
        self.rack = rack
        self.state = MemberState.UNJOINED
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self.topics: list[str] = []
        self.assignment: list[TopicPartition] = []
        self.owned: list[TopicPartition] = []
        """The partitions that this member still reads while it joins: none unless it is cooperative."""
        self.needs_join = True
        self.lost = False
        """Whether the coordinator ended the membership: another member may own the partitions, so do not commit."""
        self.members: dict[str, list[str]] = {}
        """Topics by member. Only the leader knows them, between join and sync."""
        self._claims: dict[str, Claim] = {}
        self._last: Claim | None = None
        """The last assignment, for the sticky assignors."""
        self._settled = GroupMetadata(group_id, group_instance_id=instance_id)

    @property
    def leading(self) -> bool:
        """Whether this member has to assign the partitions now."""
        return self.state is MemberState.SYNCING and bool(self.members)

    def metadata(self) -> GroupMetadata:
        """Return the member's identity in the last assignment, for commits and transactions, also after it has ended.

        Without generation and member id, the coordinator would accept the offsets of a zombie as well (KIP-447).
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
        """Return the request that joins the group, or its next generation."""
        self.state = MemberState.JOINING
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
                    metadata=encode_subscription(
                        strategy, self.topics, Claim(self.owned, self.generation_id), self._last, self.rack
                    ),
                )
                for strategy in self.strategies
            ],
        )

    def joined(self, response: JoinGroupResponse) -> Followup:
        """Apply the response to JoinGroup. Raise KafkaError if a retry would not help."""
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self.generation_id, self.member_id = response.generation_id, response.member_id
            self.state = MemberState.SYNCING
            self.chosen = response.protocol_name or self.chosen
            self.members = {}
            if response.leader == response.member_id and not response.skip_assignment:
                found = {
                    member.member_id: decode_subscription(self.chosen, member.metadata)
                    for member in sorted(response.members, key=_sort_key)
                }
                self.members = {member: topics for member, (topics, _) in found.items()}
                self._claims = {member: claim for member, (_, claim) in found.items()}
            return Followup.PROCEED
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return Followup.PROCEED
        return self._failed(code, "JoinGroup")

    def sync_request(self, partitions: Mapping[str, int]) -> SyncGroupRequest:
        """Return the request for the assignment. The leader's has the assignments of all members.

        `partitions`: their number by topic.
        """
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

    def synced(self, response: SyncGroupResponse) -> Followup:
        """Apply the response to SyncGroup. Raise KafkaError if a retry would not help."""
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            self.assignment = decode_assignment(response.assignment)
            self.state = MemberState.STABLE
            self._last = Claim(self.assignment, self.generation_id)
            self._settled = GroupMetadata(self.group_id, self.generation_id, self.member_id, self.instance_id)
            self.needs_join = self.lost = False
            return Followup.PROCEED
        return self._failed(code, "SyncGroup")

    def _failed(self, code: ErrorCode, what: str) -> Followup:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.forget(keep_id=code is ErrorCode.ILLEGAL_GENERATION)
            return Followup.PROCEED
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.state = MemberState.UNJOINED
            return Followup.PROCEED
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            return Followup.FIND_COORDINATOR
        if code.retriable:
            return Followup.BACK_OFF
        raise errors.error_for(code, f"{what} of group {self.group_id!r}: {code.text}")

    def forget(self, *, keep_id: bool = False) -> None:
        """End the membership."""
        if self.assignment:
            self.lost = True
        self.state = MemberState.UNJOINED
        self.generation_id = NO_GENERATION
        self.needs_join = True
        self.members = {}
        if not keep_id:
            self.member_id = ""

    # -- being a member -------------------------------------------------------------------------------------------

    def heartbeat_request(self) -> HeartbeatRequest:
        """Return the next heartbeat."""
        return HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )

    def heartbeat_answered(self, code: ErrorCode, generation_id: int) -> Followup:
        """Apply the response to a heartbeat of this generation. Raises FencedMemberError."""
        if code is ErrorCode.NONE or generation_id != self.generation_id:
            return Followup.PROCEED
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.needs_join = True
            return Followup.PROCEED
        return self._failed(code, "Heartbeat")

    @property
    def awaits_member_id(self) -> bool:
        """Whether the coordinator may have created this member, and only its next response has our id (KIP-394)."""
        return self.state is MemberState.JOINING and self.instance_id is None and not self.member_id

    def leave_request(self) -> Message | None:
        """Return the request that leaves the group; None for a static member, whose successor gets its partitions.

        A member that has an id but has not joined leaves, too: the next rebalance would wait for it.
        """
        if self.instance_id is not None or not self.member_id:
            return None
        return LeaveGroupRequest(
            group_id=self.group_id,
            members=[MemberIdentity(member_id=self.member_id, reason="the consumer is being closed")],
        )


def _sort_key(member: JoinGroupResponseMember) -> tuple[bool, str]:
    """Sort static members first, by instance id, so that a restarted one keeps its position (Kafka's MemberInfo)."""
    instance = member.group_instance_id
    return instance is None, member.member_id if instance is None else instance
