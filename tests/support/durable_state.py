"""Compare a coordinator of groups that serves requests with one that has only read its log.

Replay is the only way to change durable state, so both are equal after each step. Soft state may differ: the log has
only finished generations of a group.
"""

from __future__ import annotations

from typing import Any

from oncelog.coordinator.groups.classic.group import ClassicGroup, GroupState
from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.coordinator import GroupCoordinator


def check(live: GroupCoordinator, loaded: GroupCoordinator) -> None:
    """Check that both have the same offsets, and the same groups except for what a rebalance has changed."""
    assert offsets(live) == offsets(loaded)
    assert {(name, group.KIND) for name, group in loaded.groups.items() if not group.is_empty} <= {
        (name, group.KIND) for name, group in live.groups.items()
    }
    for group_id, other in loaded.groups.items():
        if isinstance(other, ConsumerGroup) and not other.is_empty:
            assert consumer_group(live.groups[group_id]) == consumer_group(other)
    known, written = classic_groups(live), classic_groups(loaded)
    unwritten = known.keys() - loaded.groups.keys()
    assert all(known[group_id].generation <= 1 for group_id in unwritten), "a generation is not in the log"
    for group_id, read in written.items():
        if read.is_empty and group_id not in known:
            continue
        group = known[group_id]
        if group.state is GroupState.STABLE or (
            group.state is GroupState.EMPTY and group.generation == read.generation
        ):
            assert finished(group) == finished(read)
        else:  # the generation of `group` is not in the log yet
            assert group.generation >= read.generation
            for member_id, member in group.members.items():
                former = read.members.get(member_id)
                assert member.assignment == (b"" if former is None else former.assignment)


def consumer_group(group: Any) -> object:
    """Return what the log has of a group of the consumer protocol."""
    return (
        *(group.epoch, group.target_epoch, group.metadata_hash, group.members, group.static_members),
        *(group.targets, group.owners, group.patterns, group.pattern_users, group.names),
        *(group.classic_members, group.classic_protocols),
    )


def classic_groups(coordinator: GroupCoordinator) -> dict[str, ClassicGroup]:
    """Return the classic groups by their ids."""
    return {group_id: group for group_id, group in coordinator.groups.items() if isinstance(group, ClassicGroup)}


def offsets(coordinator: GroupCoordinator) -> object:
    """Return the offsets of all groups, committed and pending ones. Their sequence is that of the log."""
    store = coordinator.offsets
    return {group_id: store.committed(group_id) for group_id in store.group_ids()}, store.open_transactions()


def finished(group: ClassicGroup) -> object:
    """Return what the log has of a group that is stable or empty."""
    return (
        *(group.state, group.state_timestamp_ms, group.generation),
        *(group.protocol_type, group.protocol, group.leader),
        group.subscribed_topics,
        group.static_members,
        [
            (
                *(member.member_id, member.group_instance_id, member.client_id, member.client_host),
                *(member.rebalance_timeout_ms, member.session_timeout_ms, member.protocol_type),
                member.metadata(group.protocol or ""),
                member.assignment,
            )
            for member in group.members.values()
        ],
    )
