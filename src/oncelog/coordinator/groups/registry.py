"""The classic groups of one coordinator, and their deadlines."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.coordinator.clock import Now
from oncelog.coordinator.groups.config import GroupConfig
from oncelog.coordinator.groups.group import Group, GroupState, Member
from oncelog.coordinator.timers import Deadlines


class Registry:
    """The groups by their ids, and their next deadlines.

    A group's members are soft state: the log holds only finished generations. A record that the coordinator creates
    carries its change. The coordinator applies the change when it replays the record, so a failed append changes
    nothing. A record that was read from the log carries no change: its replay builds the group from the content.
    """

    def __init__(self, config: GroupConfig, new_uuid: Callable[[], str]) -> None:
        """`new_uuid` makes the random part of a member id."""
        self.config = config
        self.new_uuid = new_uuid
        self.groups: dict[str, Group] = {}
        self.deadlines = Deadlines()

    def get_or_create(self, group_id: str, wall_ms: int) -> Group:
        """Return the group. Create it if it does not exist."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, wall_ms)
        return group

    def drop(self, group_id: str, wall_ms: int) -> None:
        """Delete a group."""
        group = self.groups.pop(group_id, None)
        self.deadlines.forget(group_id)
        if group is not None:
            group.transition_to(GroupState.DEAD, wall_ms)

    def wake(self, group: Group, due_ms: int) -> None:
        """Make sure that the coordinator's tick processes the group at `due_ms` or earlier."""
        self.deadlines.at_latest(group.group_id, due_ms)

    def touch_session(self, group: Group, member: Member, now: Now, timeout_ms: int | None = None) -> None:
        """Restart a member's session, with `timeout_ms` instead of its own time-out if it is given."""
        member.due_ms = now.steady_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.wake(group, member.due_ms)
