"""Bugs of the coordinator of consumer groups (KIP-848). The tests against clients of all kinds must fail for each."""

from __future__ import annotations

from typing import NamedTuple

GROUPS = "coordinator/groups/consumer/"
CLIENTS = "tests/properties/test_consumer_groups.py"
MEMBERS = "tests/properties/test_consumer_assignment.py"
ONE_BY_ONE = "tests/unit/coordinator/test_consumer_group_members.py"
SILENT = "tests/unit/coordinator/test_silent_members.py"


class GroupBug(NamedTuple):
    """The module of the consumer protocol, the correct line, the line with the bug, and the tests that catch it."""

    module: str
    right: str
    wrong: str
    caught_by: str = CLIENTS


GROUP_BUGS = {
    "no partition is ever another member's": GroupBug(
        "group.py", "return (topic, partition) in self.owners", "return False"
    ),
    "a partition that a member has given up stays its own": GroupBug(
        "group.py", "if self.owners.get((topic, each)) == member.member_id:", "if False:"
    ),
    "a member gets its next epoch before it has given partitions up": GroupBug(
        "member.py",
        "return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)",
        "return _moved(member, step.target.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)",
    ),
    "a member that gives partitions up again may still commit the former ones": GroupBug(
        "member.py",
        "epoch = member.epoch + (member.state is MemberState.UNREVOKED_PARTITIONS)",
        "epoch = member.epoch",
        ONE_BY_ONE,
    ),
    "partitions are free before their member says that it has given them up": GroupBug(
        "member.py", "if revoking and _owns_any(step.owned, revoking):", "if False:", f"{MEMBERS} {CLIENTS}"
    ),
    "a member that has given partitions up waits forever": GroupBug(
        "member.py",
        "member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(step.owned, member.revoking)",
        "member.state is MemberState.UNREVOKED_PARTITIONS",
        f"{MEMBERS} {CLIENTS}",
    ),
    "heartbeats of any older epoch are accepted": GroupBug(
        "joining.py", "elif received < member.epoch and not (", "elif False and not ("
    ),
    "commits of any older epoch are accepted": GroupBug(
        "commits.py", "    if epoch == member.epoch:", "    if epoch <= member.epoch:"
    ),
    "a static member that returns is there twice": GroupBug(
        "transition.py", "found += records.member_tombstones(group.group_id, change.replaces)", "pass", ONE_BY_ONE
    ),
    "a static member that returns has no target": GroupBug(
        "transition.py", "inherited = group.targets.get(change.replaces, {})", "inherited: Partitions = {}", ONE_BY_ONE
    ),
    "new partitions of a topic do not begin an epoch": GroupBug(
        "transition.py", "if changed or metadata_hash != group.metadata_hash:", "if changed:", ONE_BY_ONE
    ),
    "a member that leaves does not begin an epoch": GroupBug(
        "transition.py",
        "_, epoch = self.epoch_after(group, group.topics(leaving), changed=True)",
        "_, epoch = self.epoch_after(group, group.topics(leaving), changed=False)",
        ONE_BY_ONE,
    ),
    "a time of assignment in the future delays the next one": GroupBug(
        "transition.py",
        "return not group.target_ms <= now.wall_ms < group.target_ms + interval_ms",
        "return now.wall_ms >= group.target_ms + interval_ms",
    ),
    "classic members own nothing after the move to the consumer protocol": GroupBug(
        "moves.py", "assigned = partitions_of(assignment.assigned_partitions, topics)", "assigned = {}"
    ),
    "commits are accepted that are older than the assignment of their partition": GroupBug(
        "commits.py", "if epoch < since:", "if False:"
    ),
    "a member keeps topics that it no longer subscribes to": GroupBug(
        "transition.py", "(member.topics, member.pattern) != (before.topics, before.pattern),", "False,"
    ),
    "a pattern that matches nothing begins no epoch": GroupBug("matching.py", "or any(group.targets.values())", ""),
    "a group does not rebalance after the move to the classic protocol": GroupBug(
        "moves.py",
        "classic = ClassicGroup(group.group_id, since_ms)",
        "classic = ClassicGroup(group.group_id, max(since_ms, 1))",
    ),
    "members that only the log knows never expire": GroupBug(
        "groups.py", "if len(group.members) > known:", "if False:", SILENT
    ),
    "silent members stay": GroupBug("sessions.py", "                found[member_id] = None\n", ""),
}
