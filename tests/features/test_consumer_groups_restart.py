"""Groups of the consumer protocol (KIP-848) outlive their broker: members go on where they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from support.classic_consumers import ClassicConsumer, classic_pair
from support.consumer_groups import (
    LEAVE_STATIC,
    NewMember,
    assigned,
    describe_consumer,
    owned_together,
    refusal,
    seen_topic,
    settle,
)
from support.groups import commit, delete_groups, offsets_of
from support.servers import Server
from support.wire import Wire, code, until

ALL = [0, 1, 2, 3]


class Restarted:
    """A server, and a connection to it that is replaced when the server is."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.wire = Wire(server.bootstrap)

    def restart(self, group: str, *members: NewMember) -> None:
        """Kill the server and wait until the coordinator of the group has loaded it."""
        self.wire.close()
        self.server.kill()
        self.server.wait_ready()
        self.wire = Wire(self.server.bootstrap)
        self.wire.find_coordinator(group, 0)
        self.wire.leaders_serve(group, len(ALL))
        for each in members:
            each.wire = self.wire


@pytest.fixture
def broker(own_server: Server) -> Iterator[Restarted]:
    made = Restarted(own_server)
    yield made
    made.wire.close()


def view(group: Any) -> tuple[Any, ...]:
    """Return what a description says of a group, in a fixed order."""
    members = [
        (
            each.member_id,
            each.instance_id,
            each.rack_id,
            each.member_epoch,
            each.client_id,
            each.client_host,
            sorted(each.subscribed_topic_names),
            each.subscribed_topic_regex,
            each.member_type,
            [(parts.topic_name, sorted(parts.partitions)) for parts in each.assignment.topic_partitions],
            [(parts.topic_name, sorted(parts.partitions)) for parts in each.target_assignment.topic_partitions],
        )
        for each in group.members
    ]
    head = group.error_code, group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name
    return *head, sorted(members, key=str)


def test_members_go_on_with_their_epoch(broker: Restarted, name: str) -> None:
    """In the middle of a rebalance, with a static member that is away, and a regular expression."""
    wire = broker.wire
    topic = seen_topic(wire, name, len(ALL))
    first = NewMember(wire, name, "first", rack_id="r").joined(name, owns={topic: ALL}, server_assignor="range")
    static = NewMember(wire, name, "static", instance_id="i")
    assert static.join(name).error_code == 0
    settle(first, static)
    assert commit(wire, name, {0: 5}, group_id=name, member_id="first", generation_id_or_member_epoch=first.epoch) == [
        0
    ]
    static.leave(LEAVE_STATIC)
    regex = NewMember(wire, name, "regex")
    assert regex.join(subscribed_topic_names=None, subscribed_topic_regex=f"{name}|nothing").error_code == 0
    until(regex.beat, lambda answer: answer.member_epoch > first.epoch, "the next epoch")
    until(first.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    before = view(describe_consumer(wire, name, 1))

    broker.restart(name, first, static, regex)
    assert view(describe_consumer(broker.wire, name, 1)) == before
    epoch, kept = first.epoch, first.owned
    answer = first.beat()
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None)
    assert regex.beat().error_code == 0
    new = NewMember(broker.wire, name, "new", instance_id="i")
    assert new.join(name).error_code == 0
    settle(first, regex, new)
    assert owned_together(first, regex, new) == {topic: ALL}
    assert set(first.owned[topic]) <= set(kept[topic])
    assert offsets_of(broker.wire, name) == {(name, 0): 5}


def test_lost_response_before_the_restart(broker: Restarted, name: str) -> None:
    topic = seen_topic(broker.wire, name, len(ALL))
    first = NewMember(broker.wire, name, "first").joined(name, owns={topic: ALL})
    second = NewMember(broker.wire, name, "second")
    assert second.join(name).error_code == 0
    settle(first, second)
    before, owned = first.epoch, first.owned
    second.leave()
    until(first.beat, lambda answer: answer.member_epoch > before, "the next epoch")
    after = first.epoch

    broker.restart(name, first, second)
    answer = first.beat(member_epoch=before, owned=owned)
    assert (answer.error_code, answer.member_epoch) == (0, after)
    assert second.beat(member_epoch=before).error_code == code("UNKNOWN_MEMBER_ID")
    first.until_owns({topic: ALL})


def test_empty_and_deleted_groups_are_remembered(broker: Restarted, name: str) -> None:
    wire, deleted = broker.wire, f"{name}-deleted"
    topic = seen_topic(wire, name, len(ALL))
    wire.find_coordinator(deleted, 0)
    epochs = {}
    for group in (name, deleted):
        member = NewMember(wire, group)
        assert member.join(name).error_code == 0
        epochs[group] = member.epoch
        member.leave()
    assert delete_groups(wire, deleted) == {deleted: 0}

    broker.restart(name)
    broker.wire.find_coordinator(deleted, 0)
    group = describe_consumer(broker.wire, name)
    assert (group.error_code, group.group_state, group.group_epoch) == (0, "Empty", epochs[name] + 1)
    answer = refusal(broker.wire, deleted, member_id="m", member_epoch=1)
    assert answer == (code("GROUP_ID_NOT_FOUND"), f"Consumer group {deleted} not found.")
    again = NewMember(broker.wire, name)
    assert again.join(name).error_code == 0
    again.until_owns({topic: ALL})
    assert again.epoch == epochs[name] + 2


def test_group_with_members_of_both_protocols(broker: Restarted, name: str) -> None:
    topic = seen_topic(broker.wire, name, len(ALL))
    classic = classic_pair(broker.server.bootstrap, name, name)
    new = NewMember(broker.wire, name, "new")
    assert new.join(name).error_code == 0

    def stable() -> bool:
        errors = [each.catch_up() for each in classic]
        assert new.report().error_code == 0
        return not any(errors) and describe_consumer(broker.wire, name).group_state == "Stable"

    until(stable, bool, "the group is stable")
    before = view(describe_consumer(broker.wire, name, 1))
    for each in classic:
        each.close()

    broker.restart(name, new)
    assert view(describe_consumer(broker.wire, name, 1)) == before
    for each in classic:
        each.wire = broker.wire
        assert each.heartbeat() == 0
        owned = each.owned
        each.take_assignment(each.sync())
        assert each.owned == owned
    assert new.beat().error_code == 0
    everything = {"subscribed_topic_names": [name], "rebalance_timeout_ms": 60_000, "owned": new.owned}
    assert assigned(new.beat(**everything)) == new.owned
    assert sorted(_partitions(classic, name) + new.owned[topic]) == ALL


def _partitions(members: tuple[ClassicConsumer, ...], topic: str) -> list[int]:
    return [part for each in members for part in each.owned[topic]]


def test_deadline_of_a_rebalance_begins_anew(broker: Restarted, name: str) -> None:
    """A member that was giving partitions up when the broker ended is removed if it never does."""
    topic: UUID = seen_topic(broker.wire, name, len(ALL))
    first = NewMember(broker.wire, name, "first").joined(name, owns={topic: ALL})
    assert first.beat(rebalance_timeout_ms=3_000).error_code == 0
    second = NewMember(broker.wire, name, "second")
    assert second.join(name).error_code == 0
    until(first.beat, lambda answer: answer.assignment is not None, "a smaller assignment")
    broker.restart(name, first, second)
    until(
        lambda: (second.report(), first.beat().error_code)[1],
        lambda error: error == code("UNKNOWN_MEMBER_ID"),
        "the member is removed",
    )
    second.until_owns({topic: ALL})
