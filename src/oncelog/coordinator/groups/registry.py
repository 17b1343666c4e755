"""The groups of one coordinator, of all kinds, their deadlines, and the coordinator's settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from oncelog.coordinator.groups.group import Group, GroupKind
from oncelog.coordinator.timers import Deadlines
from oncelog.protocol.schema import Message

G = TypeVar("G", bound=Group)


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The `group.*` and `offsets.*` settings of a broker. Times are in ms.

    The defaults are Kafka's, except for the initial rebalance delay.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 0
    max_size: int = 2**31 - 1
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """Assignors that members may choose. The first one is for members that choose none."""
    consumer_migration_policy: str = "bidirectional"
    """`bidirectional`, `upgrade`, `downgrade` or `disabled`, in lower case."""
    consumer_regex_refresh_interval_ms: int = 600_000
    record_max_bytes: int = 1_048_588
    """The size of a batch, which one record may fill."""
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    retention_check_interval_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings that each group of the consumer protocol may have for itself (KIP-848). Times are in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


FindConsumerSettings = Callable[[str], ConsumerSettings]
"""Return the present settings of a group by its id, also if the group does not exist."""


class GroupStatistics:
    """Counters of all coordinators of a broker, for metrics (Kafka's `GroupCoordinatorMetrics`)."""

    __slots__ = ("completed_rebalances", "consumer_rebalances", "deleted_offsets", "expired_offsets", "offset_commits")

    def __init__(self) -> None:
        self.completed_rebalances = 0
        """Assignments of classic groups that their leaders have sent."""
        self.consumer_rebalances = 0
        """New epochs of groups of the consumer protocol."""
        self.deleted_offsets = 0
        """Offsets that OffsetDelete has deleted."""
        self.expired_offsets = 0
        self.offset_commits = 0
        """Offsets, also those of transactions that were aborted later."""


class Registry:
    """The groups by their ids, and their next deadlines. A group id has one group, of one kind."""

    def __init__(
        self,
        config: GroupConfig,
        new_uuid: Callable[[], str],
        statistics: GroupStatistics | None = None,
        consumer_settings: FindConsumerSettings = lambda _: ConsumerSettings(),
    ) -> None:
        """`new_uuid` makes the random part of a member id."""
        self.config = config
        self.statistics = statistics or GroupStatistics()
        self.new_uuid = new_uuid
        self._consumer_settings = consumer_settings
        self.groups: dict[str, Group] = {}
        self.deadlines = Deadlines()
        self.is_loaded = False
        self.kinds: dict[str, GroupKind] = {}
        self._kind_of_key: dict[type[Message], GroupKind] = {}

    # -- kinds --------------------------------------------------------------------------------------------------

    def register(self, kind: GroupKind) -> None:
        """Add a kind of groups."""
        self.kinds[kind.name] = kind
        self._kind_of_key.update((key, kind) for key, _ in kind.layouts.values())

    def kind_of(self, group: Group) -> GroupKind:
        """Return the kind of a group."""
        return self.kinds[group.KIND]

    def kind_of_key(self, key: Message) -> GroupKind:
        """Return the kind of groups whose records have keys of this type."""
        return self._kind_of_key[type(key)]

    # -- settings -----------------------------------------------------------------------------------------------

    def consumer_settings(self, group_id: str) -> ConsumerSettings:
        """Return the present settings of a group of the consumer protocol. They may change between two heartbeats."""
        return self._consumer_settings(group_id)

    # -- groups -------------------------------------------------------------------------------------------------

    def find(self, group_id: str, of: type[G]) -> G | None:
        """Return the group if there is one of this kind."""
        group = self.groups.get(group_id)
        return group if isinstance(group, of) else None

    def add(self, group: G) -> G:
        """Add a group. It replaces one of the same id and another kind, because the newest record counts."""
        self.deadlines.forget(group.group_id)
        self.groups[group.group_id] = group
        return group

    def drop(self, group_id: str, of: type[G]) -> G | None:
        """Delete the group if it is one of this kind, and return it."""
        group = self.find(group_id, of)
        if group is not None:
            del self.groups[group_id]
            self.deadlines.forget(group_id)
        return group

    def wake(self, group_id: str, due_ms: int) -> None:
        """Make sure that the coordinator's tick processes the group at `due_ms` or earlier."""
        self.deadlines.at_latest(group_id, due_ms)

    def wake_new(self, group_id: str) -> None:
        """Let the next tick start the timers of a group that a record has created. `loaded` starts those of a load."""
        if self.is_loaded:
            self.deadlines.at_latest(group_id, 0)
