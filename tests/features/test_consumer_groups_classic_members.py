"""Members of the classic protocol in groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from support.classic_consumers import ClassicConsumer, read_assignment, subscription
from support.consumer_groups import NewMember, describe_consumer, heartbeat, seen_topic
from support.groups import MEMBER_ID_REQUIRED, join_request, txn_commit
from support.servers import Server
from support.wire import Wire, code, retried, until

UNKNOWN_MEMBER_ID = code("UNKNOWN_MEMBER_ID")
ILLEGAL_GENERATION = code("ILLEGAL_GENERATION")
INCONSISTENT = code("INCONSISTENT_GROUP_PROTOCOL")
ALL = [0, 1, 2, 3]
CLASSIC, CONSUMER = 0, 1

Join = Callable[..., ClassicConsumer]


@pytest.fixture
def topic(wire: Wire, name: str) -> UUID:
    return seen_topic(wire, name, len(ALL))


@pytest.fixture
def new(wire: Wire, name: str, topic: UUID) -> NewMember:
    """Return the first member of the group `name`, of the consumer protocol."""
    return NewMember(wire, name, "new").joined(name, owns={topic: ALL})


@pytest.fixture
def join(server: Server, new: NewMember) -> Iterator[Join]:
    """Let classic members with these protocols ({name: metadata}) join the group of `new`."""
    made: list[ClassicConsumer] = []

    def make(protocols: dict[str, bytes] | None = None) -> ClassicConsumer:
        member = ClassicConsumer(server.bootstrap, new.group, new.group)
        made.append(member)
        answer = member.join(**({} if protocols is None else {"protocols": protocols}))
        assert not answer.error_code, answer
        return member

    yield make
    for each in made:
        each.close()


def types(member: NewMember) -> dict[str, int]:
    """Return the type of each member."""
    return {each.member_id: each.member_type for each in describe_consumer(member.wire, member.group, 1).members}


# -- joining -----------------------------------------------------------------------------------------------------------


def test_classic_member_joins_a_consumer_group(server: Server, name: str, topic: UUID, new: NewMember) -> None:
    classic = ClassicConsumer(server.bootstrap, name, name)
    answer = classic.rejoin()
    assert (answer.error_code, answer.leader, answer.protocol_name) == (0, "", "range")

    def ask() -> tuple[int, list[int], list[int]]:
        return classic.catch_up(), classic.owned.get(name, []), (new.report(), new.owned)[1][topic]

    until(ask, lambda found: len(found[1]) == len(found[2]) == 2, "both have two partitions")
    assert sorted(classic.owned[name] + new.owned[topic]) == ALL
    classic.close()


def test_classic_member_that_joins_needs_a_member_id_and_a_protocol(wire: Wire, name: str, new: NewMember) -> None:

    def join(version: int | None = None, **options: Any) -> Any:
        return retried(lambda: wire.call(join_request(name, **options), version))

    given = {"range": subscription(name)}
    first = join(protocols=given)
    assert (first.error_code, first.generation_id, bool(first.member_id)) == (MEMBER_ID_REQUIRED, -1, True)
    assert join(protocols=given, protocol_type="connect").error_code == INCONSISTENT
    assert join(protocols=given, session_timeout_ms=1).error_code == code("INVALID_SESSION_TIMEOUT")
    assert join(3, protocols=given).error_code == 0  # in one step, as before KIP-394


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_assignment_has_the_version_of_the_subscription(new: NewMember, join: Join, version: int) -> None:
    classic = join({"range": subscription(new.group, version=version)})
    data = classic.sync().assignment
    assert int.from_bytes(data[:2], "big") == version
    until(lambda: (new.report(), classic.catch_up(), classic.owned)[2], bool, "the classic member owns something")


def test_member_may_say_to_own_what_does_not_exist(new: NewMember, join: Join) -> None:
    classic = join({"range": subscription(new.group, owned={new.group: [0, 99], "nothing": [1]}, generation=77)})
    assert read_assignment(classic.sync().assignment) == {}
    assert new.beat().error_code == 0


# -- protocols ---------------------------------------------------------------------------------------------------------


def test_each_member_gets_its_own_first_common_protocol(new: NewMember, join: Join) -> None:
    said = subscription(new.group)
    first = join({"cooperative-sticky": said, "range": said})
    second = join({"range": said, "cooperative-sticky": said})
    assert (first.joined.protocol_name, second.joined.protocol_name) == ("cooperative-sticky", "range")
    for each in (first, second):
        assert each.sync().protocol_name == each.joined.protocol_name
    join({"range": said})


def test_classic_members_need_a_common_protocol(new: NewMember, join: Join) -> None:
    first = join()
    refused = join_request(new.group, protocols={"sticky": subscription(new.group)})
    assert retried(lambda: new.wire.call(refused)).error_code == INCONSISTENT
    assert not first.leave().members[0].error_code
    assert retried(lambda: new.wire.call(refused)).error_code == MEMBER_ID_REQUIRED


# -- joining again -----------------------------------------------------------------------------------------------------


def test_only_another_subscription_begins_an_epoch(new: NewMember, join: Join) -> None:
    classic = join()
    epoch = describe_consumer(new.wire, new.group).group_epoch
    assert classic.join().error_code == 0
    assert describe_consumer(new.wire, new.group).group_epoch == epoch
    changed = {"range": subscription(new.group, f"{new.group}-other")}
    assert classic.join(protocols=changed).error_code == 0
    group = describe_consumer(new.wire, new.group)
    assert group.group_epoch == epoch + 1
    (found,) = (each for each in group.members if each.member_id == classic.member_id)
    assert sorted(found.subscribed_topic_names) == [new.group, f"{new.group}-other"]


def test_member_id_may_go_from_one_protocol_to_the_other(new: NewMember, join: Join) -> None:
    classic = join()
    assert types(new) == {"new": CONSUMER, classic.member_id: CLASSIC}
    answer = heartbeat(
        new.wire, new.group,
        member_id=classic.member_id, member_epoch=0, owned={},
        rebalance_timeout_ms=60_000, subscribed_topic_names=[new.group],
    )  # fmt: skip
    assert (answer.error_code, answer.member_id) == (0, classic.member_id)
    assert types(new) == {"new": CONSUMER, classic.member_id: CONSUMER}
    assert classic.heartbeat() == UNKNOWN_MEMBER_ID
    assert classic.join().error_code == 0
    assert types(new) == {"new": CONSUMER, classic.member_id: CLASSIC}


def fetch(wire: Wire, group: str, member_id: str | None, epoch: int) -> tuple[int, list[int]]:
    """Return the error code of OffsetFetch for partition 0 of the topic of the same name, and the offsets."""
    topics = [OffsetFetchRequestTopics(name=group, partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id=group, member_id=member_id, member_epoch=epoch, topics=topics)
    found = retried(lambda: wire.call(OffsetFetchRequest(groups=[asked]), 9).groups[0])
    return found.error_code, [each.committed_offset for topic in found.topics for each in topic.partitions]


def test_classic_member_fetches_with_its_generation(new: NewMember, join: Join) -> None:
    classic = join()
    assert classic.commit(new.group, 5) == 0
    assert fetch(new.wire, new.group, classic.member_id, classic.generation) == (0, [5])
    assert fetch(new.wire, new.group, None, -1) == (0, [5])
    for other in (classic.generation + 1, -1):
        assert fetch(new.wire, new.group, classic.member_id, other) == (ILLEGAL_GENERATION, [])
    assert fetch(new.wire, new.group, "stranger", 1) == (UNKNOWN_MEMBER_ID, [])


def test_classic_group_does_not_look_at_member_and_epoch_of_a_fetch(server: Server, wire: Wire, name: str) -> None:
    wire.create_topic(name)
    wire.find_coordinator(name, 0)
    classic = ClassicConsumer(server.bootstrap, name, name)
    assert not classic.join().error_code
    classic.sync({classic.member_id: b""})
    assert classic.commit(name, 5) == 0
    for member_id, epoch in ((classic.member_id, 1), (classic.member_id, 7), ("stranger", 1), (None, 1)):
        assert fetch(wire, name, member_id, epoch) == (0, [5])
    classic.close()


def test_classic_member_commits_in_a_transaction(new: NewMember, join: Join) -> None:
    classic, wire, name = join(), new.wire, new.group
    session = wire.session(name)
    assert not wire.add_offsets(name, session, name).error_code
    for difference, error in ((0, 0), (1, ILLEGAL_GENERATION), (-1, ILLEGAL_GENERATION)):
        generation = classic.generation + difference
        fields: dict[str, Any] = {
            "group_id": name,
            "member_id": classic.member_id,
            "generation_id": generation,
            "version": 4,
        }
        assert txn_commit(wire, name, session, name, 7, **fields) == error
    assert wire.end(name, session, commit=False).error_code == 0


def test_offsets_of_all_members_are_the_groups(new: NewMember, join: Join, topic: UUID) -> None:
    classic = join()
    assert classic.commit(new.group, 7, version=8) == 0
    assert classic.commit(new.group, 8, version=9) == 0
    assert classic.commit(new.group, 9, generation_id_or_member_epoch=-1, member_id="") == UNKNOWN_MEMBER_ID
