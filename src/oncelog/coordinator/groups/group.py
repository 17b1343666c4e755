"""One classic group: its members, what they can agree upon, and its state (Kafka's `ClassicGroup`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from oncelog.coordinator.groups.member import Member
from oncelog.coordinator.groups.states import GroupState, check_transition
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from oncelog.protocol.schema import DecodeError

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of consumers; others (Connect's, for one) are opaque."""


@dataclass(slots=True)
class InitialDelay:
    """A new group waits a little for more members, and goes on waiting while they come (KIP-134); ms."""

    delay_ms: int
    remaining_ms: int


class Group:
    """State and membership; answers and timers are the business of `rebalance` and `membership`."""

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms: int = now_ms
        """When the state was entered; -1 where an old record does not say."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.pending_joins: dict[str, int] = {}
        """Member ids handed out (KIP-394) that have not come back: until when they are kept."""
        self.pending_syncs: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None
        """Topics of all members; None when not known."""
        self.join_due_ms: int | None = None
        self.initial_delay: InitialDelay | None = None
        self.sync_due_ms: int | None = None
        self.new_member_added = False
        self._speakers: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"Group({self.group_id}, {self.state.value}, generation {self.generation}, {list(self.members)})"

    # -- state --------------------------------------------------------------------------------------------------

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        """Enters a state; IllegalTransitionError."""
        check_transition(self.group_id, self.state, state)
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin now."""
        return self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY)

    def next_generation(self, now_ms: int) -> None:
        """Ends the join phase with those who are members now."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscribed_topics = self.compute_subscribed_topics()
        self.transition_to(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_syncs.clear()

    def next_due_ms(self) -> int | None:
        """The first moment at which something is due."""
        dues = [member.due_ms for member in self.members.values() if member.due_ms is not None]
        dues += self.pending_joins.values()
        dues += [due for due in (self.join_due_ms, self.sync_due_ms) if due is not None]
        return min(dues, default=None)

    # -- members ------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Takes a member in; the first one decides on the protocol type and leads."""
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
        """Forgets a member, or a pending one; another one leads if it did."""
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
        """Puts `new` in a static member's place and returns the old one."""
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

    def update(self, member: Member, protocols: tuple[tuple[str, bytes], ...], joining: Any) -> None:
        """What a member says of itself when it joins again."""
        self._speakers.subtract(_names(member.protocols))
        member.protocols = protocols
        self._speakers.update(_names(protocols))
        member.joining = joining

    def check_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member; UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when another one has taken its place."""
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"no static member {group_instance_id}")
            if current != member_id:
                message = f"{group_instance_id} is {current} now, no longer {member_id}"
                raise ProtocolError(ErrorCode.FENCED_INSTANCE_ID, message)
        member = self.members.get(member_id)
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {self.group_id} has no member {member_id!r}")
        return member

    @property
    def waiting_joins(self) -> int:
        """How many members wait for the end of the join phase."""
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether nobody has to be waited for any more."""
        return not self.pending_joins and all(member.joining is not None for member in self.members.values())

    def elect_joined_leader(self) -> bool:
        """Makes somebody lead who has joined; False when nobody has."""
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
        """The longest that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # -- protocols ----------------------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Iterable[tuple[str, bytes]]) -> bool:
        """Whether somebody with these protocols can be a member beside those there are."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in protocols)
        return self.protocol_type == protocol_type and any(
            self._speakers[name] == len(self.members) for name in _names(protocols)
        )

    def select_protocol(self, *, instead: tuple[str, Member] | None = None) -> str:
        """The protocol that all speak and most like best; `instead` = (id, the member that would take its place)."""
        members = [
            instead[1] if instead is not None and member.member_id == instead[0] else member
            for member in self.members.values()
        ]
        speakers = Counter(name for member in members for name in _names(member.protocols))
        candidates = {name for name, count in speakers.items() if count == len(members)}
        votes = Counter(member.vote(candidates) for member in members)
        return max(votes, key=votes.__getitem__)  # of equals, the one that was voted for first

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """What the members say that they read; None when they are no consumers or cannot be understood."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                # Version 0 is a prefix of all the later ones.
                data = member.metadata(self.protocol)[2:]
                subscription, _ = ConsumerProtocolSubscription.decode_from(data, 0, 0)
                topics.update(subscription.topics)
        except DecodeError:
            return None
        return frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic; consumers whose subscription is not known may read any."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics


def _names(protocols: Iterable[tuple[str, bytes]]) -> set[str]:
    return {name for name, _ in protocols}
