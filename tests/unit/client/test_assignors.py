"""Assignors: the examples of Kafka's own documentation, and invariants."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncelog.client.consumer.assignors import ASSIGNORS, Claim
from oncelog.protocol.topics import TopicPartition

STICKY = ("sticky", "cooperative-sticky")
TOPICS = ("a", "b", "c", "unknown")
MEMBERS = ("m1", "m2", "m3", "m4", "m5")
partition_counts = st.dictionaries(st.sampled_from(TOPICS[:3]), st.integers(0, 7))
subscriptions = st.dictionaries(
    st.sampled_from(MEMBERS), st.lists(st.sampled_from(TOPICS), min_size=1, unique=True), min_size=1
)
claims = st.dictionaries(
    st.sampled_from([*MEMBERS, "gone"]),
    st.builds(
        Claim,
        st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 8)), unique=True, max_size=12),
        st.integers(-1, 2),
    ),
)
Result = dict[str, list[TopicPartition]]


def claimed(result: Mapping[str, Sequence[TopicPartition]], generation: int = 1) -> dict[str, Claim]:
    return {member: Claim(found, generation) for member, found in result.items()}


def test_range() -> None:
    assert ASSIGNORS["range"]({"t0": 3, "t1": 3}, {"C0": ["t0", "t1"], "C1": ["t0", "t1"]}, {}) == {
        "C0": [("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)],
        "C1": [("t0", 2), ("t1", 2)],
    }


def test_round_robin() -> None:
    members = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}
    assert ASSIGNORS["roundrobin"]({"t0": 1, "t1": 2, "t2": 3}, members, {}) == {
        "C0": [("t0", 0)],
        "C1": [("t1", 0)],
        "C2": [("t1", 1), ("t2", 0), ("t2", 1), ("t2", 2)],
    }


def test_sticky_is_as_even_as_subscriptions_allow() -> None:
    """StickyAssignor's own second example: round-robin assigns three to C2, which could have fewer."""
    members = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}
    result = ASSIGNORS["sticky"]({"t0": 1, "t1": 2, "t2": 3}, members, {})
    assert result == {"C0": [("t0", 0)], "C1": [("t1", 0), ("t1", 1)], "C2": [("t2", 0), ("t2", 1), ("t2", 2)]}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(partitions=partition_counts, members=subscriptions, claims=claims)
@example(
    partitions={"a": 3, "b": 3, "c": 4},
    members={"m1": ["a"], "m3": ["a"], "m2": ["b", "c"], "m4": ["a", "b"], "m5": ["b", "c"]},
    claims={"m2": Claim([("b", 0), ("b", 1)], 0)},
)
def test_all_partitions_are_assigned_once_to_a_subscriber(
    name: str, partitions: dict[str, int], members: dict[str, list[str]], claims: dict[str, Claim]
) -> None:
    claims = {member: claim for member, claim in claims.items() if member in members}
    result = ASSIGNORS[name](partitions, members, claims)
    assert set(result) == set(members)
    if name == "cooperative-sticky":  # again after all members have revoked and received partitions
        result = ASSIGNORS[name](partitions, members, {member: Claim(found, 3) for member, found in result.items()})
    given = [tp for found in result.values() for tp in found]
    read = {topic for topics in members.values() for topic in topics}
    assert sorted(given) == sorted((t, p) for t, count in partitions.items() if t in read for p in range(count))
    assert all(topic in members[member] for member, found in result.items() for topic, _ in found)
    assert all(found == sorted(found) for found in result.values())


def chains(result: Result, members: Mapping[str, Sequence[str]], start: str) -> set[str]:
    """Return every member to which one that has a partition could hand one on, directly or through others."""
    reached, waiting = set(), [start]
    while waiting:
        for topic in {topic for topic, _ in result[waiting.pop()]}:
            for member, topics in members.items():
                if topic in topics and member not in reached:
                    reached.add(member)
                    waiting.append(member)
    return reached


@given(partitions=partition_counts, members=subscriptions, claims=claims)
def test_sticky_is_balanced(
    partitions: dict[str, int], members: dict[str, list[str]], claims: dict[str, Claim]
) -> None:
    result = ASSIGNORS["sticky"](partitions, members, claims)
    for giver, found in result.items():
        for taker in chains(result, members, giver):
            assert len(found) - len(result[taker]) < 2, (giver, taker, result)


@pytest.mark.parametrize("name", STICKY)
@given(partitions=partition_counts, members=subscriptions)
def test_unchanged_group_keeps_its_assignment(
    name: str, partitions: dict[str, int], members: dict[str, list[str]]
) -> None:
    result = ASSIGNORS[name](partitions, members, {})
    assert ASSIGNORS[name](partitions, members, claimed(result)) == result


@given(partitions=partition_counts, count=st.integers(2, 5))
def test_sticky_moves_as_few_partitions_as_possible(partitions: dict[str, int], count: int) -> None:
    everybody = dict.fromkeys(MEMBERS[:count], TOPICS)
    before = ASSIGNORS["sticky"](partitions, everybody, {})
    fewer = ASSIGNORS["sticky"](partitions, dict.fromkeys(MEMBERS[1:count], TOPICS), claimed(before))
    assert all(set(before[member]) <= set(fewer[member]) for member in fewer), "the others keep their partitions"
    after = ASSIGNORS["sticky"](partitions, everybody, claimed(fewer))
    moved = sum(len(set(fewer[member]) - set(after[member])) for member in fewer)
    assert moved == len(after[MEMBERS[0]]) == sum(partitions.values()) // count, "the new member gets its share"


@given(partitions=partition_counts, members=subscriptions, claims=claims)
def test_cooperative_does_not_assign_a_partition_that_another_member_owns(
    partitions: dict[str, int], members: dict[str, list[str]], claims: dict[str, Claim]
) -> None:
    claims = {member: claim for member, claim in claims.items() if member in members}
    result = ASSIGNORS["cooperative-sticky"](partitions, members, claims)
    for member, found in result.items():
        for other, tp in itertools.product(claims, found):
            if other != member and tp in claims[other].partitions:
                mine = claims.get(member, Claim())
                assert tp in mine.partitions
                assert mine.generation != claims[other].generation


def test_later_generation_takes_precedence_between_two_claims() -> None:
    members = {"old": ["t"], "new": ["t"]}
    both = {"old": Claim([("t", 0), ("t", 1)], 3), "new": Claim([("t", 0)], 4)}
    assert ASSIGNORS["sticky"]({"t": 2}, members, both) == {"old": [("t", 1)], "new": [("t", 0)]}


def test_many_members_and_partitions() -> None:
    """Bounded work: a thousand partitions and a hundred members, of which every third reads other topics."""
    topics = {f"t{i}": 20 for i in range(50)}
    names = sorted(topics)
    members = {f"m{i:03}": names if i % 3 else names[: 10 + i % 40] for i in range(100)}
    result = ASSIGNORS["sticky"](topics, members, {})
    assert ASSIGNORS["sticky"](topics, members, claimed(result)) == result
    sizes = sorted(map(len, result.values()))
    assert (sizes[0], sizes[-1]) == (10, 10)
