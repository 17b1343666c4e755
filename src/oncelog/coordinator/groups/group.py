"""What the coordinator asks of each group and of each kind of groups (Kafka's `Group`).

A kind of groups has its own requests, records and rules. All kinds share the offsets, their expiry and deletion, and
the lists. To add a kind, implement both protocols and register the kind (`Registry.register`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol
from uuid import UUID

from oncelog.coordinator.effects import CoordinatorRecord, Effects
from oncelog.coordinator.timers import Now
from oncelog.protocol.messages.list_groups import ListedGroup
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from oncelog.protocol.schema import Message

Layouts = dict[int, tuple[type[Message], type[Message]]]
"""The types of key and value by the version of the key."""


class Group(Protocol):
    """One group: what its offsets, their expiry and deletion, and the lists require of it."""

    KIND: ClassVar[str]
    """The name of its `GroupKind`."""

    @property
    def group_id(self) -> str:
        """Return the id of the group."""

    @property
    def is_empty(self) -> bool:
        """Return whether the group has no members. Clients may delete it, and any client may commit offsets."""

    @property
    def is_unused(self) -> bool:
        """Return whether the group is empty and no client is about to join it. Without offsets, it is deleted."""

    def check_commit(self, request: OffsetCommitRequest, version: int) -> None:
        """Raise ProtocolError unless the client may commit offsets."""

    def check_transactional_commit(self, request: TxnOffsetCommitRequest, id_of: Callable[[str], UUID | None]) -> None:
        """Raise ProtocolError unless the client may commit offsets in a transaction. `id_of`: topic id by name."""

    def check_offset_deletion(self) -> None:
        """Raise ProtocolError unless clients may delete offsets of topics that no member reads."""

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member reads the topic, or may read it. Its offsets are kept."""

    def expires_since(self, commit_ms: int) -> int | None:
        """Return when the retention of an offset committed at `commit_ms` began, or None if it does not expire."""

    def clients(self) -> list[tuple[str, str]]:
        """Return the client id and the host of each member. A host has no leading slash."""

    def listed(self) -> ListedGroup:
        """Return the group as ListGroups shows it."""

    def tombstones(self) -> list[CoordinatorRecord]:
        """Return the records that delete the group. Those of its offsets come before."""


class GroupKind(Protocol):
    """One kind of groups in one coordinator. A parameter `group` is always a group of this kind."""

    name: str
    """The type of the groups in ListGroups, spelled as in Kafka's coordinator (`Group.GroupType`)."""
    layouts: ClassVar[Layouts]
    """The layouts of its records. `records.LAYOUTS` includes those of each kind."""

    def replay(self, key: Any, value: Any) -> None:
        """Apply a record of this kind. `value` is None for a tombstone, which deletes only groups of this kind."""

    def loaded(self, group: Any, effects: Effects, now: Now) -> None:
        """Start the timers of a group that was loaded. Topics may have changed meanwhile."""

    def tick(self, group: Any, effects: Effects, now: Now) -> None:
        """Process all deadlines of a group that have passed, and set its next one (`Registry.wake`)."""

    def committed_by(self, group: Any, member_id: str, now: Now) -> None:
        """Note that a client commits offsets. It may be a member. Its commit has passed `check_commit`."""

    def topics_changed(self, topics: frozenset[str], effects: Effects, now: Now) -> None:
        """React to topics that were created or deleted, or that have more partitions than before."""
