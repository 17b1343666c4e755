"""A replica leads in terms: each wait has an outcome, and min ISR is checked before each append."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.replica import Replica
from oncelog.log.config import LogConfig
from oncelog.log.log import Origin
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import Record, build_batch
from support.logs import NOW, new_log, restart_at


def batch(value: bytes = b"x") -> memoryview:
    return memoryview(bytearray(build_batch([Record(0, NOW, None, value)])))


def replicated(*isr: int, least: int = 1, epoch: int = 0) -> Replica:
    """Return a replica of broker 1 that leads brokers 2 and 3."""
    _, log = new_log(LogConfig())
    replica = Replica("t", 0, UUID(int=1), log)
    replica.lead(1, [1, 2, 3], PartitionState(1, epoch, isr, 4), min_insync_replicas=least)
    return replica


def fetched(replica: Replica, broker: int, offset: int) -> None:
    assert replica.term is not None
    replica.term.fetched(broker, 0, offset, log_start=0, now_ms=0)


def test_records_are_committed_when_all_in_sync_replicas_have_them() -> None:
    replica = replicated(1, 2, 3)
    outcomes: list[ErrorCode] = []
    replica.append(batch(), now_ms=NOW)
    replica.when_committed(0, outcomes.append)
    replica.when_stored(0, outcomes.append)
    assert outcomes == [ErrorCode.NONE]  # stored here, which is enough for acks=1
    fetched(replica, 2, 1)
    assert (replica.log.high_watermark, len(outcomes)) == (0, 1)
    fetched(replica, 3, 1)
    assert (replica.log.high_watermark, outcomes) == (1, [ErrorCode.NONE, ErrorCode.NONE])


def test_a_watcher_hears_of_appends_and_of_commits() -> None:
    replica = replicated(1, 2)
    calls: list[int] = []
    replica.watch(lambda: calls.append(replica.log.high_watermark))
    replica.append(batch(), now_ms=NOW)
    fetched(replica, 3, 0)
    assert calls == [0]
    fetched(replica, 2, 1)
    assert calls == [0, 1]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (Replica.end_term, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (Replica.fail, ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda replica: (replica.log.discard(), replica.release()), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_the_end_of_a_term_fails_its_waits(end: Callable[[Replica], object], code: ErrorCode) -> None:
    replica = replicated(1, 2)
    replica.append(batch(), now_ms=NOW)
    outcomes: list[ErrorCode] = []
    replica.when_committed(0, outcomes.append)
    end(replica)
    replica.when_committed(0, outcomes.append)
    replica.when_stored(9, outcomes.append)
    assert outcomes == [code] * 3
    with pytest.raises(ProtocolError) as caught:
        replica.append(batch(), now_ms=NOW)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_term_of_the_same_leader_fails_the_waits_of_the_old_one() -> None:
    replica = replicated(1, 2)
    replica.append(batch(), now_ms=NOW)
    outcomes: list[ErrorCode] = []
    replica.when_committed(0, outcomes.append)
    replica.lead(1, [1, 2, 3], PartitionState(1, 1, (1,), 5))
    assert outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert replica.log.high_watermark == 1  # alone in sync now, so it commits what its log has
    replica.append(batch(), now_ms=NOW)
    assert (replica.log.epoch_at(0), replica.log.epoch_at(1)) == (0, 1)


@pytest.mark.parametrize("late", [True, False])
def test_a_term_knows_no_verifications_of_the_last_one(late: bool) -> None:
    """A request of the last term may start one after its end."""
    replica = replicated(1)
    if late:
        replica.end_term()
    guard = replica.log.start_verification(7, 0, 0, transaction_version=2, now_ms=NOW)
    replica.end_term()
    replica.lead(1, [1, 2, 3], PartitionState(1, 1, (1,), 5))
    records = build_batch(
        [Record(0, NOW, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    with pytest.raises(ProtocolError) as caught:
        replica.append(memoryview(bytearray(records)), now_ms=NOW, guard=guard)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE


def append_all(replica: Replica) -> None:
    replica.append(batch(), now_ms=NOW, all_replicas=True)


def append_coordinators(replica: Replica) -> None:
    replica.append(batch(), now_ms=NOW, origin=Origin.COORDINATOR)


def append_marker(replica: Replica) -> None:
    replica.append_control(
        commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, transaction_version=2, now_ms=NOW
    )


@pytest.mark.parametrize("append", [append_all, append_coordinators, append_marker])
def test_too_few_replicas_in_sync_reject_appends(append: Callable[[Replica], None]) -> None:
    replica = replicated(1, least=2)
    replica.append(batch(), now_ms=NOW)  # acks=1
    assert replica.log.high_watermark == 0
    with pytest.raises(ProtocolError, match="in sync; min") as caught:
        append(replica)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert replica.log.log_end_offset == 1


def test_a_truncation_takes_back_what_was_synced() -> None:
    _, log = new_log(LogConfig())
    replica = Replica("t", 0, UUID(int=1), log)
    for _ in range(3):
        log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)
    replica.synced(3)
    replica.synced_names = 0
    assert (replica.synced_offset, replica.stored_end) == (3, 3)
    log.truncate_to(1, NOW)
    replica.log_was_truncated()
    assert (replica.synced_offset, replica.stored_end, replica.synced_names) == (1, 1, -1)
    restart_at(log, 7, NOW)
    replica.log_was_truncated()
    assert (replica.synced_offset, replica.stored_end, replica.synced_names) == (7, 7, -1)


@pytest.mark.parametrize("wait", [Replica.when_committed, Replica.when_stored])
def test_a_wait_that_begins_after_the_end_of_its_term_fails(wait: Callable[..., None]) -> None:
    """The record may be truncated, and another one may have its offset."""
    replica = replicated(1)
    term = replica.term
    replica.append(batch(), now_ms=NOW)
    outcomes: list[ErrorCode] = []
    wait(replica, 0, outcomes.append, term)
    replica.follow(2, PartitionState(2, 1, (1, 2), 5))
    wait(replica, 0, outcomes.append, term)
    replica.lead(1, [1, 2, 3], PartitionState(1, 2, (1,), 6))
    wait(replica, 0, outcomes.append, term)
    assert outcomes == [ErrorCode.NONE, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2]


def test_the_end_of_a_term_keeps_the_version_that_the_term_has_learned() -> None:
    """Otherwise, an older image would begin the term again."""
    replica = replicated(1, 2)
    assert replica.term is not None
    replica.term.state_written(PartitionState(1, 0, (1, 2, 3), 9))
    replica.end_term()
    assert replica.state_version == 9


def test_bytes_of_markers_count_as_appended() -> None:
    """A Fetch waits until enough bytes are appended."""
    replica = replicated(1)
    replica.append(batch(), now_ms=NOW)
    append_marker(replica)
    log = replica.log
    assert replica.bytes_appended == len(log.read(0, 1 << 20, upto=log.log_end_offset, at_least_one=True))
