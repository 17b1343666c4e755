"""One classic group: its members, what they can agree upon, its state and its records.

GroupMetadataValue is written as v3, like Kafka 4.3, although v4 exists and can be read. Source: Kafka's `ClassicGroup`
and `GroupCoordinatorRecordHelpers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.classic.member import Member, Protocols
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from oncelog.protocol.messages.list_groups import ListedGroup
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from oncelog.protocol.schema import DecodeError

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of consumers. The metadata of other types, for example Connect's, is opaque."""

KEY_VERSION = 2
VALUE_VERSION = 3

NO_TIMESTAMP = -1
"""The time of a state that no record contains."""


class GroupState(Enum):
    """The state of a classic group, with its name in ListGroups and DescribeGroups (Kafka's `ClassicGroupState`)."""

    EMPTY = "Empty"
    """The group has no members. It may have offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """The group waits until every member has sent JoinGroup."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The group waits for the leader's assignment."""
    STABLE = "Stable"
    """Every member has its assignment, or can fetch it."""
    DEAD = "Dead"
    """The group is deleted."""


_S = GroupState

PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE}),
    _S.PREPARING_REBALANCE: frozenset({_S.STABLE, _S.COMPLETING_REBALANCE, _S.EMPTY}),
    _S.COMPLETING_REBALANCE: frozenset({_S.PREPARING_REBALANCE}),
    _S.STABLE: frozenset({_S.COMPLETING_REBALANCE}),
    _S.DEAD: frozenset(_S),
}
"""The legal predecessors of each state."""


class IllegalTransitionError(RuntimeError):
    """A bug in the coordinator: the group's state does not lead to the next one."""


@dataclass(slots=True)
class InitialDelay:
    """How long a new group waits for more members, and how long it may still wait in total (KIP-134). In ms."""

    delay_ms: int
    remaining_ms: int


class ClassicGroup:
    """The state and the members of a group. `GroupOperation` has the responses and the timers."""

    KIND: ClassVar[str] = "classic"

    def __init__(self, group_id: str, now_ms: int = NO_TIMESTAMP) -> None:
        """Create the group as EMPTY since `now_ms`."""
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms: int = now_ms
        """When the group entered its state, on the wall clock, or NO_TIMESTAMP. That of a stable group is when its
        generation began, as in its record."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_joins: dict[str, int] = {}
        """Member ids whose clients have not joined with them yet (KIP-394), and when they expire."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not sent SyncGroup yet."""
        self.subscribed_topics: frozenset[str] | None = None
        """The topics of all members, or None if they are unknown."""
        self.returning: dict[str, Member] = {}
        """Returned static members, by instance id. Each replaces its former member when the record is in the log."""
        self.join_due_ms: int | None = None
        self.initial_delay: InitialDelay | None = None
        self.sync_due_ms: int | None = None
        self.new_member_added = False
        self._speakers: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"ClassicGroup({self.group_id}, {self.state.value}, generation {self.generation}, {list(self.members)})"

    # -- records ------------------------------------------------------------------------------------------------

    def record(
        self,
        assignments: Mapping[str, bytes],
        *,
        members: Iterable[Member] | None = None,
        leader: str | None = None,
    ) -> CoordinatorRecord:
        """Return the record of the group's generation. `members` and `leader` replace those of the group."""
        protocol = self.protocol
        value = GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=protocol,
            leader=leader or self.leader,
            current_state_timestamp=self.state_timestamp_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(protocol) if protocol is not None else b"",
                    assignment=assignments[member.member_id],
                )
                for member in (self.members.values() if members is None else members)
            ],
        )
        return CoordinatorRecord(GroupMetadataKey(group=self.group_id), KEY_VERSION, value, VALUE_VERSION)

    def new_record(self) -> CoordinatorRecord:
        """Return the record of a group that has had no generation."""
        value = GroupMetadataValue(
            protocol_type="",
            generation=0,
            protocol=None,
            leader=None,
            current_state_timestamp=self.state_timestamp_ms,
        )
        return CoordinatorRecord(GroupMetadataKey(group=self.group_id), KEY_VERSION, value, VALUE_VERSION)

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the record that deletes the group."""
        return [CoordinatorRecord(GroupMetadataKey(group=self.group_id), KEY_VERSION, None)]

    def apply(self, value: GroupMetadataValue) -> None:
        """Apply a record: a finished generation, or a group that has had none.

        The record decides everything that is durable. What the log does not have stays as it was: the sessions of the
        members, their other protocols, and the members of a generation that is not finished.
        """
        if self.state is GroupState.PREPARING_REBALANCE:
            return  # the group is new: its first members are joining
        if self.state is GroupState.COMPLETING_REBALANCE:
            self.check_generation(value.generation)
            self.transition_to(GroupState.STABLE, value.current_state_timestamp)
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        self.state_timestamp_ms = value.current_state_timestamp
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.leader = value.leader
        self._apply_members(value)
        self.end_sync_phase_if_all_synced()

    def _apply_members(self, value: GroupMetadataValue) -> None:
        before, returning = self.members, {member.member_id: member for member in self.returning.values()}
        replaced = self.static_members
        self.members, self.static_members, self.returning = {}, {}, {}
        self._speakers.clear()
        for data in value.members:
            member = before.get(data.member_id) or returning.get(data.member_id) or _member(data)
            member.apply(data, value.protocol_type, value.protocol or "")
            old_id = replaced.get(data.group_instance_id or "")
            if old_id is not None and old_id in self.pending_syncs:
                self.pending_syncs.remove(old_id)
                self.pending_syncs.add(member.member_id)
            self.add(member)
        self.subscribed_topics = self.compute_subscribed_topics()

    # -- state --------------------------------------------------------------------------------------------------

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Enter a state. Raises IllegalTransitionError."""
        if self.state not in PREVIOUS[state]:
            message = f"group {self.group_id!r} cannot change from {self.state.value} to {state.value}"
            raise IllegalTransitionError(message)
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def has_moved(self) -> bool:
        """Return whether the group has just moved from the consumer protocol: its first record has no time."""
        return self.state is GroupState.STABLE and self.state_timestamp_ms == NO_TIMESTAMP

    @property
    def can_rebalance(self) -> bool:
        """Return whether a rebalance may start now."""
        return self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)

    def next_generation(self, now_ms: int) -> None:
        """Start a generation with the current members. An empty group becomes EMPTY."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def end_sync_phase_if_all_synced(self) -> None:
        """End the wait for SyncGroup if all members of a stable group have sent it."""
        if not self.pending_syncs:
            self.sync_due_ms = None

    def next_due_ms(self) -> int | None:
        """Return the group's next deadline on the steady clock, or None."""
        dues = [member.due_ms for member in self.members.values() if member.due_ms is not None]
        dues += self.pending_joins.values()
        dues += [due for due in (self.join_due_ms, self.sync_due_ms) if due is not None]
        return min(dues, default=None)

    # -- members ------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Add a member. The first one becomes the leader, and its protocol type that of the group."""
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._speakers.update(_names(member.protocols))
        self.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member, or a pending member id. If it was the leader, another member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._speakers.subtract(_names(member.protocols))
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.discard(member_id)

    def replace(self, old_id: str, new: Member) -> Member:
        """Replace a static member by `new`, and return the old one."""
        old = self.members[old_id]
        self.members = {
            member.member_id: member for member in (new if known is old else known for known in self.members.values())
        }
        self._speakers.subtract(_names(old.protocols))
        self._speakers.update(_names(new.protocols))
        assert new.group_instance_id is not None
        self.static_members[new.group_instance_id] = new.member_id
        if self.leader == old_id:
            self.leader = new.member_id
        if old_id in self.pending_syncs:
            self.pending_syncs.remove(old_id)
            self.pending_syncs.add(new.member_id)
        return old

    def update(self, member: Member, protocols: Protocols, joining: Any) -> None:
        """Store the protocols and the token of a member that joins again."""
        self._speakers.subtract(_names(member.protocols))
        member.protocols = protocols
        self._speakers.update(_names(protocols))
        member.joining = joining

    def check_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return the member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has replaced it."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                message = f"group {self.group_id!r} has no static member {group_instance_id!r}"
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, message)
            if current != member_id:
                message = f"{current!r} has replaced {member_id!r} as static member {group_instance_id!r}"
                raise ProtocolError(ErrorCode.FENCED_INSTANCE_ID, message)
        member = self.members.get(member_id)
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id!r} has no member {member_id!r}")
        return member

    def check_generation(self, generation: int) -> None:
        """Raise ILLEGAL_GENERATION unless it is the group's current generation."""
        if generation != self.generation:
            message = f"group {self.group_id!r} is in generation {self.generation}, but the request has {generation}"
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION, message)

    @property
    def waiting_joins(self) -> int:
        """Return how many members wait for the end of the join phase."""
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Return whether all members have joined, and all pending member ids as well."""
        return not self.pending_joins and all(member.joining is not None for member in self.members.values())

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that has joined. Return False if no member has."""
        if self.leader is None:
            return False
        leader = self.members.get(self.leader)
        if leader is not None and leader.joining is not None:
            return True
        for member in self.members.values():
            if member.joining is not None:
                self.leader = member.member_id
                return True
        return False

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- protocols ----------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """Return whether a client with these protocols can join the current members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        return self.protocol_type == protocol_type and any(
            self._speakers[name] == len(self.members) for name in _names(protocols)
        )

    def select_protocol(self, *, instead: tuple[str, Member] | None = None) -> str:
        """Return the protocol that all members support and most of them prefer.

        `instead`: the id of a member, and the member to count in its place.
        """
        members = [
            instead[1] if instead is not None and member.member_id == instead[0] else member
            for member in self.members.values()
        ]
        speakers = Counter(name for member in members for name in _names(member.protocols))
        candidates = {name for name, count in speakers.items() if count == len(members)}
        votes = Counter(member.vote(candidates) for member in members)
        return max(votes, key=votes.__getitem__)  # if several have equally many votes, the first one voted for

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics in the members' subscriptions, or None if they are not consumers or cannot be decoded."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        try:
            for data in {member.metadata(self.protocol) for member in self.members.values()}:  # most are equal
                # Version 0 is a prefix of all later versions.
                subscription, _ = ConsumerProtocolSubscription.decode_from(data[2:], 0, 0)
                topics.update(subscription.topics)
        except DecodeError:
            return None
        return frozenset(topics)

    # -- offsets and queries --------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Return whether the group has no members."""
        return self.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Return whether the group is empty, and no client has got an id to join it."""
        return self.is_empty and not self.pending_joins

    def check_commit(self, request: OffsetCommitRequest, version: int) -> None:
        """Raise ProtocolError unless the client is a member of the current generation, or the group is empty.

        Source: Kafka's `ClassicGroup.validateOffsetCommit`.
        """
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.is_empty:
            return
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            message = f"group {self.group_id!r} has active members, and this commit does not come from one of them"
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        self.check_member(request.member_id, request.group_instance_id)
        self.check_generation(generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            message = f"group {self.group_id!r} is rebalancing: its leader has not sent the assignment yet"
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS, message)

    def check_transactional_commit(self, request: TxnOffsetCommitRequest, id_of: Callable[[str], UUID | None]) -> None:
        """Raise ProtocolError for a member of a former generation (KIP-447). Old producers do not send a generation."""
        is_member = request.generation_id >= 0 or request.member_id or request.group_instance_id is not None
        if is_member and not (request.generation_id < 0 and self.is_empty):
            self.check_member(request.member_id, request.group_instance_id)
            self.check_generation(request.generation_id)

    def check_offset_deletion(self) -> None:
        """Raise NON_EMPTY_GROUP if the group has members whose topics are unknown, because they are not consumers."""
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL:
            message = f"group {self.group_id!r} has active members that are not consumers; stop the group first"
            raise ProtocolError(ErrorCode.NON_EMPTY_GROUP, message)

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member reads the topic. Consumers with an unknown subscription may read any topic."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics

    def expires_since(self, commit_ms: int) -> int | None:
        """Return when the retention of an offset committed at `commit_ms` began, or None if it does not expire.

        If the group has had members, it begins when the last one left. Source: Kafka's
        `ClassicGroup.offsetExpirationCondition`.
        """
        if self.protocol_type is None:
            return commit_ms
        if self.is_empty:
            return commit_ms if self.state_timestamp_ms == NO_TIMESTAMP else self.state_timestamp_ms
        knows_topics = self.protocol_type == CONSUMER_PROTOCOL and self.subscribed_topics is not None
        return commit_ms if knows_topics and self.state is GroupState.STABLE else None

    def clients(self) -> list[tuple[str, str]]:
        """Return the client id and the host of each member. A host has no leading slash."""
        return [(member.client_id, member.client_host.removeprefix("/")) for member in self.members.values()]

    def listed(self) -> ListedGroup:
        """Return the group as ListGroups shows it."""
        return ListedGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type or "",
            group_state=self.state.value,
            group_type=self.KIND,
        )


def _member(data: MemberMetadata) -> Member:
    return Member(data.member_id, None, "", "", 0, 0, "", ())


def _names(protocols: Iterable[tuple[str, bytes]]) -> set[str]:
    return {name for name, _ in protocols}
