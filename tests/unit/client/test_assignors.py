"""Assignors: the examples of Kafka's own documentation, and what must always hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.client.assignors import ASSIGNORS


def test_range() -> None:
    assert ASSIGNORS["range"]({"t0": 3, "t1": 3}, {"C0": ["t0", "t1"], "C1": ["t0", "t1"]}) == {
        "C0": [("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)],
        "C1": [("t0", 2), ("t1", 2)],
    }


def test_round_robin() -> None:
    members = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}
    assert ASSIGNORS["roundrobin"]({"t0": 1, "t1": 2, "t2": 3}, members) == {
        "C0": [("t0", 0)],
        "C1": [("t1", 0)],
        "C2": [("t1", 1), ("t2", 0), ("t2", 1), ("t2", 2)],
    }


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(
    partitions=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 7)),
    members=st.dictionaries(
        st.sampled_from(["m1", "m2", "m3", "m4"]),
        st.lists(st.sampled_from(["a", "b", "c", "unknown"]), min_size=1, unique=True),
        min_size=1,
    ),
)
def test_everything_is_read_once_by_a_subscriber(
    name: str, partitions: dict[str, int], members: dict[str, list[str]]
) -> None:
    result = ASSIGNORS[name](partitions, members)
    assert set(result) == set(members)
    given = [tp for found in result.values() for tp in found]
    read = {topic for topics in members.values() for topic in topics}
    assert sorted(given) == sorted((t, p) for t, count in partitions.items() if t in read for p in range(count))
    assert all(topic in members[member] for member, found in result.items() for topic, _ in found)
