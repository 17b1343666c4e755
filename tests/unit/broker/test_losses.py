"""Which log directories count as lost at a start, after each kind of stop, crash and failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.broker.storage.losses import DirectoryState, LossNode, lost_directories, opened

NOTED = LossNode({"a": "boot 1", "b": "boot 1"})
DAMAGED = LossNode(NOTED.boots, ["a"])
OLD = LossNode(NOTED.boots, generations={"a": 5, "b": 5})


def directory(
    key: str, *, online: bool = True, is_clean: bool = False, is_identified: bool = True, is_new: bool = False
) -> DirectoryState:
    return DirectoryState(key, online, is_clean, is_identified, is_new)


A, B = directory("a"), directory("b")
CLEAN_A, CLEAN_B = A._replace(is_clean=True), B._replace(is_clean=True)
DEAD_A = directory("a", online=False, is_identified=False)
NEW = directory("c", is_identified=False, is_new=True)


@pytest.mark.parametrize(
    ("found", "directories", "boot", "lost"),
    [
        (None, [A, B], "boot 1", ""),  # the broker's first start
        (NOTED, [A, B], "boot 1", ""),  # only the process has died
        (NOTED, [A, B], "boot 2", "ab"),
        (NOTED, [A, B], "", "ab"),
        (LossNode({"a": "", "b": ""}), [A, B], "", "ab"),
        (OLD, [CLEAN_A._replace(generation=4), B._replace(generation=5)], "boot 1", "a"),
        (OLD, [CLEAN_A._replace(generation=5), B._replace(generation=6)], "boot 1", ""),
        (OLD, [DEAD_A, B._replace(generation=5)], "boot 1", ""),
        (NOTED, [CLEAN_A, CLEAN_B], "boot 2", ""),
        (NOTED, [CLEAN_A, B], "boot 2", "b"),
        (NOTED, [DEAD_A, CLEAN_B], "boot 2", "a"),  # it may have been in use
        (NOTED, [DEAD_A, B], "boot 1", ""),
        (NOTED, [A, CLEAN_B, NEW], "boot 2", "a"),
        (DAMAGED, [CLEAN_A, CLEAN_B], "boot 1", "a"),
        (DAMAGED, [A, B], "boot 2", "ab"),
        (NOTED, [CLEAN_B], "boot 1", "a"),  # given up
        (NOTED, [CLEAN_A, CLEAN_B, directory("c", is_clean=True)], "boot 1", "c"),  # given up earlier, and back
        (NOTED, [A._replace(is_identified=False), B], "boot 1", "a"),
        (NOTED, [CLEAN_A._replace(is_identified=False), B], "boot 1", "a"),
    ],
)
def test_lost_directories(found: LossNode | None, directories: list[DirectoryState], boot: str, lost: str) -> None:
    assert lost_directories(found, directories, boot) == frozenset(lost)


def test_directory_that_is_offline_keeps_the_boot_in_which_it_was_last_opened() -> None:
    assert opened(NOTED, [DEAD_A, B, NEW], "boot 2") == {"a": "boot 1", "b": "boot 2", "c": "boot 2"}
    assert opened(NOTED, [DEAD_A], "boot 2") == {"a": "boot 1"}
    assert opened(None, [A, DEAD_A._replace(id="b")], "boot 1") == {"a": "boot 1"}


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "reboots": st.booleans(),
            "clean": st.sets(st.sampled_from("ab")),
            "dead": st.sets(st.sampled_from("ab")),
        }
    ),
    max_size=8,
)


@given(STEPS)
def test_directory_that_was_open_in_a_power_failure_counts_as_lost_from_then_on(steps: list[dict[str, object]]) -> None:
    """The model knows the boot of each directory's last use, and whether that use ended in a clean stop."""
    boot, node = 1, LossNode({"a": "1", "b": "1"})
    used: dict[str, int] = {"a": 1, "b": 1}
    closed: set[str] = set()
    lacking: set[str] = set()
    for step in steps:
        dead, clean = set(step["dead"]), set(step["clean"])  # type: ignore[call-overload]
        closed |= clean & used.keys() - dead
        boot += bool(step["reboots"])
        states = [
            directory(key, online=key not in dead, is_clean=key in closed - dead, is_identified=key not in dead)
            for key in "ab"
        ]
        lost = lost_directories(node, states, str(boot))
        for key in "ab":
            if key not in dead:
                if key not in closed and used[key] != boot:
                    lacking.add(key)
                used[key] = boot
        closed -= {key for key in "ab" if key not in dead}
        assert lacking <= lost
        node = LossNode(opened(node, states, str(boot)), sorted(lost))
