"""A follower: what it fetches, and what it does with each response."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelog.cluster.follower import Append, Fetch, Fetched, Following, Restart, Signal, Truncate
from oncelog.cluster.leader import DivergingEpoch, Leadership
from oncelog.cluster.partition_state import PartitionState
from oncelog.log.log import Log
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.records import BatchHeader, iter_batches
from support.logs import NOW, append, append_as_follower, batch, new_log
from support.replica_process import LeaderLog


def log_of(epochs: list[int]) -> Log:
    """Return a log with one record in each of these epochs."""
    _, log = new_log()
    for offset, epoch in enumerate(epochs):
        append_as_follower(
            log, bytes(batch(base_offset=offset, leader_epoch=epoch, value=b"%d" % epoch)), leader_epoch=99, now_ms=NOW
        )
    return log


def following(epochs: list[int]) -> tuple[Following, Fetch]:
    machine = Following(1, 9, log_of(epochs))
    fetch = machine.next_fetch(0)
    assert fetch is not None
    return machine, fetch


def test_fetch_names_the_last_epoch() -> None:
    assert following([1, 1, 4])[1] == Fetch(9, 3, 4, 0)
    assert following([])[1] == Fetch(9, 0, -1, 0)


def test_response_is_appended_and_only_once() -> None:
    machine, fetch = following([1])
    assert machine.received(fetch, Fetched(records=b"x", high_watermark=3, log_start=0)) == Append(b"x", 3, 0)
    assert machine.received(fetch, Fetched(records=b"x")) is Signal.IGNORE


@pytest.mark.parametrize(
    ("epochs", "diverging", "action"),
    [
        ([1, 1, 3, 3], (3, 3), Truncate(3)),
        ([1, 1, 3, 3], (2, 7), Truncate(2)),  # the leader's epoch is unknown here: the end of the one before it
        ([1, 1, 3, 3], (1, 1), Truncate(1)),
        ([1, 1, 3, 3], (1, 9), Truncate(2)),
        ([2, 3], (1, 0), Truncate(0)),
        ([1], (1, 5), Signal.RETRY),  # the logs agree
    ],
)
def test_truncates_to_the_end_of_the_last_common_epoch(
    epochs: list[int], diverging: tuple[int, int], action: object
) -> None:
    machine, fetch = following(epochs)
    assert machine.received(fetch, Fetched(diverging=DivergingEpoch(*diverging))) == action


@pytest.mark.parametrize(
    ("error", "signal", "stopped"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, Signal.STOP, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, Signal.RETRY, False),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Signal.RETRY, False),
        (ErrorCode.KAFKA_STORAGE_ERROR, Signal.RETRY, False),
        (ErrorCode.OFFSET_OUT_OF_RANGE, Signal.ASK_RANGE, False),
    ],
)
def test_errors(error: ErrorCode, signal: Signal, stopped: bool) -> None:
    machine, fetch = following([1])
    assert machine.received(fetch, Fetched(error)) is signal
    assert (machine.next_fetch(0) is None) == stopped


@pytest.mark.parametrize(
    ("start", "end", "action"),
    [(0, 2, Truncate(2)), (7, 9, Restart(7)), (0, 9, Signal.RETRY), (3, 3, Signal.RETRY)],
)
def test_out_of_range(start: int, end: int, action: object) -> None:
    assert following([1, 1, 1])[0].range_known(start, end) == action


def headers(log: Log) -> list[BatchHeader]:
    data = log.read(0, 1 << 20, upto=log.log_end_offset, at_least_one=True)
    return [header for header, _ in iter_batches(data)]


def epochs_of(shared: list[int], own: list[int]) -> list[int]:
    """Return growing epochs: those of the shared log, then own ones. No two leaders have the same epoch."""
    base = shared[-1] if shared else 0
    return shared + sorted(base + epoch for epoch in own)


@given(
    st.lists(st.integers(0, 5), max_size=5).map(sorted),
    st.lists(st.sampled_from([1, 3, 5, 7]), max_size=6),
    st.lists(st.sampled_from([2, 4, 6, 8]), max_size=6),
)
@settings(deadline=None)
def test_logs_agree_in_the_end_and_the_common_records_stay(
    shared: list[int], leaders: list[int], own: list[int]
) -> None:
    leader, follower = log_of(epochs_of(shared, leaders)), log_of(epochs_of(shared, own))
    term = Leadership(1, (1, 2), PartitionState(1, 99, (1, 2)), LeaderLog(leader))
    append(leader, batch(), leader_epoch=99)
    machine = Following(1, 99, follower)
    for _ in range(20):
        fetch = machine.next_fetch(0)
        assert fetch is not None
        diverging = term.check_fetch(
            current_leader_epoch=99,
            offset=fetch.offset,
            last_fetched_epoch=fetch.last_fetched_epoch,
        )
        records = b"" if diverging else leader.read(fetch.offset, 1, upto=leader.log_end_offset, at_least_one=True)
        action = machine.received(fetch, Fetched(records=records, diverging=diverging))
        if isinstance(action, Truncate):
            assert len(shared) <= action.offset < follower.log_end_offset
            follower.truncate_to(action.offset, NOW)
        else:
            assert isinstance(action, Append)
            append_as_follower(follower, action.records, leader_epoch=99, now_ms=NOW)
    found = [
        list(iter_batches(log.read(0, 1 << 20, upto=log.log_end_offset, at_least_one=True)))
        for log in (leader, follower)
    ]
    assert [header for header, _ in found[0]] == [header for header, _ in found[1]]
