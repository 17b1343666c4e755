"""Committed offsets: who may commit, what is stored, how it is fetched, expires and is deleted."""

from __future__ import annotations

from uuid import UUID

import pytest

from oncelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from oncelog.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.schema import NO_UUID
from support.groups import (
    Member,
    commit,
    delete_groups,
    delete_offsets,
    describe,
    fetch_group,
    finish,
    offsets_of,
    pending,
    simple_commit,
    stable,
    subscription,
)
from support.servers import Server
from support.wire import Wire, code, retried, until

UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
ILLEGAL_GENERATION = code("ILLEGAL_GENERATION")
UNSTABLE = code("UNSTABLE_OFFSET_COMMIT")
SETTINGS = {
    "offsets.retention.check.interval.ms": "100",
    "offset.metadata.max.bytes": "10",
    "group.min.session.timeout.ms": "500",
}


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    """Connect to a server that checks for expired offsets all the time."""
    return module_wire


@pytest.fixture
def topic(wire: Wire, name: str) -> str:
    """Create a topic of two partitions. Groups of the same name read it."""
    wire.create_topic(name, 2)
    wire.find_coordinator(name, 0)
    return name


# -- who may commit --------------------------------------------------------------------------------------------------


def test_commit_with_manual_assignment_needs_no_group(wire: Wire, topic: str) -> None:
    assert commit(wire, topic, {0: 5, 1: 6}, group_id=topic) == [0, 0]
    assert offsets_of(wire, topic) == {(topic, 0): 5, (topic, 1): 6}
    assert describe(wire, topic).group_state == "Empty"
    assert commit(wire, topic, {0: 3}, group_id=topic) == [0]  # lower offsets are allowed
    assert offsets_of(wire, topic)[topic, 0] == 3


@pytest.mark.parametrize("version", [2, 8, 9])
def test_generation_of_a_missing_group_is_rejected(wire: Wire, topic: str, version: int) -> None:
    fields = {"group_id": f"{topic}-none", "generation_id_or_member_epoch": 1, "member_id": "m"}
    wire.find_coordinator(f"{topic}-none", 0)
    expected = "GROUP_ID_NOT_FOUND" if version >= 9 else "ILLEGAL_GENERATION"
    assert commit(wire, topic, {0: 1}, **fields, version=version) == [code(expected)]


def test_members_commit_only_in_their_generation(wire: Wire, module_server: Server, topic: str) -> None:
    (only,) = stable(module_server.bootstrap, topic)
    assert only.commit(topic, 1) == 0
    assert only.commit(topic, 2, generation_id_or_member_epoch=only.generation - 1) == ILLEGAL_GENERATION
    assert only.commit(topic, 2, generation_id_or_member_epoch=only.generation + 1) == ILLEGAL_GENERATION
    assert only.commit(topic, 2, member_id="stranger") == UNKNOWN_MEMBER_ID
    assert only.commit(topic, 2, group_instance_id="unknown") == UNKNOWN_MEMBER_ID
    # A consumer with manual assignment would overwrite what members commit.
    assert commit(wire, topic, {0: 2}, group_id=topic) == [UNKNOWN_MEMBER_ID]
    assert offsets_of(wire, topic) == {(topic, 0): 1}
    only.leave()
    assert only.commit(topic, 2) == UNKNOWN_MEMBER_ID
    assert commit(wire, topic, {0: 2}, group_id=topic) == [0]


def test_commits_are_accepted_in_the_join_phase_but_not_during_the_assignment(
    module_server: Server, topic: str
) -> None:
    leader, follower = stable(module_server.bootstrap, topic, 2)
    leader.ask_to_join()
    until(follower.heartbeat, lambda error: error == code("REBALANCE_IN_PROGRESS"), "rebalance")
    assert follower.commit(topic, 1) == 0
    follower.ask_to_join()
    assert leader.take().error_code == follower.take().error_code == 0
    assert follower.commit(topic, 2) == code("REBALANCE_IN_PROGRESS")
    assert follower.commit(topic, 2, generation_id_or_member_epoch=1) == ILLEGAL_GENERATION
    finish(sorted((leader, follower), key=lambda each: not each.leads))
    assert follower.commit(topic, 2) == 0


def test_commit_extends_the_session(module_server: Server, topic: str) -> None:
    (only,) = stable(module_server.bootstrap, topic, session_timeout_ms=2_000)
    turns = 0

    def committed() -> int:
        nonlocal turns
        turns += 1
        assert only.commit(topic, turns) == 0
        return turns

    until(committed, lambda count: count >= 150, "three seconds of commits")
    assert only.heartbeat() == 0


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_metadata_and_leader_epoch_are_stored_with_the_offset(wire: Wire, topic: str) -> None:
    part = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=4, committed_metadata="mine", committed_leader_epoch=0
    )
    request = OffsetCommitRequest(group_id=topic, topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])])
    retried(lambda: wire.call(request, 9), lambda found: found.topics[0].partitions[0].error_code)
    (found,) = fetch_group(wire, topic, {topic: [0]}).topics[0].partitions
    assert (found.committed_offset, found.metadata, found.committed_leader_epoch) == (4, "mine", 0)


def test_metadata_has_a_limit(wire: Wire, topic: str) -> None:
    assert commit(wire, topic, {0: 1}, group_id=topic, metadata="x" * 11) == [code("OFFSET_METADATA_TOO_LARGE")]
    assert commit(wire, topic, {0: 1}, group_id=topic, metadata="x" * 10) == [0]
    assert commit(wire, topic, {0: 2}, group_id=topic, metadata="é" * 10) == [0]  # characters, not bytes


def test_unknown_partitions_have_their_own_error(wire: Wire, topic: str) -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in (0, 7, 1)]
    missing = OffsetCommitRequestTopic(name=f"{topic}-none", partitions=partitions[:1])
    known = OffsetCommitRequestTopic(name=topic, partitions=partitions)
    retried(lambda: fetch_group(wire, topic))
    answer = wire.call(OffsetCommitRequest(group_id=topic, topics=[known, missing]), 9)
    found = {(each.name, part.partition_index): part.error_code for each in answer.topics for part in each.partitions}
    unknown = code("UNKNOWN_TOPIC_OR_PARTITION")
    assert found == {(topic, 0): 0, (topic, 7): unknown, (topic, 1): 0, (f"{topic}-none", 0): unknown}
    assert sorted(each.name for each in answer.topics) == sorted([topic, f"{topic}-none"])


# -- OffsetFetch -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 7])
def test_one_group_is_fetched(wire: Wire, topic: str, version: int) -> None:
    simple_commit(wire, topic, topic, {0: 5})
    asked = [OffsetFetchRequestTopic(name=topic, partition_indexes=[1, 0])]
    found = wire.call(OffsetFetchRequest(group_id=topic, topics=asked), version)
    assert [(each.partition_index, each.committed_offset, each.error_code) for each in found.topics[0].partitions] == [
        (1, -1, 0),
        (0, 5, 0),
    ]
    if version >= 2:
        everything = wire.call(OffsetFetchRequest(group_id=topic, topics=None), version)
        assert [each.partition_index for each in everything.topics[0].partitions] == [0]


def test_several_groups_are_fetched_at_once_by_name_or_id(wire: Wire, name: str) -> None:
    topic_id = wire.create_topic(name, 2)
    groups = [f"{name}-{index}" for index in range(3)]
    for index, group in enumerate(groups[:2]):
        simple_commit(wire, group, name, {0: index})
    wire.find_coordinator(groups[2], 0)
    for version in (8, 9, 10):
        where = {"topic_id": topic_id} if version >= 10 else {"name": name}
        asked = [OffsetFetchRequestTopics(**where, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=asked) for group in groups])
        answer = wire.call(request, version)
        assert [
            (group.group_id, group.error_code, group.topics[0].topic_id, group.topics[0].partitions[0].committed_offset)
            for group in answer.groups
        ] == [(group, 0, where.get("topic_id", NO_UUID), at) for group, at in zip(groups, (0, 1, -1), strict=True)]
        all_of = wire.call(
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=groups[1], topics=None)]), version
        )
        (only,) = all_of.groups[0].topics
        assert (only.name or only.topic_id, only.partitions[0].committed_offset) == (where.get("topic_id", name), 1)


def test_group_may_be_named_once(wire: Wire, module_server: Server, topic: str) -> None:
    """DIFFERS[OffsetFetch]: Kafka answers a group as often as the request names it."""
    simple_commit(wire, topic, topic, {0: 5})
    groups = [topic, f"{topic}-other", topic]
    wire.find_coordinator(groups[1], 0)
    asked = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
    for version in (8, 10):
        answer = wire.call(OffsetFetchRequest(groups=asked), version)
        repeated = (code("INVALID_REQUEST"), 0) if module_server.name == "oncelog" else (0, 1)
        assert [(each.error_code, len(each.topics)) for each in answer.groups] == [repeated, (0, 0), repeated]


@pytest.mark.parametrize("version", [1, 7, 8, 10])
def test_partition_may_be_named_once(wire: Wire, module_server: Server, name: str, version: int) -> None:
    """DIFFERS[OffsetFetch]: Kafka answers a partition as often as the request names it."""
    topic_id = wire.create_topic(name, 2)
    wire.find_coordinator(name, 0)
    simple_commit(wire, name, name, {0: 5})
    where = {"topic_id": topic_id} if version >= 10 else {"name": name}
    if version < 8:
        old = [OffsetFetchRequestTopic(name=name, partition_indexes=indexes) for indexes in ([0, 1], [0])]
        answer = wire.call(OffsetFetchRequest(group_id=name, topics=old), version)
    else:
        asked = [OffsetFetchRequestTopics(**where, partition_indexes=indexes) for indexes in ([0, 1], [0])]
        answer = wire.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=asked)]), version)
        answer = answer.groups[0]
    found = [(each.error_code, each.committed_offset) for topic in answer.topics for each in topic.partitions]
    refused = code("INVALID_REQUEST")
    if module_server.name != "oncelog":
        assert found == [(0, 5), (0, -1), (0, 5)]
    elif version == 1:
        assert found == [(refused, -1)] * 3
    else:
        assert (answer.error_code, found) == (refused, [])


def test_unknown_topic_id(wire: Wire, topic: str) -> None:
    unknown = UUID(int=12345)
    asked = [OffsetFetchRequestTopics(topic_id=unknown, partition_indexes=[0])]
    answer = wire.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=topic, topics=asked)]), 10)
    (found,) = answer.groups[0].topics[0].partitions
    assert (found.error_code, found.committed_offset) == (code("UNKNOWN_TOPIC_ID"), -1)
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    commit_it = OffsetCommitRequest(
        group_id=topic, topics=[OffsetCommitRequestTopic(topic_id=unknown, partitions=[part])]
    )
    assert wire.call(commit_it, 10).topics[0].partitions[0].error_code == code("UNKNOWN_TOPIC_ID")


def test_offsets_of_an_open_transaction_are_unstable(wire: Wire, topic: str) -> None:
    """KIP-447: a request for stable offsets gets a retriable error."""
    simple_commit(wire, topic, topic, {0: 1, 1: 1})
    who = pending(wire, topic, 9)

    def asked(stable_only: bool) -> list[tuple[int, int]]:
        found = fetch_group(wire, topic, {topic: [0, 1]}, stable=stable_only).topics[0].partitions
        return [(each.error_code, each.committed_offset) for each in found]

    assert asked(True) == [(UNSTABLE, -1), (0, 1)]
    assert asked(False) == [(0, 1), (0, 1)]
    assert not wire.end(topic, who).error_code
    assert until(lambda: asked(True), lambda found: not found[0][0], "the offset is stable") == [(0, 9), (0, 1)]


# -- expiry and deletion ----------------------------------------------------------------------------------------------


def test_offsets_of_a_deleted_topic_are_dropped(wire: Wire, topic: str) -> None:
    """KAFKA-14505: an offset that is pending in a transaction does not reappear with the marker, either."""
    other = f"{topic}-other"
    wire.create_topic(other)
    simple_commit(wire, topic, topic, {0: 1})
    simple_commit(wire, topic, other, {0: 2})
    who = pending(wire, topic, 9)
    deleted = wire.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000))
    assert not deleted.responses[0].error_code
    until(lambda: offsets_of(wire, topic), lambda found: found == {(other, 0): 2}, "the topic's offsets are deleted")
    assert not wire.end(topic, who).error_code
    assert offsets_of(wire, topic) == {(other, 0): 2}


def test_clients_own_retention_time_is_used(wire: Wire, topic: str) -> None:
    """Versions up to 4 contain a retention time. The group expires with its last offset."""
    assert commit(wire, topic, {0: 1}, group_id=topic, version=4, retention_time_ms=1) == [0]
    until(lambda: describe(wire, topic).group_state, lambda found: found == "Dead", "offset and group are deleted")
    assert offsets_of(wire, topic) == {}


def test_offsets_do_not_expire_while_a_member_reads_the_topic(wire: Wire, module_server: Server, topic: str) -> None:
    read = {"range": subscription(topic)}
    (only,) = stable(module_server.bootstrap, topic, protocols=read)
    kept, gone = topic, f"{topic}-gone"
    wire.create_topic(gone)
    fields = {"version": 4, "retention_time_ms": 1}
    assert only.commit(kept, 1, **fields) == only.commit(gone, 1, **fields) == 0
    until(lambda: offsets_of(wire, topic), lambda found: found == {(kept, 0): 1}, "the other topic's offset expires")
    only.leave()
    until(lambda: offsets_of(wire, topic), lambda found: found == {}, "this topic's offset expires, too")


def test_offsets_do_not_expire_while_a_transaction_has_one_pending(wire: Wire, topic: str) -> None:
    """KAFKA-14505."""
    who = pending(wire, topic, 9)
    assert commit(wire, topic, {0: 1, 1: 1}, group_id=topic, version=4, retention_time_ms=1) == [0, 0]
    left = until(lambda: offsets_of(wire, topic), lambda found: (topic, 1) not in found, "the other offset expires")
    assert left == {(topic, 0): 1}
    assert not wire.end(topic, who, commit=False).error_code
    until(lambda: offsets_of(wire, topic), lambda found: found == {}, "this offset expires, too")


# -- OffsetDelete ----------------------------------------------------------------------------------------------------


def test_offsets_of_unread_topics_are_deleted(wire: Wire, module_server: Server, topic: str) -> None:
    other = f"{topic}-other"
    wire.create_topic(other)
    (only,) = stable(module_server.bootstrap, topic, protocols={"range": subscription(topic)})
    assert only.commit(topic, 1) == only.commit(other, 1) == 0
    asked = {topic: [0], other: [0, 5], f"{topic}-none": [0]}
    unknown = code("UNKNOWN_TOPIC_OR_PARTITION")
    assert delete_offsets(wire, topic, asked) == {
        (topic, 0): code("GROUP_SUBSCRIBED_TO_TOPIC"),
        (other, 0): 0,
        (other, 5): unknown,
        (f"{topic}-none", 0): unknown,
    }
    assert offsets_of(wire, topic) == {(topic, 0): 1}
    only.leave()
    assert delete_offsets(wire, topic, {topic: [0, 1]}) == {(topic, 0): 0, (topic, 1): 0}
    assert offsets_of(wire, topic) == {}
    # The next check of the retention time removes an empty group without offsets.
    assert describe(wire, topic).group_state in ("Empty", "Dead")


def test_missing_or_unreadable_group(wire: Wire, module_server: Server, topic: str) -> None:
    assert delete_offsets(wire, f"{topic}-none", {topic: [0]}) == code("GROUP_ID_NOT_FOUND")
    assert delete_offsets(wire, "", {topic: [0]}) == code("INVALID_GROUP_ID")
    (worker,) = stable(module_server.bootstrap, topic, protocol_type="connect", protocols={"p": b"opaque"})
    assert worker.commit(topic, 1) == 0
    assert delete_offsets(wire, topic, {topic: [0]}) == code("NON_EMPTY_GROUP")
    worker.leave()
    assert delete_offsets(wire, topic, {topic: [0]}) == {(topic, 0): 0}


@pytest.mark.parametrize("how", ["offset", "group"])
def test_deletion_drops_pending_offsets(wire: Wire, topic: str, how: str) -> None:
    """KAFKA-14505: the transaction's marker restores nothing."""
    who = pending(wire, topic, 9)
    if how == "offset":
        assert delete_offsets(wire, topic, {topic: [0]}) == {(topic, 0): 0}
    else:
        assert delete_groups(wire, topic) == {topic: 0}
    assert not wire.end(topic, who).error_code
    until(
        lambda: fetch_group(wire, topic, {topic: [0]}, stable=True).topics[0].partitions[0],
        lambda found: (found.error_code, found.committed_offset) == (0, -1),
        "the group has no offset",
    )


# -- over restarts ---------------------------------------------------------------------------------------------------


def test_members_and_offsets_survive_a_kill(own_server: Server, name: str) -> None:
    """A stable group continues without a rebalance, and pending offsets stay pending."""
    with Wire(own_server.bootstrap) as wire:
        wire.create_topic(name, 2)
        leader, follower = stable(own_server.bootstrap, name, 2)
        assert leader.commit(name, 7) == 0
        who = pending(wire, name, 9, partition=1, member_id=follower.member_id, generation_id=follower.generation)
    own_server.kill()
    own_server.wait_ready()
    with Wire(own_server.bootstrap) as wire:
        wire.find_coordinator(name, 0)
        back = []
        for each in (leader, follower):
            again = Member(own_server.bootstrap, name)
            again.member_id, again.generation, again.joined = each.member_id, each.generation, each.joined
            back.append(again)
        assert describe(wire, name).group_state == "Stable"  # retried until the coordinator has loaded
        assert [each.heartbeat() for each in back] == [0, 0]
        assert [each.sync().assignment for each in back] == [each.member_id.encode() for each in back]
        assert offsets_of(wire, name) == {(name, 0): 7}
        wire.find_coordinator(name, 1)
        assert not wire.end(name, who).error_code
        until(lambda: offsets_of(wire, name), lambda found: found == {(name, 0): 7, (name, 1): 9}, "committed")
