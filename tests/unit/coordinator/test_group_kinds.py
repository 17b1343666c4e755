"""Another kind of groups beside the classic one: what it shares with it, and what keeps them apart.

The second kind has counted members instead of a protocol. Its records have their own keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

import pytest

from oncelog.coordinator.effects import CoordinatorRecord, Effects, Reply
from oncelog.coordinator.groups.classic.group import ClassicGroup
from oncelog.coordinator.groups.coordinator import CLEANUP_LIMIT, GroupCoordinator
from oncelog.coordinator.groups.group import Layouts
from oncelog.coordinator.groups.records import LAYOUTS
from oncelog.coordinator.groups.registry import GroupConfig, Registry
from oncelog.coordinator.timers import Now
from oncelog.protocol.errors import ErrorCode as E
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.list_groups import ListedGroup
from oncelog.protocol.messages.offset_commit import OffsetCommitRequest
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from oncelog.protocol.schema import Message, array, int32, string
from support.fixed_topics import FixedTopics
from support.group_driver import GROUP, GroupDriver, Waiting

KEY_VERSION = 90
HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS
PRODUCER = 7
PARTS = 3
"""The number of tombstones that delete a crowd."""


class CrowdKey(Message, versions=(KEY_VERSION, KEY_VERSION)):
    """The key of a crowd's record. Only part 0 has a value."""

    group: str = string()
    part: int = int32()


class CrowdValue(Message, versions=(0, 0)):
    """The members of a crowd, and the topic that they read."""

    count: int = int32()
    topics: list[str] = array("string")


class Crowd:
    """A group with a number of members. Any client that knows the number may commit offsets."""

    KIND: ClassVar[str] = "Crowd"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.count = 0
        self.topics: list[str] = []
        self.awake = 0

    @property
    def is_empty(self) -> bool:
        return not self.count

    @property
    def is_unused(self) -> bool:
        return self.is_empty

    def check_commit(self, request: OffsetCommitRequest, version: int) -> None:
        if self.count and request.generation_id_or_member_epoch != self.count:
            raise ProtocolError(E.STALE_MEMBER_EPOCH, "another number of members")

    def check_transactional_commit(self, request: TxnOffsetCommitRequest, _: Callable[[str], UUID | None]) -> None:
        if self.count and request.generation_id != self.count:
            raise ProtocolError(E.ILLEGAL_GENERATION, "another number of members")

    def check_offset_deletion(self) -> None:
        if self.count > 9:
            raise ProtocolError(E.NON_EMPTY_GROUP, "too many members")

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.topics

    def expires_since(self, commit_ms: int) -> int | None:
        return None if self.count else commit_ms

    def listed(self) -> ListedGroup:
        state = "Crowded" if self.count else "Empty"
        return ListedGroup(group_id=self.group_id, protocol_type="c", group_state=state, group_type=self.KIND)

    def tombstones(self) -> list[CoordinatorRecord]:
        keys = (CrowdKey(group=self.group_id, part=part) for part in range(PARTS))
        return [CoordinatorRecord(key, KEY_VERSION, None) for key in keys]


class Crowds:
    """The second kind."""

    name = Crowd.KIND
    layouts: ClassVar[Layouts] = {KEY_VERSION: (CrowdKey, CrowdValue)}

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.committed: list[str] = []
        self.topics: frozenset[str] = frozenset()

    def set(self, group_id: str, count: int, *topics: str) -> Effects:
        value = CrowdValue(count=count, topics=list(topics))
        return Effects(records=[CoordinatorRecord(CrowdKey(group=group_id), KEY_VERSION, value)])

    def replay(self, key: CrowdKey, value: CrowdValue | None) -> None:
        if value is None:
            self._registry.drop(key.group, Crowd)
        else:
            group = self._registry.find(key.group, Crowd) or self._registry.add(Crowd(key.group))
            group.count, group.topics = value.count, value.topics

    def loaded(self, group: Crowd, effects: Effects, now: Now) -> None:
        self._registry.wake(group.group_id, now.steady_ms + 1)

    def tick(self, group: Crowd, effects: Effects, now: Now) -> None:
        group.awake += 1

    def committed_by(self, group: Crowd, member_id: str, now: Now) -> None:
        self.committed.append(member_id)

    def topics_changed(self, topics: frozenset[str], effects: Effects, now: Now) -> None:
        self.topics = topics
        effects.replies.append(Reply(Waiting(), "seen"))


class CrowdDriver(GroupDriver):
    """A coordinator of both kinds."""

    layouts = LAYOUTS | Crowds.layouts

    def __init__(self) -> None:
        super().__init__(GroupConfig(offsets_retention_ms=RETENTION_MS, retention_check_interval_ms=HOUR_MS))

    def _new(self) -> GroupCoordinator:
        coordinator = super()._new()
        coordinator.registry.register(Crowds(coordinator.registry))
        return coordinator

    @property
    def crowds(self) -> Crowds:
        kind = self.coordinator.registry.kinds[Crowd.KIND]
        assert isinstance(kind, Crowds)
        return kind

    def crowd(self, count: int, *topics: str) -> None:
        """Give the crowd `g` members."""
        self.apply(self.crowds.set(GROUP, count, *topics))

    def delete_group(self) -> E:
        token = Waiting()
        self.apply(self.coordinator.delete_groups([GROUP], token))
        return E(token.response[0].error_code)

    def kind(self, coordinator: GroupCoordinator | None = None) -> str | None:
        group = (coordinator or self.coordinator).groups.get(GROUP)
        return None if group is None else group.KIND


@pytest.fixture
def crowds() -> CrowdDriver:
    return CrowdDriver()


def rejected(answer: Waiting | E) -> E:
    """Return the error of a commit that was rejected as a whole, or NONE."""
    return answer if isinstance(answer, E) else E.NONE


# -- what the kinds share -------------------------------------------------------------------------------------------


def test_group_of_each_kind_decides_who_commits(crowds: CrowdDriver) -> None:
    crowds.crowd(2, "t")
    assert rejected(crowds.commit({("t", 0): 1})) is E.STALE_MEMBER_EPOCH
    assert rejected(crowds.commit_in_transaction(PRODUCER, {("t", 0): 1}, generation=1)) is E.ILLEGAL_GENERATION
    assert crowds.crowds.committed == []
    assert rejected(crowds.commit({("t", 0): 1}, generation=2, member_id="me")) is E.NONE
    assert crowds.crowds.committed == ["me"]
    assert rejected(crowds.commit_in_transaction(PRODUCER, {("t", 0): 2}, generation=2)) is E.NONE
    crowds.marker(PRODUCER, True)
    assert (crowds.fetch(), crowds.kind()) == (2, "Crowd")


def test_offsets_of_each_kind_are_deleted_by_request(crowds: CrowdDriver) -> None:
    crowds.crowd(2, "t")
    crowds.commit({("t", 0): 1, ("u", 0): 1}, generation=2)
    assert (crowds.delete_offset("t"), crowds.delete_offset("u")) == (E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE)
    assert (crowds.fetch("t"), crowds.fetch("u")) == (1, -1)
    crowds.crowd(10, "t")
    with pytest.raises(ProtocolError, match="too many"):
        crowds.delete_offset("u")


def test_groups_of_each_kind_are_deleted_by_request(crowds: CrowdDriver) -> None:
    crowds.crowd(1)
    crowds.commit({("t", 0): 1}, generation=1)
    assert crowds.delete_group() is E.NON_EMPTY_GROUP
    crowds.crowd(0)
    assert crowds.delete_group() is E.NONE
    assert (crowds.kind(), crowds.kind(crowds.reloaded()), crowds.fetch()) == (None, None, -1)


def test_offsets_of_each_kind_expire_by_its_rule(crowds: CrowdDriver) -> None:
    crowds.crowd(1)
    crowds.commit({("t", 0): 1}, generation=1)
    crowds.pass_time(2 * RETENTION_MS)
    assert (crowds.fetch(), crowds.kind()) == (1, "Crowd")
    crowds.crowd(0)
    crowds.pass_time(2 * HOUR_MS)
    assert (crowds.fetch(), crowds.kind(), crowds.kind(crowds.reloaded())) == (-1, None, None)


def test_tombstones_of_a_group_are_in_one_batch(crowds: CrowdDriver) -> None:
    """After a crash between two batches, half a group would be loaded."""
    for number in range(CLEANUP_LIMIT):
        crowds.apply(crowds.crowds.set(f"g{number}", 0))
    batches = []
    while crowds.coordinator.groups:
        due = crowds.coordinator.deadline()
        assert due is not None
        crowds.now_ms = max(due, crowds.now_ms)
        batches.append(Counter(record.key.group for record in crowds.apply(crowds.coordinator.tick(crowds.now))))
    counts = [count for batch in batches for count in batch.values()]
    assert counts == [PARTS] * CLEANUP_LIMIT
    assert CLEANUP_LIMIT <= max(batch.total() for batch in batches) < CLEANUP_LIMIT + PARTS


def test_groups_of_each_kind_are_listed_by_its_name(crowds: CrowdDriver) -> None:
    crowds.crowd(1)
    listed = crowds.coordinator.list_groups
    (group,) = listed([], [])
    assert (group.group_id, group.protocol_type, group.group_state) == (GROUP, "c", "Crowded")
    assert listed(["crowded"], ["crowd"]) == listed([], ["classic", "crowd"]) == [group]
    assert listed([], ["classic"]) == listed(["empty"], []) == []


def test_groups_of_each_kind_are_loaded_and_wake_up(crowds: CrowdDriver) -> None:
    crowds.crowd(3, "t")
    crowds.commit({("t", 0): 5}, generation=3)
    crowds.fail_over()
    group = crowds.coordinator.registry.find(GROUP, Crowd)
    assert group is not None
    assert (group.count, group.topics, group.awake, crowds.fetch()) == (3, ["t"], 0, 5)
    crowds.pass_time(1)
    assert group.awake == 1


def test_each_kind_gets_the_changes_of_topics(crowds: CrowdDriver) -> None:
    effects = crowds.coordinator.topics_changed(frozenset({"t", "u"}), crowds.now)
    assert crowds.crowds.topics == {"t", "u"}
    assert [reply.response for reply in effects.replies] == ["seen"]


def test_records_of_each_kind_can_be_decoded() -> None:
    """A coordinator that is loaded ignores records without a layout, so the groups of their kind would be lost."""
    coordinator = GroupCoordinator(GroupConfig(), str, FixedTopics())
    layouts: Layouts = {version: layout for version, layout in LAYOUTS.items() if layout[0] is not OffsetCommitKey}
    assert layouts == {v: layout for kind in coordinator.registry.kinds.values() for v, layout in kind.layouts.items()}


# -- what keeps them apart ------------------------------------------------------------------------------------------


def test_requests_of_the_classic_protocol_reject_a_group_of_another_kind(crowds: CrowdDriver) -> None:
    crowds.crowd(1)
    joined = crowds.join("me")
    assert (joined.error, joined.response.member_id) == (E.INCONSISTENT_GROUP_PROTOCOL, "")
    assert crowds.sync("me", 1).error is E.UNKNOWN_MEMBER_ID
    assert crowds.heartbeat("me", 1) is E.UNKNOWN_MEMBER_ID
    assert crowds.leave(("me", None)).response.members[0].error_code == E.UNKNOWN_MEMBER_ID
    described = crowds.coordinator.classic.describe(GROUP, 6)
    assert (described.group_state, described.error_code) == ("Dead", E.GROUP_ID_NOT_FOUND)
    assert described.error_message == "Group g is not a classic group."
    assert crowds.kind() == "Crowd"


@pytest.mark.parametrize(
    ("group", "other", "kept"),
    [(Crowd(GROUP), ClassicGroup(GROUP), "Crowd"), (ClassicGroup(GROUP), Crowd(GROUP), "classic")],
)
def test_tombstone_of_one_kind_keeps_a_group_of_another(crowds: CrowdDriver, group: Any, other: Any, kept: str) -> None:
    """A compacted log may have the tombstone of the former kind after the records of the present one."""
    if isinstance(group, Crowd):
        crowds.crowd(1)
    else:
        crowds.stable_group(1)
    crowds.apply(Effects(other.tombstones()))
    assert crowds.kind() == crowds.kind(crowds.reloaded()) == kept
    crowds.apply(Effects(group.tombstones()))
    assert crowds.kind() is crowds.kind(crowds.reloaded()) is None


def test_group_that_only_has_offsets_becomes_one_of_the_kind_of_its_first_record(crowds: CrowdDriver) -> None:
    crowds.commit({("t", 0): 1})
    assert crowds.kind() == "classic"
    crowds.crowd(1, "t")
    assert crowds.kind() == crowds.kind(crowds.reloaded()) == "Crowd"
    assert crowds.fetch() == 1
