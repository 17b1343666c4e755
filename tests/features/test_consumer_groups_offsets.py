"""Offsets of groups of the consumer protocol (KIP-848): who may commit, fetch and delete them, with which epoch."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

import pytest

from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.schema import NO_UUID
from support.consumer_groups import NewMember, describe_consumer, seen_topic, settle
from support.groups import commit, delete_groups, delete_offsets, offsets_of, txn_commit
from support.wire import Wire, code, retried, until

STALE = code("STALE_MEMBER_EPOCH")
UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
ILLEGAL_GENERATION = code("ILLEGAL_GENERATION")
UNSUPPORTED_VERSION = code("UNSUPPORTED_VERSION")
GROUP_ID_NOT_FOUND = code("GROUP_ID_NOT_FOUND")
ALL = [0, 1, 2, 3]
ANSWERS: list[tuple[str, int, int]] = [
    ("m", 0, 0),
    ("m", -1, STALE),
    ("m", 1, STALE),
    ("stranger", 0, UNKNOWN_MEMBER_ID),
    ("", 0, UNKNOWN_MEMBER_ID),
]
"""Member id, difference to the member's epoch, and the error."""


class Group(NamedTuple):
    """A group of one member, which owns all partitions of the topic of the same name."""

    wire: Wire
    name: str
    topic: UUID
    member: NewMember

    def commit(
        self, partitions: list[int], epoch: int, member_id: str = "m", *, version: int = 9, **fields: Any
    ) -> Any:
        """Return the error codes of OffsetCommit."""
        return commit(
            self.wire,
            self.name,
            dict.fromkeys(partitions, 5),
            group_id=self.name,
            member_id=member_id,
            generation_id_or_member_epoch=epoch,
            version=version,
            topic_id=self.topic if version >= 10 else NO_UUID,
            **fields,
        )

    def fetch(
        self, member_id: str | None, epoch: int, *, version: int = 9, every: bool = False
    ) -> tuple[int, list[int]]:
        """Return the error code of OffsetFetch and the offsets."""
        which = {"topic_id": self.topic} if version >= 10 else {"name": self.name}
        topics = None if every else [OffsetFetchRequestTopics(**which, partition_indexes=[0])]
        asked = OffsetFetchRequestGroup(group_id=self.name, member_id=member_id, member_epoch=epoch, topics=topics)
        found = retried(lambda: self.wire.call(OffsetFetchRequest(groups=[asked]), version).groups[0])
        offsets = [each.committed_offset for topic in found.topics for each in topic.partitions]
        return found.error_code, offsets

    def divide(self) -> tuple[NewMember, list[int], list[int]]:
        """Let a second member join. Return it, and the partitions that each member has then."""
        second = NewMember(self.wire, self.name, "second")
        second.join(self.name)
        settle(self.member, second)
        return second, self.member.owned[self.topic], second.owned[self.topic]


@pytest.fixture
def group(wire: Wire, name: str) -> Group:
    topic = seen_topic(wire, name, len(ALL))
    return Group(wire, name, topic, NewMember(wire, name).joined(name, owns={topic: ALL}))


# -- OffsetCommit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("member_id", "difference", "error"), ANSWERS)
@pytest.mark.parametrize("version", [9, 10])
def test_commit_needs_the_members_epoch(
    group: Group, member_id: str, difference: int, error: int, version: int
) -> None:
    assert group.commit([0], group.member.epoch + difference, member_id, version=version) == [error]
    assert offsets_of(group.wire, group.name) == ({} if error else {(group.name, 0): 5})


@pytest.mark.parametrize("version", [9, 10])
def test_commit_of_an_admin_needs_an_empty_group(group: Group, version: int) -> None:
    assert group.commit([0], -1, "", version=version) == [UNKNOWN_MEMBER_ID]
    assert group.commit([0], -1, version=version) == [STALE]
    group.member.leave()
    assert group.commit([0], -1, "", version=version) == [0]
    assert group.commit([0], -1, "anybody", version=version) == [0]
    assert group.commit([0], 5, "", version=version) == [UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", [2, 5, 8])
def test_versions_that_do_not_know_the_error_cannot_commit(group: Group, version: int) -> None:
    for difference in (0, 1, -1):
        assert group.commit([0], group.member.epoch + difference, version=version) == [UNSUPPORTED_VERSION]
    assert group.commit([0], group.member.epoch, "stranger", version=version) == [UNKNOWN_MEMBER_ID]
    group.member.leave()
    assert group.commit([0], -1, "", version=version) == [0]


def test_commit_needs_no_subscription(group: Group) -> None:
    other = f"{group.name}-other"
    group.wire.create_topic(other)
    fields: dict[str, Any] = {
        "group_id": group.name,
        "member_id": "m",
        "generation_id_or_member_epoch": group.member.epoch,
    }
    assert commit(group.wire, other, {0: 7}, **fields) == [0]


@pytest.mark.parametrize("version", [9, 10])
def test_older_epoch_may_commit_what_the_member_has_had_since(group: Group, version: int) -> None:
    """KAFKA-19862: a commit that was on its way while the member got the next epoch is not lost."""
    old = group.member.epoch
    _, kept, given_up = group.divide()
    assert group.member.epoch == old + 1
    assert group.commit(kept, old, version=version) == [0, 0]
    assert group.commit(kept, old - 1, version=version) == [STALE, STALE]
    assert group.commit(given_up, old, version=version) == [STALE, STALE]
    assert group.commit(ALL, old, version=version) == [STALE] * 4
    assert group.commit(given_up, old, "second", version=version) == [STALE, STALE]
    assert group.commit(ALL, old + 1, version=version) == [0] * 4


def test_partition_that_comes_back_counts_from_then_on(group: Group) -> None:
    old = group.member.epoch
    second, kept, back = group.divide()
    second.leave()
    group.member.until_owns({group.topic: ALL})
    assert group.member.epoch == old + 2
    for epoch in (old, old + 1):
        assert group.commit(kept, epoch) == [0, 0]
        assert group.commit(back, epoch) == [STALE, STALE]
    assert group.commit(ALL, old + 2) == [0] * 4


def test_member_commits_while_it_gives_partitions_up(group: Group) -> None:
    """Also those that it gives up: that is when clients commit."""
    old = group.member.epoch
    second = NewMember(group.wire, group.name, "second")
    assert second.join(group.name).error_code == 0
    assert group.commit(ALL, old) == [0] * 4
    until(group.member.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    assert group.member.epoch == old
    assert group.commit(ALL, old) == [0] * 4
    assert group.commit([0], second.epoch, "second") == [0]


# -- TxnOffsetCommit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 4, 5])
def test_transaction_needs_the_members_epoch_or_no_member(group: Group, version: int) -> None:
    wire, epoch = group.wire, group.member.epoch
    session = wire.session(group.name)
    assert not wire.add_offsets(group.name, session, group.name).error_code

    def errors(*cases: tuple[str, int]) -> list[int]:
        return [
            txn_commit(
                wire, group.name, session, group.name, 7,
                group_id=group.name, member_id=member_id, generation_id=epoch, version=version,
            )
            for member_id, epoch in cases
        ]  # fmt: skip

    assert errors(("m", epoch), ("", -1)) == [0, 0]
    assert errors(("m", epoch - 1), ("m", epoch + 1), ("m", -1)) == [ILLEGAL_GENERATION] * 3
    assert errors(("stranger", epoch), ("", epoch)) == [UNKNOWN_MEMBER_ID] * 2
    assert wire.end(group.name, session, commit=False).error_code == 0


def test_older_epoch_in_a_transaction(group: Group) -> None:
    wire, old = group.wire, group.member.epoch
    _, kept, given_up = group.divide()
    session = wire.session(group.name)
    assert not wire.add_offsets(group.name, session, group.name).error_code
    for partition, error in [(kept[0], 0), (given_up[0], ILLEGAL_GENERATION)]:
        fields: dict[str, Any] = {"group_id": group.name, "member_id": "m", "generation_id": old, "version": 5}
        assert txn_commit(wire, group.name, session, group.name, 7, partition=partition, **fields) == error
    assert wire.end(group.name, session, commit=False).error_code == 0


# -- OffsetFetch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("member_id", "difference", "error"), ANSWERS)
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("version", [9, 10])
def test_member_fetches_with_its_epoch(
    group: Group, member_id: str, difference: int, error: int, version: int, every: bool
) -> None:
    assert group.commit([0], group.member.epoch) == [0]
    found = group.fetch(member_id, group.member.epoch + difference, version=version, every=every)
    assert found == (error, [] if error else [5])


@pytest.mark.parametrize("version", [8, 9, 10])
def test_anybody_fetches_without_a_member_id(group: Group, version: int) -> None:
    assert group.commit([0], group.member.epoch) == [0]
    assert group.fetch(None, -1, version=version) == (0, [5])
    group.member.leave()
    assert group.fetch(None, -1, version=version) == (0, [5])


def test_fetch_of_an_empty_member_id_is_one_of_a_member(group: Group) -> None:
    assert group.fetch("", -1) == (UNKNOWN_MEMBER_ID, [])
    assert group.fetch("m", -1) == (STALE, [])
    epoch = group.member.epoch
    group.member.leave()
    assert group.fetch("m", epoch) == (UNKNOWN_MEMBER_ID, [])


def test_fetch_with_an_older_epoch_is_stale(group: Group) -> None:
    """Unlike a commit."""
    old = group.member.epoch
    group.divide()
    assert group.fetch("m", old) == (STALE, [])
    assert group.fetch("m", old + 1) == (0, [-1])


@pytest.mark.parametrize("member_id", [None, "m"])
def test_group_that_does_not_exist_has_no_offsets(wire: Wire, name: str, member_id: str | None) -> None:
    topic = seen_topic(wire, name)
    group = Group(wire, name, topic, NewMember(wire, name))
    assert group.fetch(member_id, -1 if member_id is None else 1) == (0, [-1])
    assert group.commit([0], 1) == [GROUP_ID_NOT_FOUND]


# -- deletion ----------------------------------------------------------------------------------------------------------


def test_offsets_of_subscribed_topics_are_not_deleted(group: Group) -> None:
    other = f"{group.name}-other"
    group.wire.create_topic(other)
    epoch = group.member.epoch
    fields: dict[str, Any] = {"group_id": group.name, "member_id": "m", "generation_id_or_member_epoch": epoch}
    assert commit(group.wire, other, {0: 1}, **fields) == [0]
    assert group.commit([0], epoch) == [0]
    asked = {group.name: [0, 1], other: [0]}
    subscribed = code("GROUP_SUBSCRIBED_TO_TOPIC")
    assert delete_offsets(group.wire, group.name, asked) == {
        (group.name, 0): subscribed,
        (group.name, 1): subscribed,
        (other, 0): 0,
    }
    assert offsets_of(group.wire, group.name) == {(group.name, 0): 5}
    group.member.leave()
    assert delete_offsets(group.wire, group.name, {group.name: [0, 1]}) == {(group.name, 0): 0, (group.name, 1): 0}
    assert offsets_of(group.wire, group.name) == {}


def test_empty_group_is_deleted_with_its_offsets(group: Group) -> None:
    assert group.commit([0], group.member.epoch) == [0]
    assert delete_groups(group.wire, group.name) == {group.name: code("NON_EMPTY_GROUP")}
    group.member.leave()
    assert describe_consumer(group.wire, group.name).group_state == "Empty"
    assert delete_groups(group.wire, group.name) == {group.name: 0}
    assert offsets_of(group.wire, group.name) == {}
    assert delete_groups(group.wire, group.name) == {group.name: GROUP_ID_NOT_FOUND}
    assert delete_offsets(group.wire, group.name, {group.name: [0]}) == GROUP_ID_NOT_FOUND


def test_offsets_wait_for_the_next_members(group: Group) -> None:
    assert group.commit([0], group.member.epoch) == [0]
    group.member.leave()
    second = NewMember(group.wire, group.name, "second")
    second.join(group.name)
    assert group.fetch("second", second.epoch) == (0, [5])
