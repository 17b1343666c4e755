"""Assignors and members of the consumer protocol: whoever joins and leaves, no partition has two owners."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.coordinator.groups.consumer.assignors import ASSIGNORS, Assignment, Counts, Members, Subscriber
from oncelog.coordinator.groups.consumer.member import (
    ConsumerMember,
    MemberState,
    Partitions,
    Reconciliation,
    Target,
    reconcile,
)
from oncelog.coordinator.groups.topics import Racks

TOPICS = [UUID(int=number) for number in range(1, 5)]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)
subscriptions = st.frozensets(st.sampled_from(TOPICS))
ids = st.sampled_from([f"m{number}" for number in range(6)])


@st.composite
def groups(draw: st.DrawFn) -> tuple[Members, Counts]:
    same = draw(st.booleans())
    shared = draw(subscriptions)
    members = {
        member_id: Subscriber(
            shared if same else draw(subscriptions),
            draw(st.one_of(st.none(), st.just(f"i{member_id}"))),
            draw(st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 12)))),
            draw(st.sampled_from([None, "x", "y"])),
        )
        for member_id in draw(st.sets(ids))
    }
    return members, draw(counts)


racks = st.dictionaries(st.sampled_from(TOPICS), st.lists(st.frozensets(st.sampled_from("xyz"), max_size=2)))


def check_complete(found: Assignment, members: Members, counts: Counts) -> None:
    assert found.keys() == members.keys()
    owners = Counter((topic, each) for mine in found.values() for topic, some in mine.items() for each in some)
    wanted = {topic for topic in counts if any(topic in member.topics for member in members.values())}
    assert owners == Counter({(topic, each): 1 for topic in wanted for each in range(counts[topic])})
    for member_id, mine in found.items():
        assert mine.keys() <= members[member_id].topics
        assert all(mine.values())


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups(), racks=racks)
def test_each_partition_has_one_subscriber(
    name: str, group: tuple[Members, Counts], racks: dict[UUID, list[frozenset[str]]]
) -> None:
    members, counts = group
    check_complete(ASSIGNORS[name](members, counts, racks), members, counts)


@given(group=groups(), racks=racks)
def test_uniform_is_balanced_and_stays(group: tuple[Members, Counts], racks: dict[UUID, list[frozenset[str]]]) -> None:
    members, counts = group
    found = ASSIGNORS["uniform"](members, counts, racks)
    loads = {member_id: sum(map(len, mine.values())) for member_id, mine in found.items()}
    for member_id, mine in found.items():
        for topic in mine:
            for other, member in members.items():
                assert topic not in member.topics or loads[member_id] - loads[other] <= 1
    kept = {
        member_id: member._replace(before={topic: frozenset(some) for topic, some in found[member_id].items()})
        for member_id, member in members.items()
    }
    assert ASSIGNORS["uniform"](kept, counts, racks) == found


def test_uniform_prefers_partitions_in_the_members_racks() -> None:
    topic = TOPICS[0]
    members = {rack: Subscriber(frozenset({topic}), rack=rack) for rack in ("x", "y", "z")}
    of_topic: Racks = [frozenset({each}) for each in "zyxzyxw"]
    found = ASSIGNORS["uniform"](members, {topic: 7}, {topic: of_topic})
    assert {member: mine[topic] - {6} for member, mine in found.items()} == {"x": {2, 5}, "y": {1, 4}, "z": {0, 3}}


@given(group=groups())
def test_range_keeps_partitions_together(group: tuple[Members, Counts]) -> None:
    members, counts = group
    for mine in ASSIGNORS["range"](members, counts, {}).values():
        for some in mine.values():
            assert some == set(range(min(some), max(some) + 1))


class Model:
    """A group without a log: each heartbeat moves one member on."""

    def __init__(self) -> None:
        self.members: dict[str, ConsumerMember] = {}
        self.subscribed: dict[str, frozenset[UUID]] = {}
        self.resubscribed: set[str] = set()
        self.client: dict[str, Partitions] = {}
        """What each client really owns."""
        self.counts: Counts = {}
        self.epoch = 0
        self.target: Assignment = {}

    def change(self, assignor: str) -> None:
        self.epoch += 1
        members = {
            name: Subscriber(
                self.subscribed[name],
                None,
                {topic: frozenset(some) for topic, some in self.target.get(name, {}).items()},
            )
            for name in self.members
        }
        self.target = ASSIGNORS[assignor](members, self.counts, {})

    def heartbeat(self, name: str, *, reports: bool) -> None:
        def is_taken(topic: UUID, partition: int) -> bool:
            return any(
                partition in held.get(topic, {})
                for member in self.members.values()
                for held in (member.assigned, member.revoking)
            )

        target = {topic: frozenset(some) for topic, some in self.target[name].items()}
        step = Reconciliation(
            Target(self.epoch, target),
            self.subscribed[name],
            resubscribed=name in self.resubscribed,
            is_taken=is_taken,
            owned=self.client[name] if reports else None,
        )
        member = self.members[name] = reconcile(self.members[name], step)
        self.resubscribed.discard(name)
        # the client gives the others up before it reports again
        self.client[name] = {topic: frozenset(some) for topic, some in member.assigned.items()}
        self.check()

    def check(self) -> None:
        owners = Counter(
            (topic, each) for mine in self.client.values() for topic, some in mine.items() for each in some
        )
        assert all(count == 1 for count in owners.values()), "a partition has two owners"

    def settle(self) -> None:
        for _ in range(4 * len(self.members) + 4):
            for name in self.members:
                self.heartbeat(name, reports=True)
        for name, member in self.members.items():
            assert member.state is MemberState.STABLE
            assert member.epoch == self.epoch
            assert {topic: some.keys() for topic, some in member.assigned.items()} == self.target[name]


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(data=st.data())
def test_members_reach_their_target_without_sharing_a_partition(assignor: str, data: st.DataObject) -> None:
    model = Model()
    model.counts = data.draw(counts)
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["join", "leave", "heartbeat", "heartbeat", "subscribe", "topics"]))
        name = data.draw(ids)
        if step == "topics":
            model.counts = data.draw(counts)
        elif step in ("join", "subscribe"):
            model.members.setdefault(name, ConsumerMember(name))
            model.client.setdefault(name, {})
            model.subscribed[name] = data.draw(subscriptions)
            model.resubscribed.add(name)
        elif step == "leave":
            for each in (model.members, model.client, model.subscribed):
                each.pop(name, None)
        if step != "heartbeat":
            model.change(assignor)
        elif name in model.members:
            model.heartbeat(name, reports=data.draw(st.booleans()))
    model.settle()
