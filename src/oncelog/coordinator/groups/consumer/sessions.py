"""The deadlines of the members of consumer groups. They are soft state: after a load, all begin again."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from oncelog.coordinator.groups.consumer.group import ConsumerGroup
from oncelog.coordinator.groups.consumer.member import ConsumerMember, MemberState
from oncelog.coordinator.groups.registry import Registry
from oncelog.coordinator.timers import Now

RETRY_MS = 500
"""When a member whose time is up is removed again, if the removal could not be written."""
MOST_EXPIRED = 200
"""The number of members of a group that one tick removes."""


class Timer(Enum):
    """What a member must do in time. Otherwise, it is removed."""

    SESSION = "send a heartbeat"
    REBALANCE = "give up partitions"
    JOIN = "send JoinGroup"
    SYNC = "send SyncGroup"


class Sessions:
    """The deadlines of the members of one coordinator's consumer groups, on the steady clock."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._due: dict[str, dict[tuple[str, Timer], int]] = {}

    def start(self, group_id: str, member_id: str, timer: Timer, due_ms: int) -> None:
        """Set a deadline."""
        self._due.setdefault(group_id, {})[member_id, timer] = due_ms
        self._registry.wake(group_id, due_ms)

    def start_if_absent(self, group_id: str, member_id: str, timer: Timer, due_ms: int) -> None:
        """Set a deadline, unless there is one."""
        if (member_id, timer) not in self._due.get(group_id, {}):
            self.start(group_id, member_id, timer, due_ms)

    def cancel(self, group_id: str, member_id: str, timer: Timer) -> None:
        """Remove a deadline."""
        self._due.get(group_id, {}).pop((member_id, timer), None)

    def touch(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """Restart the session of a member."""
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self._registry.consumer_settings(group_id).session_timeout_ms
        self.start(group_id, member.member_id, Timer.SESSION, now.steady_ms + timeout_ms)

    def moved(self, group_id: str, member: ConsumerMember, now: Now) -> None:
        """Start or end the time that a member has to give up partitions. Classic members have other deadlines."""
        if member.classic is None and member.state is MemberState.UNREVOKED_PARTITIONS:
            due_ms = now.steady_ms + max(member.rebalance_timeout_ms, 0)
            self.start(group_id, member.member_id, Timer.REBALANCE, due_ms)
        else:
            self.cancel(group_id, member.member_id, Timer.REBALANCE)

    def begin(self, group: ConsumerGroup, now: Now) -> None:
        """Start the sessions of all members that have none: the log has brought them."""
        known = self._due.get(group.group_id, {})
        for member_id, member in group.members.items():
            if (member_id, Timer.SESSION) not in known:
                self.touch(group.group_id, member, now)
                self.moved(group.group_id, member, now)

    def forget(self, group_id: str) -> None:
        """Remove all deadlines of a group."""
        self._due.pop(group_id, None)

    def expired(self, group: ConsumerGroup, now: Now) -> Collection[str]:
        """Return some members whose time is up. They are due again soon, in case they cannot be removed."""
        dues = self._due.get(group.group_id, {})
        found: dict[str, None] = {}
        for (member_id, timer), due_ms in tuple(dues.items()):
            if not _counts(timer, group.members.get(member_id)):
                del dues[member_id, timer]
            elif due_ms <= now.steady_ms and len(found) < MOST_EXPIRED:
                dues[member_id, timer] = now.steady_ms + RETRY_MS
                found[member_id] = None
        if dues:
            self._registry.wake(group.group_id, min(dues.values()))
        else:
            self.forget(group.group_id)
        return found


def _counts(timer: Timer, member: ConsumerMember | None) -> bool:
    """Return whether a deadline still counts. A static member that has left for a while has given up its partitions."""
    if member is None or timer is not Timer.REBALANCE:
        return member is not None
    return member.state is MemberState.UNREVOKED_PARTITIONS and bool(member.revoking)
