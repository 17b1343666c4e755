"""A term: its high watermark, its ISR proposals, and the outcomes of its waits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from oncelog.cluster.leader import DivergingEpoch, Leadership, end_offset_for_epoch
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.waits import Outcome
from oncelog.protocol.errors import ErrorCode, ProtocolError

LAG = 100


@dataclass
class Ends:
    """A log and its replica. Epoch 1 is at 0..4, epoch 3 at 4..10."""

    log_end_offset: int = 10
    high_watermark: int = 0
    log_start_offset: int = 0
    synced_end: int | None = None
    leader_epoch: int = 3

    @property
    def log(self) -> Ends:
        return self

    @property
    def stored_end(self) -> int:
        return self.log_end_offset if self.synced_end is None else self.synced_end

    def advance_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return {0: (0, 0), 1: (1, 4), 2: (1, 4), 3: (3, 10)}.get(epoch, (-1, -1))


def new_term(
    isr: tuple[int, ...] = (1, 2, 3), high_watermark: int = 0, ends: Ends | None = None, **options: Any
) -> Leadership:
    term = Leadership(
        1,
        options.pop("replicas", (1, 2, 3)),
        PartitionState(1, 5, isr, 7),
        ends or Ends(high_watermark=high_watermark),
        **{"min_insync_replicas": 2, "max_lag_ms": LAG, "live": {1: 0, 2: 0, 3: 0}, **options},
    )
    term.appended()
    return term


def append(term: Leadership, log_end: int) -> bool:
    ends = cast(Ends, term._replica)
    ends.log_end_offset = log_end
    return term.appended()


def delete(term: Leadership, log_start: int) -> None:
    ends = cast(Ends, term._replica)
    ends.log_start_offset = log_start
    term.deleted()


def fetched(term: Leadership, broker: int, offset: int, now_ms: int = 0, epoch: int = 0) -> bool:
    return term.fetched(broker, epoch, offset, log_start=0, now_ms=now_ms)


def code_of(call: Any) -> ErrorCode:
    with pytest.raises(ProtocolError) as error:
        call()
    return error.value.code


# --- high watermark ---


def test_one_replica_commits_at_once() -> None:
    term = new_term((1,), replicas=(1,), min_insync_replicas=3)
    assert (term.high_watermark, term.exposed_high_watermark) == (10, 10)
    assert append(term, 12)
    assert term.high_watermark == 12


def test_records_that_must_be_synced_first_are_not_committed() -> None:
    ends = Ends(synced_end=4)
    term = new_term((1,), replicas=(1,), ends=ends)
    assert (term.high_watermark, append(term, 20)) == (4, False)
    ends.synced_end = 12
    assert (term.appended(), term.high_watermark) == (True, 12)


def test_high_watermark_is_the_lowest_end_of_the_isr() -> None:
    term = new_term()
    assert not fetched(term, 2, 10)
    assert fetched(term, 3, 8)
    assert (term.high_watermark, term.exposed_high_watermark) == (8, None)
    assert fetched(term, 3, 10)
    assert term.exposed_high_watermark == 10


def changed(term: Leadership) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Write the state that the term proposes. Return its ISR and ELR."""
    proposal = term.proposal()
    assert proposal is not None
    term.state_written(replace(proposal.state, version=proposal.state.version + 1))
    return proposal.state.isr, proposal.state.elr


def test_member_that_leaves_is_eligible_while_too_few_are_in_sync() -> None:
    term = new_term(live={1: 0, 2: 0})
    assert changed(term) == ((1, 2), ())
    term.live_changed({1: 0}, 0)
    assert changed(term) == ((1,), (2,))
    term.live_changed({1: 0, 2: 0, 3: 0}, 0)
    fetched(term, 3, 10)
    assert changed(term) == ((1, 3), ())


def test_high_watermark_stops_until_no_replica_is_eligible() -> None:
    """With a lower min.insync.replicas, the leader may commit alone, but eligible replicas would lack the records."""
    term = new_term((1, 2), live={1: 0})
    assert changed(term) == ((1,), (2,))
    append(term, 20)
    term.min_insync_replicas = 1
    term.passed(0)
    assert term.high_watermark == 0
    assert changed(term) == ((1,), ())
    assert term.high_watermark == 20


def test_high_watermark_stops_under_min_isr() -> None:
    term = new_term((1,))
    append(term, 20)
    assert (term.high_watermark, term.under_min_isr) == (0, True)


def test_replica_that_keeps_up_counts_before_it_is_in_the_isr() -> None:
    term = new_term((1, 2), high_watermark=10)
    fetched(term, 3, 10, now_ms=5)
    append(term, 12)
    assert not fetched(term, 2, 12, now_ms=6)
    assert not term.passed(5 + LAG)
    assert term.passed(6 + LAG)
    assert term.high_watermark == 12


def test_shutting_down_replica_outside_the_isr_does_not_count() -> None:
    term = new_term((1, 2), high_watermark=10)
    fetched(term, 3, 10)
    append(term, 12)
    fetched(term, 2, 12)
    assert term.live_changed({1: 0, 2: 0}, 0)


# --- in-sync replicas ---


def test_member_that_lags_leaves_after_the_maximum_lag() -> None:
    term = new_term()
    fetched(term, 2, 10)
    term.passed(LAG)
    assert term.proposal() is None
    term.passed(LAG + 1)
    proposal = term.proposal()
    assert proposal is not None
    assert (proposal.state, proposal.joining) == (PartitionState(1, 5, (1, 2), 7), ())
    assert (term.proposal(), term.high_watermark, set(term.isr)) == (None, 0, {1, 2, 3})  # the old ISR counts
    assert term.state_written(replace(proposal.state, version=8))
    assert (term.high_watermark, set(term.isr), term.state.version) == (10, {1, 2}, 8)


def test_member_that_is_dead_or_shutting_down_leaves_at_once() -> None:
    """Otherwise, producers with acks=all wait for the maximum lag after each death of a follower."""
    term = new_term()
    fetched(term, 2, 10)
    fetched(term, 3, 10)
    append(term, 12)
    fetched(term, 2, 12)
    assert not term.live_changed({1: 0, 2: 0}, 0)
    proposal = term.proposal()
    assert proposal is not None
    assert proposal.state.isr == (1, 2)
    assert term.state_written(replace(proposal.state, version=8))
    assert term.high_watermark == 12


@pytest.mark.parametrize(("offset", "joins"), [(9, False), (10, True)])
def test_member_joins_from_the_start_of_the_epoch(offset: int, joins: bool) -> None:
    """The high watermark of a new leader may be too low (KAFKA-7128)."""
    term = new_term(high_watermark=3)
    term.live_changed({1: 0, 2: 0}, 0)
    proposal = term.proposal()
    assert proposal is not None
    term.state_written(replace(proposal.state, version=8))
    term.live_changed({1: 0, 2: 0, 3: 1}, 0)
    fetched(term, 3, offset, epoch=1)
    proposal = term.proposal()
    assert (proposal is not None) == joins
    if proposal is not None:
        assert (proposal.state.isr, proposal.joining) == ((1, 2, 3), ((3, 1),))


def test_member_that_has_left_joins_again_only_after_a_fetch() -> None:
    """Otherwise, a dead follower joins and leaves in turns while the high watermark waits for another one."""
    term = new_term()
    fetched(term, 2, 10)
    fetched(term, 3, 10)
    fetched(term, 2, 10, now_ms=LAG)
    append(term, 11)
    term.passed(LAG + 1)
    proposal = term.proposal()
    assert proposal is not None
    assert proposal.state.isr == (1, 2)
    term.state_written(replace(proposal.state, version=8))
    assert term.high_watermark == 10
    assert term.proposal() is None
    fetched(term, 3, 11, now_ms=LAG + 2)
    proposal = term.proposal()
    assert proposal is not None
    assert proposal.state.isr == (1, 2, 3)


def test_slow_follower_joins_only_after_it_has_caught_up() -> None:
    """Otherwise, it joins and leaves with each fetch while the high watermark waits for another member."""
    term = new_term((1, 2), high_watermark=10)
    fetched(term, 2, 10, now_ms=LAG)
    append(term, 20)
    fetched(term, 3, 12, now_ms=LAG + 1)
    assert term.proposal() is None
    fetched(term, 3, 20, now_ms=LAG + 2)
    proposal = term.proposal()
    assert proposal is not None
    assert proposal.state.isr == (1, 2, 3)


def test_joining_member_counts_before_the_write_is_confirmed() -> None:
    term = new_term((1, 2), high_watermark=3)
    fetched(term, 3, 10)
    assert term.proposal()
    append(term, 15)
    assert fetched(term, 2, 15, now_ms=LAG * 5)
    assert term.high_watermark == 10


def test_under_min_isr_a_member_must_keep_up() -> None:
    """At the high watermark, which has stopped, it would leave the ISR at once (KAFKA-19996)."""
    term = new_term((1,), high_watermark=10)
    append(term, 50)
    fetched(term, 3, 10, now_ms=1)
    assert term.proposal() is None
    fetched(term, 3, 50, now_ms=2)
    assert term.proposal()


def test_refused_proposal_counts_no_more_and_an_unknown_one_does_until_a_newer_version() -> None:
    for report, target in (("refused", 15), ("unknown", 10)):
        term = new_term((1, 2), high_watermark=10)
        fetched(term, 3, 10, now_ms=1)
        assert term.proposal()
        getattr(term, report)()
        append(term, 15)
        fetched(term, 2, 15, now_ms=2 + LAG)
        assert term.high_watermark == target
    assert term.state_written(PartitionState(1, 5, (1, 2), 7))  # the write may still be delayed
    assert term.high_watermark == 10
    assert term.state_written(PartitionState(1, 5, (1, 2), 8))
    assert term.high_watermark == 15


def test_later_leader_epoch_ends_the_term_and_an_older_version_is_ignored() -> None:
    term = new_term()
    assert term.state_written(PartitionState(1, 4, (1,), 6))
    assert not term.state_written(PartitionState(2, 6, (2, 3), 8))
    assert term.isr == {1, 2, 3}


# --- fetches ---


@pytest.mark.parametrize(
    ("offset", "last", "expected"),
    [
        (10, 3, None),
        (10, 5, None),
        (3, 1, None),
        (0, -1, None),
        (7, 1, DivergingEpoch(1, 4)),
        (7, 2, DivergingEpoch(1, 4)),
        (11, 3, DivergingEpoch(3, 10)),
        (9, 4, DivergingEpoch(3, 10)),
    ],
)
def test_fetch_shows_where_the_logs_diverge(offset: int, last: int, expected: DivergingEpoch | None) -> None:
    asked = {"current_leader_epoch": 5, "offset": offset, "last_fetched_epoch": last}
    assert new_term().check_fetch(**asked) == expected


@pytest.mark.parametrize(
    ("epoch", "offset", "code"),
    [
        (4, 0, ErrorCode.FENCED_LEADER_EPOCH),
        (6, 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (5, 11, ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_fetch_is_rejected(epoch: int, offset: int, code: ErrorCode) -> None:
    asked = {"current_leader_epoch": epoch, "offset": offset, "last_fetched_epoch": -1}
    assert code_of(lambda: new_term().check_fetch(**asked)) == code


def test_epoch_of_the_leader_counts_before_its_first_append() -> None:
    assert end_offset_for_epoch(Ends(), 5, 5) == (5, 10)
    assert end_offset_for_epoch(Ends(), 5, 4) == (3, 10)
    assert end_offset_for_epoch(Ends(), 5, 2) == (1, 4)


def test_fetch_of_a_replaced_process_does_not_count() -> None:
    term = new_term(live={1: 0, 2: 3, 3: 0})
    assert code_of(lambda: fetched(term, 2, 10, epoch=2)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(lambda: fetched(term, 9, 10)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    fetched(term, 2, 4, epoch=3)


@pytest.mark.parametrize("live", [{1: 0, 2: 3, 3: 0}, {1: 0, 3: 0}])
def test_fetch_of_an_unknown_registration_changes_nothing(live: dict[int, int]) -> None:
    """The epoch may be invented, and must not keep the registered process out."""
    term = new_term((1, 2), live={1: 0, 2: 3, 3: 0})
    fetched(term, 2, 4, epoch=3)
    term.live_changed(live, 0)
    assert code_of(lambda: fetched(term, 2, 10, epoch=4)) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert term.high_watermark == 4
    assert fetched(term, 2, 10, epoch=3)  # also while it is shutting down, because it is in the ISR


def test_fetch_without_a_registration_changes_nothing() -> None:
    term = new_term((1, 2), live={1: 0, 3: 0})
    assert code_of(lambda: fetched(term, 2, 10, epoch=-1)) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert term.high_watermark == 0


def test_low_watermark_is_the_lowest_start_of_the_live_and_the_in_sync_replicas() -> None:
    term = new_term(isr=(1, 2), ends=Ends(log_start_offset=4))
    assert term.low_watermark == -1
    term.fetched(2, 0, 10, log_start=2, now_ms=0)
    assert term.low_watermark == -1
    term.live_changed({1: 0, 2: 0}, 0)
    assert term.low_watermark == 2
    term.fetched(2, 0, 10, log_start=9, now_ms=0)
    delete(term, 6)
    assert term.low_watermark == 6


@pytest.mark.parametrize("is_eligible", [False, True])
def test_low_watermark_counts_dead_members_until_they_have_left_isr_and_elr(is_eligible: bool) -> None:
    """A dead member may be elected when it is back."""
    term = new_term(isr=(1, 2), live={1: 0, 2: 0}, min_insync_replicas=2 if is_eligible else 1)
    term.fetched(2, 0, 10, log_start=0, now_ms=0)
    delete(term, 6)
    term.live_changed({1: 0}, 0)
    assert term.low_watermark == 0
    proposal = term.proposal()
    assert proposal is not None
    assert term.low_watermark == 0
    assert proposal.state.elr == ((2,) if is_eligible else ())
    term.state_written(replace(proposal.state, version=proposal.state.version + 1))
    assert term.low_watermark == (0 if is_eligible else 6)


def test_follower_joins_only_when_it_has_deleted_what_delete_records_has_deleted() -> None:
    term = new_term(isr=(1,), live={1: 0, 2: 0})
    delete(term, 6)
    term.fetched(2, 0, 10, log_start=5, now_ms=0)
    assert term.proposal() is None
    term.fetched(2, 0, 10, log_start=6, now_ms=0)
    proposal = term.proposal()
    assert proposal is not None
    assert proposal.state.isr == (1, 2)


# --- waits ---


def test_each_wait_has_one_outcome() -> None:
    found: list[tuple[int, Outcome]] = []

    def record(offset: int, outcome: Outcome) -> None:
        found.append((offset, outcome))

    term = new_term()
    waits = [term.waits.add(offset, partial(record, offset)) for offset in (9, 7, 8, 6)]
    waits[1].finish(Outcome.TIMED_OUT)
    waits[2].finish(Outcome.CANCELLED)
    fetched(term, 2, 10)
    fetched(term, 3, 9)
    term.end()
    term.end()
    assert code_of(lambda: fetched(term, 3, 10)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not waits[0].finish(Outcome.COMMITTED)
    assert found == [
        (7, Outcome.TIMED_OUT),
        (8, Outcome.CANCELLED),
        (6, Outcome.COMMITTED),
        (9, Outcome.LOST),
    ]
    assert term.waits.add(9, partial(record, 9)).outcome is Outcome.LOST
    assert term.waits.add(8, partial(record, 8)).outcome is Outcome.COMMITTED


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=60))
def test_high_watermark_grows_and_never_passes_a_member(steps: list[tuple[int, int]]) -> None:
    """Whatever happens in a term, a committed record is in each member of the old and the new ISR."""
    term, now, version = new_term(ends=Ends(0)), 0, 7
    ends = {1: 0, 2: -1, 3: -1}
    outcomes: list[Outcome] = []
    waits = 0
    for kind, number in steps:
        before, now = term.high_watermark, now + number
        if kind == 0:
            ends[1] += 1 + number % 3
            append(term, ends[1])
            term.waits.add(ends[1] - 1, outcomes.append)
            waits += 1
        elif kind < 3:
            ends[kind + 1] = min(ends[1], max(0, ends[kind + 1]) + number)
            fetched(term, kind + 1, ends[kind + 1], now)
        elif kind == 3:
            term.passed(now)
            counted = set(term.isr)
            proposal = term.proposal()
            if proposal is not None:
                counted |= set(proposal.state.isr)
                assert 1 in proposal.state.isr
                assert term.high_watermark <= min(ends[member] for member in counted if ends[member] >= 0)
                if number % 3 == 0:
                    version += 1
                    term.state_written(replace(proposal.state, version=version))
                elif number % 3 == 1:
                    term.refused()
                else:
                    term.unknown()
        assert before <= term.high_watermark <= ends[1]
        if term.high_watermark > before:
            assert all(ends[member] >= term.high_watermark for member in term.isr)
            assert len(term.isr) >= 2
    term.end()
    assert len(outcomes) == waits
