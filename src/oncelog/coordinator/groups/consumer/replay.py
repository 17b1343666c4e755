"""Apply the records of consumer groups. Nothing else changes what the log has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from oncelog.coordinator.effects import CoordinatorRecord
from oncelog.coordinator.groups.consumer import records
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.consumer.member import LEAVE_EPOCH, ClassicMember, ConsumerMember, MemberState
from oncelog.protocol.messages import consumer_group_records as messages


def apply(group: ConsumerGroup, key: Any, value: Any) -> None:
    """Apply one record to its group. `value` is None for a tombstone."""
    _APPLY[type(key)](group, key, value)


def copy_of(group_id: str, some: Iterable[CoordinatorRecord]) -> ConsumerGroup:
    """Return the group that consists of these records."""
    group = ConsumerGroup(group_id)
    for each in some:
        apply(group, each.key, each.value)
    return group


def _group(group: ConsumerGroup, _: Any, value: messages.ConsumerGroupMetadataValue | None) -> None:
    if value is not None:
        group.epoch, group.metadata_hash, group.is_checked = value.epoch, value.metadata_hash, True


def _member(group: ConsumerGroup, key: Any, value: messages.ConsumerGroupMemberMetadataValue | None) -> None:
    if value is None:
        group.drop(key.member_id)
        return
    classic = value.classic_member_metadata
    group.put(
        replace(
            _known(group, key.member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            pattern=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=None
            if classic is None or not classic.supported_protocols
            else ClassicMember(
                classic.session_timeout_ms,
                tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
            ),
        )
    )


def _target_epoch(
    group: ConsumerGroup, _: Any, value: messages.ConsumerGroupTargetAssignmentMetadataValue | None
) -> None:
    if value is None:
        group.target_epoch, group.target_ms = 0, 0
    else:
        group.target_epoch, group.target_ms = value.assignment_epoch, value.assignment_timestamp


def _target(group: ConsumerGroup, key: Any, value: messages.ConsumerGroupTargetAssignmentMemberValue | None) -> None:
    if value is None:
        group.targets.pop(key.member_id, None)
    else:
        group.targets[key.member_id] = records.partitions_in(value.topic_partitions)


def _current(group: ConsumerGroup, key: Any, value: messages.ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
    if value is not None:
        group.put(
            replace(
                _known(group, key.member_id),
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                state=_STATES.get(value.state, MemberState.UNKNOWN),
                assigned=records.owned_in(value.assigned_partitions, value.member_epoch),
                revoking=records.owned_in(value.partitions_pending_revocation, value.member_epoch),
            )
        )
    elif key.member_id in group.members:  # the tombstone of the member itself follows
        left = replace(group.members[key.member_id], epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH)
        group.put(replace(left, state=MemberState.STABLE, assigned={}, revoking={}))


def _pattern(group: ConsumerGroup, key: Any, value: messages.ConsumerGroupRegularExpressionValue | None) -> None:
    if value is None:
        group.patterns.pop(key.regular_expression, None)
    else:
        group.patterns[key.regular_expression] = frozenset(value.topics)


def _known(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    return group.members.get(member_id) or ConsumerMember(member_id)


_STATES: Mapping[int, MemberState] = {state.value: state for state in MemberState}
_APPLY: Mapping[type, Callable[[ConsumerGroup, Any, Any], None]] = {
    messages.ConsumerGroupMetadataKey: _group,
    messages.ConsumerGroupPartitionMetadataKey: lambda group, key, value: None,
    messages.ConsumerGroupMemberMetadataKey: _member,
    messages.ConsumerGroupTargetAssignmentMetadataKey: _target_epoch,
    messages.ConsumerGroupTargetAssignmentMemberKey: _target,
    messages.ConsumerGroupCurrentMemberAssignmentKey: _current,
    messages.ConsumerGroupRegularExpressionKey: _pattern,
}
