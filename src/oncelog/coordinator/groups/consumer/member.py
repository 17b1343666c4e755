"""A member of a consumer group, and how it moves from what it owns to what it shall own (KIP-848).

Source: Kafka's `ConsumerGroupMember`, `MemberState` and `CurrentAssignmentBuilder`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from oncelog.coordinator.groups.classic.member import Protocols
from oncelog.protocol.errors import ErrorCode, ProtocolError

Partitions = Mapping[UUID, frozenset[int]]
"""Topic id -> partitions. Topics without a partition are absent."""
Owned = Mapping[UUID, Mapping[int, int]]
"""Topic id -> partition -> the epoch with which the member got it. Topics without a partition are absent."""

LEAVE_EPOCH, LEAVE_STATIC_EPOCH = -1, -2
"""The member epochs with which a member leaves: for good, and as a static member that returns."""


class MemberState(IntEnum):
    """How far a member is. The numbers are those in Kafka's records."""

    STABLE = 0
    """It has its target assignment, and no other."""
    UNREVOKED_PARTITIONS = 1
    """It must give partitions up, and has not said that it has."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not given up."""
    UNKNOWN = 127
    """A newer version has written another state."""


class ClassicMember(NamedTuple):
    """What only a member that uses the classic protocol has. The session timeout is in ms."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """What the log knows of a member. `client_host` begins with a slash, as in Kafka."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    """The names that it subscribes to."""
    pattern: str = ""
    """The regular expression that it subscribes to, in addition to the names."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None
    """None: it uses the consumer protocol."""
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)
    """Partitions that it must give up. No other member gets them before."""

    def is_reconciled(self, target_epoch: int) -> bool:
        """Return whether the member has the assignment of this epoch, and no other partition."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def epoch_of(self, topic_id: UUID, partition: int) -> int | None:
        """Return the epoch with which the member got a partition that it has, or must give up."""
        for owned in (self.assigned, self.revoking):
            since = owned.get(topic_id, {}).get(partition)
            if since is not None:
                return since
        return None


class Target(NamedTuple):
    """What a member shall own, and the epoch of the group for which that was computed."""

    epoch: int
    partitions: Partitions


class Reconciliation(NamedTuple):
    """What decides a member's next step.

    `topics` are those that it subscribes to. `resubscribed` tells whether it has just changed them. `is_taken` tells
    whether a partition is some member's. `owned` is what the client says that it owns (None: it has not said).
    """

    target: Target
    topics: Collection[UUID]
    resubscribed: bool
    is_taken: Callable[[UUID, int], bool]
    owned: Partitions | None


def reconcile(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    """Return the member after its next step towards the target.

    Raises ProtocolError (FENCED_MEMBER_EPOCH) for a member in an unknown state that owns partitions.
    """
    if member.state is MemberState.UNKNOWN and (step.owned is None or any(step.owned.values())):
        message = (
            "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
        )
        raise ProtocolError(ErrorCode.FENCED_MEMBER_EPOCH, message)
    waits = member.is_reconciled(step.target.epoch) or (
        member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(step.owned, member.revoking)
    )
    if not waits:
        return _next(member, step)
    return _without_unsubscribed(member, step) if step.resubscribed else member


def _next(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    """Return the member with all partitions of its target that are free, or with what it must give up first."""
    kept: dict[UUID, Mapping[int, int]] = {}
    revoking: dict[UUID, Mapping[int, int]] = {}
    new: dict[UUID, list[int]] = {}
    unreleased = False
    for topic in step.target.partitions.keys() | member.assigned.keys():
        wanted = step.target.partitions.get(topic, frozenset()) if topic in step.topics else frozenset()
        has, gives = member.assigned.get(topic, {}), member.revoking.get(topic, {})
        missing = [each for each in wanted if each not in has]
        free = [each for each in missing if each in gives or not step.is_taken(topic, each)]
        unreleased = unreleased or len(free) < len(missing)
        _put(kept, topic, {each: since for each, since in has.items() if each in wanted})
        _put(revoking, topic, {each: since for each, since in has.items() if each not in wanted})
        if free:
            new[topic] = free
    if revoking and _owns_any(step.owned, revoking):
        # What it has just given up may be another's now. With its former epoch, it may no longer commit that.
        epoch = member.epoch + (member.state is MemberState.UNREVOKED_PARTITIONS)
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic, partitions in new.items():
        kept[topic] = {**kept.get(topic, {}), **dict.fromkeys(partitions, step.target.epoch)}
    state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
    return _moved(member, step.target.epoch, state, kept, {})


def _without_unsubscribed(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    """Return the member without topics that it no longer subscribes to. It may have to give them up first."""
    gone = {topic: some for topic, some in member.assigned.items() if topic not in step.topics}
    if not gone:
        return member
    kept = {topic: some for topic, some in member.assigned.items() if topic not in gone}
    revoking = {**member.revoking}
    for topic, some in gone.items():
        revoking[topic] = {**revoking.get(topic, {}), **some}
    if _owns_any(step.owned, revoking):
        return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)
    return replace(member, assigned=kept)


def _owns_any(owned: Partitions | None, partitions: Owned) -> bool:
    """Return whether a member still owns some of these partitions. If it does not say what it owns, it may."""
    if owned is None:
        return True
    return any(not some.isdisjoint(partitions.get(topic, ())) for topic, some in owned.items())


def _put(found: dict[UUID, Mapping[int, int]], topic: UUID, partitions: Mapping[int, int]) -> None:
    if partitions:
        found[topic] = partitions


def _moved(member: ConsumerMember, epoch: int, state: MemberState, assigned: Owned, revoking: Owned) -> ConsumerMember:
    """Return the member with another epoch. Its previous epoch is the one that its client may still use."""
    previous = member.epoch if epoch != member.epoch else member.previous_epoch
    return replace(member, epoch=epoch, previous_epoch=previous, state=state, assigned=assigned, revoking=revoking)
