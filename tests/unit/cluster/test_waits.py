"""Waits for offsets: those that end early are freed, and many end in parts and in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from oncelog.cluster.waits import WAITS_A_PART, Outcome, Waits

COUNT = 3 * WAITS_A_PART


class Recorded:
    """Waits whose outcomes are recorded in order, and the work that runs later."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.waits = Waits(0, self.later.append)
        self.found: list[tuple[int, Outcome]] = []
        self.all = [self.waits.add(offset, partial(self.record, offset)) for offset in range(COUNT)]

    def record(self, offset: int, outcome: Outcome) -> None:
        self.found.append((offset, outcome))

    def run_all(self) -> int:
        """Run what was postponed. Return in how many steps."""
        steps = 0
        while self.later:
            self.later.pop(0)()
            steps += 1
        return steps


@pytest.mark.parametrize("step", [1, -1])
def test_ended_waits_leave_the_heap(step: int) -> None:
    recorded = Recorded()
    for wait in recorded.all[1:][::step]:
        assert wait.finish(Outcome.TIMED_OUT)
        unfinished = sum(each.outcome is None for each in recorded.all)
        assert len(recorded.waits) <= max(64, 2 * unfinished)
    assert recorded.all[0].finish(Outcome.CANCELLED)
    assert len(recorded.waits) == 0
    recorded.waits.lose()
    assert len(recorded.found) == COUNT


def test_ended_wait_frees_its_callback() -> None:
    recorded = Recorded()
    wait = recorded.all[0]
    wait.finish(Outcome.TIMED_OUT)
    assert (wait._callback, wait.waits) == (None, None)


def test_many_waits_end_in_parts_and_in_order() -> None:
    recorded = Recorded()
    recorded.waits.commit(COUNT - 10)
    assert len(recorded.found) == WAITS_A_PART
    recorded.waits.add(0, partial(recorded.record, -1))  # its outcome is known, so it does not queue
    recorded.waits.lose()
    recorded.waits.add(COUNT, partial(recorded.record, COUNT))
    assert len(recorded.found) == WAITS_A_PART + 2
    assert recorded.run_all() == 2
    assert [offset for offset, _ in recorded.found] == [*range(100), -1, COUNT, *range(100, COUNT)]
    lost = [offset for offset, outcome in recorded.found if outcome is Outcome.LOST]
    assert lost == [COUNT, *range(COUNT - 10, COUNT)], "the high watermark had passed the others before the end"


def test_error_of_a_callback_does_not_keep_the_other_waits() -> None:
    def fail(_outcome: Outcome) -> None:
        raise ValueError("broken")

    recorded = Recorded()
    recorded.waits.add(0, fail)
    with pytest.raises(ValueError, match="broken"):
        recorded.waits.commit(COUNT)
    recorded.run_all()
    assert len(recorded.found) == COUNT
    assert not recorded.waits._releasing


def test_callback_may_add_and_end_waits() -> None:
    recorded = Recorded()

    def again(outcome: Outcome) -> None:
        recorded.record(-1, outcome)
        recorded.waits.add(0, partial(recorded.record, -2))
        for wait in recorded.all[50:]:
            wait.finish(Outcome.CANCELLED)

    recorded.waits.add(0, again)
    recorded.waits.commit(40)
    assert [offset for offset, _ in recorded.found[:4]] == [0, -1, -2, 50]
    assert sum(outcome is Outcome.COMMITTED for _, outcome in recorded.found) == 42
    recorded.waits.lose()
    recorded.run_all()
    assert (len(recorded.found), len(recorded.waits)) == (COUNT + 2, 0)
