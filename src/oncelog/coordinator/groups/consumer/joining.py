"""Find the member that a request is about, or make a new one. Static members return under a new member id."""

from __future__ import annotations

from dataclasses import replace

from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.consumer.member import LEAVE_STATIC_EPOCH, ConsumerMember, Partitions
from oncelog.coordinator.groups.consumer.transition import Change
from oncelog.protocol.errors import ErrorCode, ProtocolError


def join_dynamic(group: ConsumerGroup, member_id: str) -> Change:
    """Return the member that joins, or joins again."""
    member = group.members.get(member_id) or ConsumerMember(member_id)
    return Change(member, member, None)


def join_static(group: ConsumerGroup, member_id: str, instance_id: str, *, is_classic: bool) -> Change:
    """Return the static member that joins. It takes the place of the former one, with what that owned.

    Raises UNRELEASED_INSTANCE_ID if the former one has not left. One that uses the classic protocol never says so.
    """
    known = group.static_member(instance_id)
    if known is None or (known.member_id == member_id and known.epoch != LEAVE_STATIC_EPOCH):
        return join_dynamic(group, member_id)  # it may have missed the response to its first request
    if not is_classic and known.classic is None and known.epoch != LEAVE_STATIC_EPOCH:
        message = (
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id "
            f"is owned by {known.member_id} member."
        )
        raise ProtocolError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
    member = replace(known, member_id=member_id, epoch=0, previous_epoch=0)
    return Change(member, member, None, replaces=None if known.member_id == member_id else known.member_id)


def check_epoch(member: ConsumerMember, received: int, owned: Partitions | None) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the client has the member's epoch, or has missed the last response."""
    if received > member.epoch:
        known = "greater"
    elif received < member.epoch and not (
        received == member.previous_epoch and owned is not None and _has_all(member, owned)
    ):
        known = "smaller"
    else:
        return
    message = (
        f"The consumer group member has a {known} member epoch ({received}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
    )
    raise ProtocolError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _has_all(member: ConsumerMember, owned: Partitions) -> bool:
    return all(some <= member.assigned.get(topic, {}).keys() for topic, some in owned.items())
