"""What a reader sees of fetched batches, and the encoding of fetch sessions."""

from __future__ import annotations

from uuid import UUID

import pytest

from oncelog.client.consumer.completed_fetch import CompletedFetch
from oncelog.client.consumer.fetch_session import FetchSession, FetchTarget
from oncelog.client.consumer.subscription_state import PartitionState
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.messages.fetch import AbortedTransaction, PartitionData
from oncelog.protocol.records import Record, build_batch, build_control_batch
from support.tracebacks import depth

TP = ("t", 0)


def batch(offset: int, values: list[bytes], producer_id: int = -1) -> bytes:
    return bytes(
        build_batch(
            [Record(0, 1_000, None, value) for value in values],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            transactional=producer_id >= 0,
        )
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return bytes(
        build_control_batch(
            commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1_000, base_offset=offset
        )
    )


LOG = b"".join(
    (
        batch(0, [b"plain"]),
        batch(1, [b"aborted"], 7),
        batch(2, [b"committed"], 8),
        marker(3, 7, commit=False),
        batch(4, [b"committed too"], 7),
        marker(5, 8, commit=True),
        marker(6, 7, commit=True),
    )
)


def fetched(*, committed_only: bool, position: int = 0, records: bytes = LOG) -> CompletedFetch:
    data = PartitionData(
        partition_index=0,
        aborted_transactions=[AbortedTransaction(producer_id=7, first_offset=1)],
        records=records,
    )
    return CompletedFetch(TP, data, position, committed_only=committed_only, check_crcs=True)


def test_markers_before_the_start_position_count() -> None:
    """The producer's next transaction, after its aborted one, is committed."""
    found = fetched(committed_only=True)
    found.go_to(4)
    assert [record.value for record in found.take(10)] == [b"committed too"]


def test_aborted_records_and_markers_are_skipped() -> None:
    part = fetched(committed_only=True)
    assert part.end == 7
    assert [record.value for record in part.take(2)] == [b"plain", b"committed"]
    assert part.position == 3
    assert [record.value for record in part.take(9)] == [b"committed too"]
    assert part.position == 7, "after the final markers, too"


def test_read_uncommitted_returns_all_but_markers() -> None:
    values = [record.value for record in fetched(committed_only=False).take(9)]
    assert values == [b"plain", b"aborted", b"committed", b"committed too"]


def test_position_inside_a_batch_and_a_truncated_batch() -> None:
    log = batch(0, [b"0", b"1", b"2"]) + batch(3, [b"3"])[:-1]
    part = fetched(committed_only=True, position=1, records=log)
    assert part.end == 3
    assert [record.offset for record in part.take(1)] == [1]
    assert part.position == 2
    assert [record.offset for record in part.take(9)] == [2]
    assert part.position == 3


def test_damaged_batch_is_an_error() -> None:
    log = bytearray(batch(0, [b"value"]))
    log[-2] ^= 1
    with pytest.raises(ProtocolError):
        fetched(committed_only=True, records=bytes(log)).take(1)


def wanted(offset: int) -> FetchTarget:
    return FetchTarget(offset, 0, 1_000, UUID(int=1))


def test_session_requests_contain_only_changes() -> None:
    options = {"max_wait_ms": 1, "min_bytes": 1, "max_bytes": 1, "isolation_level": 0}
    session = FetchSession()

    def ask(partitions: dict[tuple[str, int], FetchTarget]) -> tuple[int, int, list[int], list[int]]:
        request = session.build(partitions, options, "")
        return (
            request.session_id,
            request.session_epoch,
            [item.partition for topic in request.topics for item in topic.partitions],
            [index for topic in request.forgotten_topics_data for index in topic.partitions],
        )

    both = {("t", 0): wanted(0), ("t", 1): wanted(0)}
    assert ask(both) == (0, 0, [0, 1], [])
    session.succeeded(99)
    assert ask(both) == (99, 1, [], [])
    session.succeeded(99)
    assert ask({("t", 1): wanted(5)}) == (99, 2, [1], [0])
    session.succeeded(99)
    session.reset()
    assert ask(both) == (0, 0, [0, 1], [])


def test_lag_counts_to_the_last_readable_offset() -> None:
    state = PartitionState()
    assert state.lag(committed_only=True) is None
    state.seek(3)
    state.high_watermark, state.last_stable_offset = 10, 5
    assert (state.lag(committed_only=True), state.lag(committed_only=False)) == (2, 7)


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_records_before_damage_are_returned_and_damage_is_not_skipped() -> None:
    records = batch(0, [b"a"]) + damaged(batch(1, [b"b"])) + batch(2, [b"c"])
    taking = fetched(committed_only=False, records=records)
    assert [record.value for record in taking.take(10)] == [b"a"]
    assert taking.damaged
    for _ in range(2):
        with pytest.raises(ProtocolError):
            taking.take(10)
        assert taking.position == 1


def test_repeated_errors_of_damage_keep_no_frames() -> None:
    taking = fetched(committed_only=False, records=batch(0, [b"a"]) + damaged(batch(1, [b"b"])))
    taking.take(10)
    assert len({depth(lambda: taking.take(10), ProtocolError) for _ in range(5)}) == 1


def test_malformed_batch_ends_the_fetched_records_unless_it_is_the_first() -> None:
    malformed = batch(1, [b"b"])[:16] + b"\x09" + batch(1, [b"b"])[17:]
    assert fetched(committed_only=False, records=batch(0, [b"a"]) + malformed).end == 1
    with pytest.raises(ProtocolError):
        fetched(committed_only=False, position=1, records=malformed)
