"""Random transactions, zombies, timeouts, faults and changes of transaction.version on one broker.

`scripts/worlds [FIRST [COUNT]]` runs any number of other seeds, and shrinks the plan of one that fails.
"""

from __future__ import annotations

from collections import Counter

import pytest

from support.history import ABORTED, COMMITTED, UNKNOWN
from support.transaction_world import run


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_transactions_are_atomic(first: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(first, first + 20):
        try:
            total += run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert min(total[outcome] for outcome in (COMMITTED, ABORTED, UNKNOWN)) > 0
    assert total["PRODUCER_FENCED"] + total["INVALID_PRODUCER_EPOCH"] > 0, "zombies existed"
