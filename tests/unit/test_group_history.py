"""The checks of `support.group_history` find what may not happen in a group."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.group_history import GroupHistory

PLACE = ("t", 0)


def event(member: str, what: str, **more: Any) -> str:
    return json.dumps({"member": member, "what": what, **more})


def change(member: str, what: str) -> str:
    return event(member, what, partitions=[PLACE])


def read(member: str, *offsets: int) -> str:
    return event(member, "read", topic="t", partition=0, offsets=offsets)


def committed(member: str, offset: int) -> str:
    return event(member, "committed", topic="t", partition=0, offset=offset)


def problems(*lines: str) -> list[str]:
    history = GroupHistory()
    history.add(lines)
    return history.problems()


def test_partitions_that_are_handed_over_are_right() -> None:
    assert not problems(
        change("a", "assigned"), read("a", 0, 1), committed("a", 2), read("a", 2), change("a", "revoked"),
        change("b", "assigned"), read("b", 2, 3), committed("b", 4), change("b", "revoked"),
        event("a", "ended"), event("b", "ended"),
    )  # fmt: skip


def test_records_that_were_read_without_a_commit_are_repeated() -> None:
    history = GroupHistory()
    history.add([change("a", "assigned"), read("a", 0, 1), change("a", "lost"), change("b", "assigned"), read("b", 0)])
    assert history.problems() == []
    assert history.repeated() == {(PLACE, 0): 2}


def test_a_member_may_learn_late_that_it_has_lost_a_partition() -> None:
    assert not problems(change("a", "assigned"), change("b", "assigned"), change("a", "lost"), read("b", 0))


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([change("a", "assigned"), change("b", "assigned")], "was given to b while a had it"),
        ([change("a", "assigned"), change("b", "assigned"), change("a", "revoked")], "which it does not have"),
        ([change("a", "assigned"), change("a", "revoked"), read("a", 0)], "reads ('t', 0), which None has"),
        ([change("a", "assigned"), read("a", 1)], "the next offset is 0 to 0"),
        ([change("a", "assigned"), read("a", 0, 2)], "a reads [0, 2]"),
        ([change("a", "assigned"), read("a", 0), read("a", 0)], "the next offset is 1 to 1"),
        (
            [
                change("a", "assigned"), read("a", 0), committed("a", 1), change("a", "revoked"),
                change("b", "assigned"), read("b", 0),
            ],
            "the next offset is 1 to 1",
        ),
        ([committed("a", 2), committed("b", 1)], "b commits 1 of ('t', 0) after 2"),
        ([change("a", "assigned"), event("a", "ended")], "a has ended and still has ('t', 0)"),
    ],
    ids=["two owners", "late revocation", "not owned", "gap", "gap in a batch", "again", "commit lost", "back", "kept"],
)  # fmt: skip
def test_what_may_not_happen_is_found(lines: list[str], what: str) -> None:
    found = problems(*lines)
    assert any(what in each for each in found), found
