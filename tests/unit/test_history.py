"""The comparison of written and found records reports each kind of wrong record."""

from __future__ import annotations

import pytest

from support.history import ABORTED, COMMITTED, UNKNOWN, Written, check_once, check_transaction
from support.replica_invariants import InvariantError

PAIR, OTHERS = [b"1", b"1+"], [b"2", b"2+"]


def test_records_are_right_in_any_order() -> None:
    check_once([1, 2, 2, 3], [3, 2, 1, 2])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([1, 2], r"lost \[3\], doubled or unknown \[\]"),
        ([1, 2, 2, 3], r"lost \[\], doubled or unknown \[2\]"),
        ([1, 2, 3, 4], r"lost \[\], doubled or unknown \[4\]"),
        ([1, 1, 2], r"lost \[3\], doubled or unknown \[1\]"),
    ],
    ids=["lost", "doubled", "unknown", "lost and doubled"],
)
def test_wrong_records_are_named(found: list[int], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_once([1, 2, 3], found)


def written(outcome: str) -> Written:
    return Written(b"1", partitions={0, 1}, acknowledged={0}, outcome=outcome)


@pytest.mark.parametrize(
    ("outcome", "visible"),
    [
        (COMMITTED, [[*PAIR, *OTHERS], PAIR]),
        (COMMITTED, [[b"1", *OTHERS, b"1+"], PAIR]),
        (ABORTED, [OTHERS, []]),
        (UNKNOWN, [OTHERS, OTHERS]),
        (UNKNOWN, [PAIR, []]),
        (UNKNOWN, [PAIR, PAIR]),
    ],
)
def test_whole_and_invisible_transactions_are_right(outcome: str, visible: list[list[bytes]]) -> None:
    check_transaction(written(outcome), visible)


@pytest.mark.parametrize(
    ("outcome", "visible"),
    [
        (COMMITTED, [PAIR, OTHERS]),
        (COMMITTED, [PAIR, PAIR, PAIR]),
        (ABORTED, [PAIR, PAIR]),
        (UNKNOWN, [[], PAIR]),
        (UNKNOWN, [PAIR, [], PAIR]),
    ],
    ids=["lost partition", "unknown partition", "visible", "acknowledged but lost", "not written"],
)
def test_transaction_in_the_wrong_partitions_is_found(outcome: str, visible: list[list[bytes]]) -> None:
    with pytest.raises(InvariantError, match="invariant 8"):
        check_transaction(written(outcome), visible)


@pytest.mark.parametrize("outcome", [COMMITTED, UNKNOWN])
@pytest.mark.parametrize(
    "values",
    [[b"1"], [b"1+"], [*PAIR, *PAIR], [b"1", *PAIR], [b"1+", b"1"]],
    ids=["first", "second", "doubled", "one doubled", "reordered"],
)
def test_torn_doubled_or_reordered_transaction_is_found(outcome: str, values: list[bytes]) -> None:
    with pytest.raises(InvariantError, match="invariant 8"):
        check_transaction(written(outcome), [PAIR, values])
