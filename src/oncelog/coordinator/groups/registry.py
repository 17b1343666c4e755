"""The classic groups of one coordinator, their deadlines, and the coordinator's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oncelog.coordinator.groups.group import NO_TIMESTAMP, Group, GroupState, Member
from oncelog.coordinator.timers import Deadlines, Now

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member that has never been in a generation may wait before it has to join again (KAFKA-7610)."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The `group.*` and `offsets.*` settings of a broker. Times are in ms.

    The defaults are Kafka's, except for the initial rebalance delay.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 0
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    retention_check_interval_ms: int = 600_000


class Registry:
    """The groups by their ids, and their next deadlines.

    The members of a generation that is not finished are soft state: the log holds only finished generations.
    """

    def __init__(self, config: GroupConfig, new_uuid: Callable[[], str]) -> None:
        """`new_uuid` makes the random part of a member id."""
        self.config = config
        self.new_uuid = new_uuid
        self.groups: dict[str, Group] = {}
        self.deadlines = Deadlines()

    def get_or_create(self, group_id: str, wall_ms: int = NO_TIMESTAMP) -> Group:
        """Return the group. If it does not exist, create it as EMPTY since `wall_ms`."""
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
        """Restart a member's session, with `timeout_ms` instead of its own timeout if it is given."""
        member.due_ms = now.steady_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self.wake(group, member.due_ms)
