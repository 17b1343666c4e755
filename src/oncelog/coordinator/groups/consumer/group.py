"""One group of the consumer protocol: its members, their targets, and who owns each partition.

Only the replay of records changes it (`replay`). Deadlines are elsewhere (`sessions`). Source: Kafka's `ConsumerGroup`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.classic.group import CONSUMER_PROTOCOL
from oncelog.coordinator.groups.consumer import records
from oncelog.coordinator.groups.consumer.commits import check_epoch
from oncelog.coordinator.groups.consumer.member import ConsumerMember, MemberState, Partitions, Target
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.list_groups import ListedGroup
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

_KNOWS_STALE_EPOCH = 9
"""The version of OffsetCommit from which on clients know STALE_MEMBER_EPOCH."""


@dataclass(slots=True)
class Matching:
    """When the regular expressions of a group are matched with the topics, on the steady clock (`matching`)."""

    is_running: bool = False
    began_ms: int = 0
    next_ms: int = 0
    """No match begins before."""
    refresh_ms: int = 0
    """When all expressions are matched again, even without a new topic."""
    has_new_topics: bool = True
    """Topics were created since. After a load, this is unknown."""


class ConsumerGroup:
    """A group whose partitions its coordinator assigns."""

    KIND: ClassVar[str] = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        """The epoch of the group for which `targets` was computed."""
        self.target_ms = 0
        """When that was, on the wall clock of the broker that computed it. 0: unknown."""
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Instance id -> member id."""
        self.targets: dict[str, Partitions] = {}
        self.owners: dict[tuple[UUID, int], str] = {}
        """The member that owns a partition, or has not given it up."""
        self.patterns: dict[str, frozenset[str]] = {}
        """Regular expression -> the topics that match it. One that has not been matched yet is absent."""
        self.pattern_users: Counter[str] = Counter()
        """Regular expression -> the number of members that subscribe to it."""
        self.classic_protocols: Counter[str] = Counter()
        """Classic protocol -> the number of members that support it."""
        self.classic_members = 0
        self._names: Counter[str] = Counter()

        # Soft state: no record has it.
        self.is_checked = False
        """No topic has changed since `metadata_hash` was computed."""
        self.matching = Matching()

    # -- the log ------------------------------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        """Add or replace a member."""
        before = self.members.get(member.member_id)
        self._release(before)
        self._count(before, -1)
        self.members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        for owned in (member.assigned, member.revoking):
            for topic, some in owned.items():
                self.owners.update(((topic, each), member.member_id) for each in some)

    def drop(self, member_id: str) -> None:
        """Delete a member."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._release(member)
        self._count(member, -1)
        if self.static_members.get(member.instance_id or "") == member_id:
            del self.static_members[member.instance_id or ""]

    def _release(self, member: ConsumerMember | None) -> None:
        if member is None:
            return
        for owned in (member.assigned, member.revoking):
            for topic, some in owned.items():
                for each in some:
                    if self.owners.get((topic, each)) == member.member_id:
                        del self.owners[topic, each]

    def _count(self, member: ConsumerMember | None, by: int) -> None:
        if member is None:
            return
        _add(self._names, member.topics, by)
        if member.pattern:
            _add(self.pattern_users, (member.pattern,), by)
        if member.classic is not None:
            self.classic_members += by
            _add(self.classic_protocols, {name for name, _ in member.classic.protocols}, by)

    # -- questions ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """Return the state, by Kafka's name."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        if all(each.is_reconciled(self.target_epoch) for each in self.members.values()):
            return "Stable"
        return "Reconciling"

    @property
    def is_empty(self) -> bool:
        """Return whether the group has no members."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """Return whether the group has no members."""
        return not self.members

    def is_taken(self, topic: UUID, partition: int) -> bool:
        """Return whether a member owns the partition, or has not given it up."""
        return (topic, partition) in self.owners

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return whether a partition of the member's target is still another's."""
        return member.state is MemberState.UNRELEASED_PARTITIONS and any(
            each not in member.assigned.get(topic, ()) and self.is_taken(topic, each)
            for topic, some in self.targets.get(member.member_id, {}).items()
            for each in some
        )

    def target(self, member_id: str) -> Target:
        """Return the target of a member."""
        return Target(self.target_epoch, self.targets.get(member_id, {}))

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the static member with this instance id."""
        return self.members.get(self.static_members.get(instance_id or "", ""))

    def find_member(self, member_id: str) -> ConsumerMember:
        """Return a member. Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            message = f"Member {member_id} is not a member of group {self.group_id}."
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member

    def identified(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return the member that a request names. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID."""
        return self.find_member(member_id) if instance_id is None else self.check_instance(instance_id, member_id)

    def check_instance(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return a static member. Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has replaced it."""
        member = self.static_member(instance_id)
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if member.member_id != member_id:
            message = (
                f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}."
            )
            raise ProtocolError(ErrorCode.FENCED_INSTANCE_ID, message)
        return member

    def topics(self, leaving: Iterable[ConsumerMember] = (), joining: ConsumerMember | None = None) -> set[str]:
        """Return the names of all topics that members subscribe to, without some members and with another one."""
        leaving = tuple(leaving)
        gone = Counter(name for each in leaving for name in each.topics)
        found = {name for name, count in self._names.items() if count > gone[name]}
        patterns = Counter(self.pattern_users)
        patterns.subtract(each.pattern for each in leaving)
        if joining is not None:
            found |= joining.topics
            patterns[joining.pattern] += 1
        return found.union(
            *(self.patterns.get(pattern, frozenset()) for pattern, count in patterns.items() if count > 0)
        )

    @property
    def names(self) -> frozenset[str]:
        """Return the topics that members subscribe to by their names, not by regular expressions."""
        return frozenset(self._names)

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the names of the topics that a member subscribes to."""
        return member.topics | self.patterns.get(member.pattern, frozenset())

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Return whether a client with these classic protocols can join the members that use the classic protocol."""
        return protocol_type == CONSUMER_PROTOCOL and any(
            self.classic_protocols[name] == self.classic_members for name in protocols
        )

    # -- the kinds' common questions ------------------------------------------------------------------------------

    def check_commit(self, request: OffsetCommitRequest, version: int) -> None:
        """Raise ProtocolError unless the member may commit. Without members, any client may."""
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return
        member = self.find_member(request.member_id)
        if member.classic is None and version < _KNOWS_STALE_EPOCH:
            message = "OffsetCommit version 9 or above must be used by members using the consumer group protocol"
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, message)
        partitions = (
            (topic.name, topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions
        )
        check_epoch(member, epoch, partitions)

    def check_transactional_commit(self, request: TxnOffsetCommitRequest, id_of: Callable[[str], UUID | None]) -> None:
        """Raise ProtocolError unless the member may commit. A producer may omit the member."""
        epoch = request.generation_id
        if epoch < 0 and not (self.members and (request.member_id or request.group_instance_id is not None)):
            return
        member = self.find_member(request.member_id)
        partitions = (
            (topic.name, id_of(topic.name), each.partition_index)
            for topic in request.topics
            for each in topic.partitions
        )
        try:
            check_epoch(member, epoch, partitions)
        except ProtocolError as error:  # TxnOffsetCommit has no STALE_MEMBER_EPOCH
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION, str(error)) from None

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise ProtocolError unless the member has this epoch. A client that is no member may fetch, too."""
        if member_id is None and epoch < 0:
            return
        member = self.find_member(member_id or "")
        if member.epoch != epoch:
            stale = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
            message = f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}."
            raise ProtocolError(stale, message)

    def check_offset_deletion(self) -> None:
        """Do nothing: offsets of topics without a subscriber may be deleted."""

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic, or may: an expression has not been matched yet."""
        return topic in self._names or any(
            pattern not in self.patterns or topic in self.patterns[pattern] for pattern in self.pattern_users
        )

    def expires_since(self, commit_ms: int) -> int | None:
        """Return the time of the commit. Offsets of topics with subscribers do not expire."""
        return commit_ms

    def clients(self) -> list[tuple[str, str]]:
        """Return the client id and the host of each member."""
        return [(each.client_id, each.client_host.removeprefix("/")) for each in self.members.values()]

    def listed(self) -> ListedGroup:
        """Return the group as ListGroups shows it."""
        return ListedGroup(
            group_id=self.group_id, protocol_type=CONSUMER_PROTOCOL, group_state=self.state, group_type=self.KIND
        )

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the records that delete the group."""
        return records.group_tombstones(self.group_id, self.members, self.patterns)


def assignor(members: Mapping[str, ConsumerMember], default: str) -> str:
    """Return the assignor that most members ask for (the first by name if several have equally many)."""
    asked = Counter(each.assignor for each in members.values() if each.assignor is not None)
    most = max(asked.values(), default=0)
    return min((name for name, count in asked.items() if count == most), default=default)


def _add(counts: Counter[str], keys: Iterable[str], by: int) -> None:
    for key in keys:
        counts[key] += by
        if not counts[key]:
            del counts[key]
