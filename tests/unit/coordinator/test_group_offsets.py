"""Committed offsets: who may commit, transactions, expiration, and their records."""

from __future__ import annotations

from itertools import chain
from uuid import UUID

import pytest

from oncelog.coordinator.effects import Effects
from oncelog.coordinator.groups.classic.group import GroupState as S
from oncelog.coordinator.groups.coordinator import CLEANUP_CHECKS, CLEANUP_LIMIT, CLEANUP_PAUSE_MS
from oncelog.coordinator.groups.records import CommittedOffset, decode_record, offset_record
from oncelog.coordinator.groups.registry import GroupConfig
from oncelog.protocol.errors import ErrorCode as E
from oncelog.protocol.messages.group_metadata_value import GroupMetadataKey
from oncelog.protocol.messages.offset_commit_value import OffsetCommitKey, OffsetCommitValue
from oncelog.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from oncelog.protocol.schema import read_version
from support.group_driver import GROUP, START_MS, GroupDriver, Waiting

HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS
PRODUCER, OTHER = 7, 8


def committed(answer: Waiting | E) -> bool:
    """Return whether every partition was committed."""
    if not isinstance(answer, Waiting):
        return False
    return {p.error_code for topic in answer.response.topics for p in topic.partitions} == {E.NONE}


# -- who may commit -------------------------------------------------------------------------------------------------


def test_consumer_with_manual_assignment_commits_without_a_generation() -> None:
    driver = GroupDriver()
    assert driver.fetch() == -1
    assert committed(driver.commit({("t", 0): 5, ("u", 1): 6}))
    assert (driver.fetch(), driver.fetch("u", 1), driver.fetch("u", 0)) == (5, 6, -1)
    assert driver.group.state is S.EMPTY
    assert committed(driver.commit({("t", 0): 3}))
    assert driver.fetch() == 3


def test_members_commit_only_in_their_generation() -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 1}, generation=0, version=8) is E.ILLEGAL_GENERATION
    assert driver.commit({("t", 0): 1}, generation=0, version=9) is E.GROUP_ID_NOT_FOUND
    (one,) = driver.stable_group(1)
    assert driver.commit({("t", 0): 1}) is E.UNKNOWN_MEMBER_ID
    assert driver.commit({("t", 0): 1}, member_id="x", generation=1) is E.UNKNOWN_MEMBER_ID
    assert driver.commit({("t", 0): 1}, member_id=one, generation=0) is E.ILLEGAL_GENERATION
    assert driver.commit({("t", 0): 1}, member_id=one, generation=-1) is E.ILLEGAL_GENERATION
    assert driver.commit({("t", 0): 1}, member_id=one, generation=1, instance="i") is E.UNKNOWN_MEMBER_ID
    assert driver.fetch() == -1
    assert committed(driver.commit({("t", 0): 1}, member_id=one, generation=1))
    assert driver.fetch() == 1


def test_members_may_commit_before_they_rejoin_but_not_during_the_assignment() -> None:
    driver = GroupDriver()
    (one,) = driver.stable_group(1)
    two, _ = driver.enter()
    assert driver.group.state is S.PREPARING_REBALANCE
    assert committed(driver.commit({("t", 0): 1}, member_id=one, generation=1))
    driver.join(one)
    assert driver.commit({("t", 0): 2}, member_id=one, generation=2) is E.REBALANCE_IN_PROGRESS
    assert driver.commit({("t", 0): 2}, member_id=two, generation=1) is E.ILLEGAL_GENERATION
    assert driver.fetch() == 1


def test_metadata_is_kept_and_has_a_limit() -> None:
    driver = GroupDriver(GroupConfig(offset_metadata_max_bytes=4))
    assert committed(driver.commit({("t", 0): 1}, metadata="äö\U0001f600"))
    answer = driver.commit({("t", 0): 2}, metadata="\U0001f600\U0001f600x")
    assert isinstance(answer, Waiting)
    assert answer.response.topics[0].partitions[0].error_code == E.OFFSET_METADATA_TOO_LARGE
    assert driver.coordinator.offsets.committed(GROUP)["t", 0].metadata == "äö\U0001f600"
    assert committed(driver.commit({("t", 0): 3}, metadata=None))
    assert driver.coordinator.offsets.committed(GROUP)["t", 0].metadata == ""


def test_commit_with_largest_retention_time_never_expires() -> None:
    driver = GroupDriver()
    assert committed(driver.commit({("t", 0): 5}, version=4, retention_ms=2**63 - 1))
    assert driver.coordinator.offsets.committed(GROUP)["t", 0].expire_timestamp_ms == 2**63 - 1


def test_commit_that_cannot_be_written_has_no_effect() -> None:
    driver = GroupDriver()
    driver.refuse = E.NOT_LEADER_OR_FOLLOWER
    answer = driver.commit({("t", 0): 1})
    assert isinstance(answer, Waiting)
    assert answer.failed is E.NOT_LEADER_OR_FOLLOWER
    assert driver.fetch() == -1


# -- fetching -------------------------------------------------------------------------------------------------------


def test_all_offsets_are_fetched_when_no_topic_is_named() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1, ("t", 1): 2, ("u", 0): 3})
    answer = driver.coordinator.offsets.fetch(OffsetFetchRequestGroup(group_id=GROUP, topics=None), False)
    assert {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in answer.topics
        for partition in topic.partitions
    } == {("t", 0): 1, ("t", 1): 2, ("u", 0): 3}
    unknown = OffsetFetchRequestGroup(group_id="unknown", topics=None)
    assert driver.coordinator.offsets.fetch(unknown, False).topics == []


def test_offset_of_a_deleted_topic_of_the_same_name_is_not_returned() -> None:
    driver = GroupDriver()
    ids = UUID(int=1), UUID(int=2)
    record = offset_record(GROUP, "t", 0, CommittedOffset(5, 3, "m", 1, None, ids[0]))
    driver.coordinator.replay(record)

    def fetch(topic_id: UUID) -> tuple[int, int]:
        topics = [OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])]
        group = OffsetFetchRequestGroup(group_id=GROUP, topics=topics)
        answer = driver.coordinator.offsets.fetch(group, False).topics[0].partitions[0]
        return answer.committed_offset, answer.committed_leader_epoch

    assert fetch(ids[0]) == (5, 3)
    assert fetch(ids[1]) == (-1, -1)
    assert driver.fetch() == 5


# -- transactions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_pending_offsets_end_with_their_transaction(commit: bool) -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1})
    assert committed(driver.commit_in_transaction(PRODUCER, {("t", 0): 9}))
    assert driver.fetch() == 1
    assert driver.fetch(stable=True) is E.UNSTABLE_OFFSET_COMMIT
    assert driver.fetch("u", stable=True) == -1
    driver.marker(OTHER, True)
    assert driver.fetch(stable=True) is E.UNSTABLE_OFFSET_COMMIT
    driver.marker(PRODUCER, commit)
    assert driver.fetch(stable=True) == driver.fetch() == (9 if commit else 1)
    driver.marker(PRODUCER, not commit)
    assert driver.fetch() == (9 if commit else 1)


def test_two_transactions_on_one_partition() -> None:
    driver = GroupDriver()
    driver.commit_in_transaction(PRODUCER, {("t", 0): 1})
    driver.commit_in_transaction(OTHER, {("t", 0): 2})
    driver.marker(OTHER, True)
    assert driver.fetch() == 2
    assert driver.fetch(stable=True) is E.UNSTABLE_OFFSET_COMMIT
    driver.marker(PRODUCER, True)
    assert driver.fetch(stable=True) == 2  # written before, so it is not newer


def test_later_commit_outside_a_transaction_takes_precedence() -> None:
    driver = GroupDriver()
    driver.commit_in_transaction(PRODUCER, {("t", 0): 1})
    driver.commit({("t", 0): 2})
    driver.marker(PRODUCER, True)
    assert driver.fetch() == 2


def test_zombies_are_detected_by_their_generation() -> None:
    driver = GroupDriver()
    assert driver.commit_in_transaction(PRODUCER, {("t", 0): 1}, generation=1) is E.ILLEGAL_GENERATION
    one, two = driver.stable_group(2)
    assert committed(driver.commit_in_transaction(PRODUCER, {("t", 0): 1}, member_id=one, generation=1))
    driver.leave((two, None))
    driver.join(one)
    assert driver.commit_in_transaction(PRODUCER, {("t", 0): 2}, member_id=two, generation=1) is E.UNKNOWN_MEMBER_ID
    assert driver.commit_in_transaction(PRODUCER, {("t", 0): 2}, member_id=one, generation=1) is E.ILLEGAL_GENERATION
    # During a rebalance, a transaction of this generation may still commit, and so may a bare group id.
    assert committed(driver.commit_in_transaction(PRODUCER, {("t", 0): 3}, member_id=one, generation=2))
    assert committed(driver.commit_in_transaction(PRODUCER, {("t", 0): 4}))
    static = driver.join(instance="i")
    driver.join(one)
    old = static.response.member_id
    driver.sync(one, 3, {})
    driver.join(instance="i")
    answer = driver.commit_in_transaction(PRODUCER, {("t", 0): 5}, member_id=old, generation=3, instance="i")
    assert answer is E.FENCED_INSTANCE_ID


def test_tombstone_drops_pending_offsets() -> None:
    """KAFKA-14505."""
    driver = GroupDriver()
    topic_id = UUID(int=1)
    driver.commit({("t", 0): 1, ("u", 0): 1})
    driver.commit_in_transaction(PRODUCER, {("t", 0): 2})
    driver.commit_in_transaction(OTHER, {("t", 0): 3, ("u", 0): 4})
    driver.apply(Effects(list(chain.from_iterable(driver.coordinator.delete_topic_offsets("t", topic_id)))))
    assert driver.fetch(stable=True) == -1
    driver.marker(PRODUCER, True)
    driver.marker(OTHER, True)
    assert (driver.fetch(stable=True), driver.fetch("u", stable=True)) == (-1, 4)
    assert driver.coordinator.offsets.open_transactions() == {}


def test_pending_offsets_survive_a_fail_over() -> None:
    driver = GroupDriver()
    driver.commit_in_transaction(PRODUCER, {("t", 0): 2})
    driver.fail_over()
    assert driver.fetch(stable=True) is E.UNSTABLE_OFFSET_COMMIT
    driver.marker(PRODUCER, True)
    driver.fail_over()
    assert driver.fetch(stable=True) == 2


# -- expiration -----------------------------------------------------------------------------------------------------


def expiring(**changes: int) -> GroupDriver:
    return GroupDriver(GroupConfig(offsets_retention_ms=RETENTION_MS, retention_check_interval_ms=HOUR_MS, **changes))


def live(driver: GroupDriver, member: str, ms: int) -> None:
    """Send heartbeats of the member, which has the longest session."""
    for _ in range(3 * ms // HOUR_MS):
        driver.pass_time(HOUR_MS // 3)
        assert driver.heartbeat(member, 1) is E.NONE


def test_offsets_of_a_group_without_members_expire_with_the_group() -> None:
    driver = expiring()
    driver.commit({("t", 0): 1})
    driver.pass_time(RETENTION_MS - HOUR_MS)
    assert driver.fetch() == 1
    driver.commit({("t", 1): 1})
    driver.pass_time(2 * HOUR_MS)
    assert (driver.fetch(), driver.fetch("t", 1)) == (-1, 1)
    assert GROUP in driver.coordinator.groups
    driver.pass_time(RETENTION_MS)
    assert driver.coordinator.groups == {}
    assert driver.reloaded().groups == {}
    assert driver.coordinator.deadline() is None


def test_retention_starts_when_the_last_member_leaves() -> None:
    driver = expiring()
    (one,) = driver.stable_group(1, session_ms=1_800_000)
    driver.commit({("t", 0): 1}, member_id=one, generation=1)
    live(driver, one, 2 * RETENTION_MS)
    assert driver.fetch() == 1
    driver.leave((one, None))
    driver.pass_time(RETENTION_MS - HOUR_MS)
    assert driver.fetch() == 1
    driver.pass_time(2 * HOUR_MS)
    assert driver.fetch() == -1


def test_offsets_of_a_topic_that_no_member_reads_expire() -> None:
    driver = expiring()
    (one,) = driver.stable_group(1, session_ms=1_800_000)
    driver.commit({("t", 0): 1, ("gone", 0): 1}, member_id=one, generation=1)
    live(driver, one, RETENTION_MS + 2 * HOUR_MS)
    assert (driver.fetch(), driver.fetch("gone")) == (1, -1)
    assert driver.group.state is S.STABLE


def test_offsets_with_an_open_transaction_do_not_expire() -> None:
    driver = expiring()
    driver.commit({("t", 0): 1, ("u", 0): 1})
    driver.commit_in_transaction(PRODUCER, {("t", 0): 2})
    driver.pass_time(2 * RETENTION_MS)
    assert (driver.fetch(), driver.fetch("u")) == (1, -1)
    assert GROUP in driver.coordinator.groups
    driver.marker(PRODUCER, False)
    driver.pass_time(2 * HOUR_MS)
    assert driver.coordinator.groups == {}


def test_clients_own_retention_time_is_used() -> None:
    driver = expiring()
    driver.commit({("t", 0): 1}, retention_ms=2 * HOUR_MS, version=4)
    driver.commit({("t", 1): 1})
    assert read_version(driver.log[-2].value or b"") == 1
    driver.pass_time(3 * HOUR_MS)
    assert (driver.fetch(), driver.fetch("t", 1)) == (-1, 1)


def test_offsets_of_a_joining_group_do_not_expire() -> None:
    driver = expiring()
    driver.pass_time(HOUR_MS - 1)
    member = driver.join(session_ms=60_000).response.member_id
    driver.pass_time(1)
    assert driver.join(member).response is None
    driver.pass_time(0)
    assert driver.group.state is S.COMPLETING_REBALANCE


def test_clean_up_examines_few_offsets_per_tick() -> None:
    driver = expiring()
    driver.commit({("t", partition): 1 for partition in range(3 * CLEANUP_CHECKS)})
    ticks = 0
    driver.pass_time(HOUR_MS - 1)
    assert driver.coordinator.deadline() == driver.now_ms + 1
    driver.now_ms += 1
    while not driver.coordinator.tick(driver.now).records and driver.coordinator.deadline() != START_MS + 2 * HOUR_MS:
        ticks += 1
        driver.now_ms += CLEANUP_PAUSE_MS
    assert ticks == 3


def test_offset_committed_during_the_clean_up_is_kept() -> None:
    driver = expiring()
    driver.commit({("t", partition): 1 for partition in range(2 * CLEANUP_LIMIT)})
    driver.pass_time(RETENTION_MS - 1)
    driver.now_ms += 1
    driver.apply(driver.coordinator.tick(driver.now))
    last = ("t", 2 * CLEANUP_LIMIT - 1)
    assert driver.fetch() == -1
    assert driver.fetch(*last) == 1
    driver.commit({("t", 0): 2, last: 2})
    driver.pass_time(HOUR_MS - 1)
    assert driver.coordinator.offsets.committed(GROUP).keys() == {("t", 0), last}
    assert GROUP in driver.coordinator.groups


def test_deletion_of_a_topic_keeps_offsets_of_a_new_topic_of_that_name() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1, ("t", 1): 1})
    found = driver.coordinator.delete_topic_offsets("t", UUID(int=1))
    driver.commit({("t", 1): 2})
    driver.apply(Effects(list(chain.from_iterable(found))))
    assert (driver.fetch(), driver.fetch("t", 1)) == (-1, 2)


def test_many_offsets_expire_in_several_batches() -> None:
    driver = expiring()
    driver.commit({("t", partition): 1 for partition in range(2 * CLEANUP_LIMIT)})
    driver.pass_time(RETENTION_MS - 1)
    before = len(driver.log)
    driver.pass_time(HOUR_MS)
    assert len(driver.log) == before + 2 * CLEANUP_LIMIT + 1
    assert driver.coordinator.groups == {}
    assert driver.now_ms > START_MS + 2 * CLEANUP_PAUSE_MS


# -- records ----------------------------------------------------------------------------------------------------------


def test_records_have_kafkas_layout() -> None:
    driver = GroupDriver()
    (one,) = driver.stable_group(1)
    driver.commit({("t", 0): 258}, member_id=one, generation=1, metadata="m")
    entry = driver.log[-1]
    assert entry.key == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x00"
    timestamp = driver.now_ms.to_bytes(8, "big")
    # Version 4 is flexible: compact strings, and no tagged fields if the topic has no id.
    assert entry.value == b"\x00\x04" + (258).to_bytes(8, "big") + b"\xff\xff\xff\xff\x02m" + timestamp + b"\x00"
    group = driver.log[-2]
    assert group.key == b"\x00\x02\x00\x01g"
    assert read_version(group.value or b"") == 3


@pytest.mark.parametrize("key_version", [0, 1])
def test_old_record_versions_are_read(key_version: int) -> None:
    key = key_version.to_bytes(2, "big") + OffsetCommitKey(group="g", topic="t", partition=1).encode(key_version)
    for version in range(4):
        value = OffsetCommitValue(offset=version, metadata="", commit_timestamp=5)
        record = decode_record(key, version.to_bytes(2, "big") + value.encode(version))
        assert record is not None
        driver = GroupDriver()
        driver.coordinator.replay(record)
        assert driver.fetch("t", 1) == version


@pytest.mark.parametrize("key", [b"\x00\x0b\x00\x01g", b"\x00\x15", b"\x7f\xff"])
def test_records_of_other_group_types_are_skipped(key: bytes) -> None:
    assert decode_record(key, None) is None


def test_values_of_a_newer_broker_are_skipped() -> None:
    key = b"\x00\x02" + GroupMetadataKey(group="g").encode(2)
    assert decode_record(key, b"\x00\x63anything") is None


def test_unreadable_subscription_keeps_all_offsets() -> None:
    driver = expiring()
    (one,) = driver.stable_group(1, protocols=(("range", b"\x00"),), session_ms=1_800_000)
    driver.commit({("t", 0): 1}, member_id=one, generation=1)
    assert driver.group.subscribed_topics is None
    live(driver, one, RETENTION_MS + 2 * HOUR_MS)
    assert driver.fetch() == 1
