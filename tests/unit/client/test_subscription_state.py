"""What a consumer reads, which fetched records are buffered for `poll`, and what a loop over records leaves."""

from __future__ import annotations

import re

import pytest

from oncelog import errors
from oncelog.client.consumer.completed_fetch import CompletedFetch
from oncelog.client.consumer.fetch_collector import Iteration, collect_fetches, collect_records
from oncelog.client.consumer.subscription_state import SubscriptionState
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import Record, build_batch

A, B = ("a", 0), ("b", 0)


def assigned(*partitions: tuple[str, int], records: int = 0) -> SubscriptionState:
    """Return the state of a consumer that has fetched so many records of each partition."""
    state = SubscriptionState()
    state.assign_from_user(partitions)
    for tp in partitions:
        state.seek(tp, 0)
        if records:
            data = bytes(build_batch([Record(offset, 0, None, b"x") for offset in range(records)]))
            fetch = CompletedFetch(tp, PartitionData(records=data), 0, committed_only=False, check_crcs=True)
            state.add_fetch(fetch)
    return state


def offsets(state: SubscriptionState, limit: int) -> list[tuple[str, int]]:
    return [(record.topic, record.offset) for record in collect_records(state, limit)]


def test_subscription_and_manual_assignment_exclude_each_other() -> None:
    state = assigned(A)
    with pytest.raises(errors.UsageError, match="unsubscribe"):
        state.subscribe(frozenset({"a"}), None)
    state.unsubscribe()
    for topics, pattern in ((frozenset({"a"}), None), (frozenset[str](), re.compile("a"))):
        state.subscribe(topics, pattern)
        with pytest.raises(errors.UsageError, match="subscribed"):
            state.assign_from_user([A])
    state.assign([A])
    state.unsubscribe()
    assert (state.subscribed, state.partitions) == (False, {})


def test_assignment_keeps_positions_and_records_of_kept_partitions() -> None:
    state = assigned(A, B, records=2)
    kept = state.partitions[A]
    state.assign([A])
    assert state.is_current(A, kept)
    assert state.ready == [A]
    assert kept.position == 2
    state.assign([])
    state.assign([A])
    assert not state.is_current(A, kept), "another member may have read it meanwhile"
    assert state.lacks_positions
    assert state.ready == []
    with pytest.raises(errors.UsageError, match="b-0 is not assigned"):
        state.seek(B, 1)


def test_listeners_are_called_after_each_change_of_the_assignment() -> None:
    state = SubscriptionState()
    seen: list[list[tuple[str, int]]] = []
    state.assignment_listeners.append(lambda: seen.append(list(state.partitions)))
    state.assign([A, B])
    state.unsubscribe()
    assert seen == [[A, B], []]


def test_partitions_are_returned_in_turns() -> None:
    state = assigned(A, B, records=3)
    assert [offsets(state, 2) for _ in range(4)] == [
        [("a", 0), ("a", 1)],
        [("b", 0), ("b", 1)],
        [("a", 2), ("b", 2)],
        [],
    ]
    assert state.consumed() == {A: 3, B: 3}


def test_paused_partition_keeps_its_records_and_its_turn() -> None:
    state = assigned(A, B, records=1)
    state.partitions[A].paused = True
    assert offsets(state, 5) == [("b", 0)]
    state.partitions[A].paused = False
    assert offsets(state, 5) == [("a", 0)]


def test_returned_fetches_are_collected_again_in_order() -> None:
    state = assigned(A, records=2)
    more = bytes(build_batch([Record(2, 0, None, b"x")], base_offset=2))
    state.add_fetch(CompletedFetch(A, PartitionData(records=more), 2, committed_only=False, check_crcs=True))
    fetches = collect_fetches(state)
    assert collect_fetches(state) == []
    state.give_back(reversed(fetches))
    assert offsets(state, 5) == [("a", 0), ("a", 1), ("a", 2)]
    state.assign([B])
    state.give_back(reversed(fetches))
    assert state.ready == []


def test_abandoned_loop_returns_its_unread_records() -> None:
    state = assigned(A, B, records=2)
    iteration = Iteration(state, collect_records(state, 10))
    reached = iter(iteration)
    assert [next(reached).offset for _ in range(3)] == [0, 1, 0]
    assert state.consumed() == {A: 2, B: 1}
    iteration.stop()
    assert list(reached) == []
    assert (state.partitions[A].position, state.partitions[B].position) == (2, 1)


def test_seek_ends_the_loop_over_a_partition_and_a_reset_does_not() -> None:
    """The records of the loop are before the seek, but they were in the log before retention deleted them."""
    state = assigned(A, B, records=2)
    iteration = Iteration(state, collect_records(state, 10))
    state.seek(A, 7)
    state.partitions[B].seek_to_time(-1)
    assert [(record.topic, record.offset) for record in iteration] == [("b", 0), ("b", 1)]
    iteration.stop()
    assert state.partitions[A].consumed == 7
