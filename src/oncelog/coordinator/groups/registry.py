"""The groups of one partition, their deadlines, and the writes under way."""

from __future__ import annotations

from collections.abc import Callable

from oncelog.coordinator.clock import Now
from oncelog.coordinator.effects import CoordinatorRecord, Effects
from oncelog.coordinator.groups.config import GroupConfig
from oncelog.coordinator.groups.group import Group
from oncelog.coordinator.groups.member import Member
from oncelog.coordinator.groups.states import GroupState
from oncelog.coordinator.timers import Deadlines
from oncelog.protocol.schema import Message


class Registry:
    """Shared by the modules of one coordinator.

    A group's members are soft state: only a finished generation is written. What a record of our own making stands
    for is staged with it and done when it is replayed, so that nothing changes when it cannot be appended; a record
    that was not staged (while loading) makes the group anew.
    """

    def __init__(self, config: GroupConfig, new_uuid: Callable[[], str]) -> None:
        """`new_uuid` makes the random part of a member id."""
        self.config = config
        self.new_uuid = new_uuid
        self.groups: dict[str, Group] = {}
        self.deadlines = Deadlines()
        self._staged: dict[str, list[tuple[Message | None, Callable[[], None]]]] = {}

    def get_or_make(self, group_id: str, wall_ms: int) -> Group:
        """The group, made now if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id, wall_ms)
        return group

    def drop(self, group_id: str, wall_ms: int) -> None:
        """Forgets a group."""
        group = self.groups.pop(group_id, None)
        self._staged.pop(group_id, None)
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

    def write(
        self, group: Group, record: CoordinatorRecord, effects: Effects, then: Callable[[], None] | None = None
    ) -> None:
        """Adds a record of the group's; `then` happens when it is in the log."""
        effects.records.append(record)
        staged = self._staged.setdefault(group.group_id, [])
        staged.append((record.value, then or _nothing))

    def take_staged(self, group_id: str, value: Message | None) -> Callable[[], None] | None:
        """What to do now that the record with this value is in the log; writes before it that failed are forgotten."""
        staged = self._staged.get(group_id, [])
        for index, (expected, then) in enumerate(staged):
            if expected is value:
                del staged[: index + 1]
                if not staged:
                    del self._staged[group_id]
                return then
        return None


def _nothing() -> None:
    return None
