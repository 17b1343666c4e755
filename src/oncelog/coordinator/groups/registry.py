"""The groups of one partition, their deadlines, and their writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from oncelog.coordinator.clock import Now
from oncelog.coordinator.effects import CoordinatorRecord, Effects
from oncelog.coordinator.groups.config import GroupConfig
from oncelog.coordinator.groups.group import Group
from oncelog.coordinator.groups.member import Member
from oncelog.coordinator.groups.states import GroupState
from oncelog.coordinator.timers import Deadlines


class Registry:
    """Shared by the modules of one coordinator.

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

    def get_or_make(self, group_id: str, wall_ms: int) -> Group:
        """The group, made now if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, wall_ms)
        return group

    def drop(self, group_id: str, wall_ms: int) -> None:
        """Forgets a group."""
        group = self.groups.pop(group_id, None)
        self.deadlines.forget(group_id)
        if group is not None:
            group.transition_to(GroupState.DEAD, wall_ms)

    # -- time ---------------------------------------------------------------------------------------------------

    def wake(self, group: Group, due_ms: int) -> None:
        """Makes sure that the group is looked at by `due_ms`."""
        self.deadlines.at_latest(group.group_id, due_ms)

    def heard(self, group: Group, member: Member, now: Now, timeout_ms: int | None = None) -> None:
        """A member lives; its session (or `timeout_ms`) begins anew."""
        member.due_ms = now.steady_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.wake(group, member.due_ms)

    # -- writes -------------------------------------------------------------------------------------------------

    def write(self, record: CoordinatorRecord, effects: Effects, then: Callable[[], None] | None = None) -> None:
        """Add a group's record to the effects; `then` runs when the record is in the log."""
        effects.records.append(replace(record, replayed=then or _nothing))


def _nothing() -> None:
    return None
