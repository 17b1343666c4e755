"""The batches that a read_committed reader must not see: one rule for all readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncelog.cli.partition_tailer import READ_COMMITTED, PartitionTailer
from oncelog.client.consumer.completed_fetch import CompletedFetch
from oncelog.columns.decode import decode_batches
from oncelog.protocol.aborted import AbortedTransactions
from oncelog.protocol.messages.fetch import AbortedTransaction, PartitionData
from oncelog.protocol.records import Record, build_batch, build_control_batch, iter_batches


def batch(offset: int, *values: str, producer: int = -1, transactional: bool = True) -> bytes:
    idempotent = producer >= 0
    return bytes(
        build_batch(
            [Record(0, 0, None, value.encode()) for value in values],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0 if idempotent else -1,
            base_sequence=0 if idempotent else -1,
            transactional=idempotent and transactional,
        )
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    return bytes(
        build_control_batch(
            commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=offset
        )
    )


def emptied(control: bytes) -> bytes:
    """Return what compaction leaves of a marker's batch."""
    return control[:8] + (61 - 12).to_bytes(4, "big") + control[12:57] + bytes(4)


Log = tuple[list[bytes], list[tuple[int, int]], list[str]]
"""Batches; (first offset, producer id) of the aborted transactions; expected values."""
LOGS: dict[str, Log] = {
    "across each other": (
        [
            batch(0, "1 aborts", producer=1),
            batch(1, "2 aborts", producer=2),
            batch(2, "no transaction", producer=2, transactional=False),
            batch(3, "3 commits", producer=3),
            marker(4, 1, commit=False),
            batch(5, "1 commits", producer=1),
            batch(6, "2 aborts", producer=2),
            marker(7, 2, commit=False),
            batch(8, "2 commits", "2 commits", producer=2),
            marker(10, 1, commit=True),
            batch(11, "plain"),
        ],
        [(1, 2), (0, 1)],
        ["no transaction", "3 commits", "1 commits", "2 commits", "2 commits", "plain"],
    ),
    "two aborts of one producer": (
        [
            batch(0, "aborted", producer=1),
            marker(1, 1, commit=False),
            batch(2, "committed", producer=1),
            marker(3, 1, commit=True),
            batch(4, "aborted", producer=1),
            marker(5, 1, commit=False),
            batch(6, "open", producer=1),
        ],
        [(0, 1), (4, 1)],
        ["committed", "open"],
    ),
    "begun inside a batch": ([batch(0, "aborted", "aborted", producer=1), batch(2, "plain")], [(1, 1)], ["plain"]),
    "a marker that compaction has emptied": (
        [
            batch(0, "aborted", producer=1),
            emptied(marker(1, 1, commit=False)),
            batch(2, "aborted", producer=1),
        ],
        [(0, 1)],
        [],
    ),
}


def rule(records: bytes, aborted: list[tuple[int, int]]) -> list[bytes]:
    hidden = AbortedTransactions(aborted)
    shown = []
    for header, view in iter_batches(records):
        if not hidden.hides(header, view) and not header.is_control:
            table, _ = decode_batches([bytes(view)], topic="t", partition=0, start_offset=0)
            shown += table["value"].to_pylist()
    return shown


def answer(records: bytes, aborted: list[tuple[int, int]]) -> PartitionData:
    transactions = [AbortedTransaction(producer_id=producer, first_offset=first) for first, producer in aborted]
    return PartitionData(partition_index=0, aborted_transactions=transactions, records=records)


def consumer(records: bytes, aborted: list[tuple[int, int]]) -> list[bytes | None]:
    found = CompletedFetch(("t", 0), answer(records, aborted), 0, committed_only=True, check_crcs=False)
    return [record.value for record in found.take(100)]


def table(records: bytes, aborted: list[tuple[int, int]]) -> list[bytes]:
    pairs = [(producer, first) for first, producer in aborted]
    found, _ = decode_batches([records], topic="t", partition=0, start_offset=0, aborted=pairs, check_crcs=False)
    values: list[bytes] = found["value"].to_pylist()
    return values


def command_line(records: bytes, aborted: list[tuple[int, int]]) -> list[Any]:
    tailer = PartitionTailer(None, "t", [0], isolation=READ_COMMITTED, markers=False)  # type: ignore[arg-type]
    return [item.value for item in tailer._items(answer(records, aborted)) if hasattr(item, "value")]


@pytest.mark.parametrize("reader", [rule, consumer, table, command_line])
@pytest.mark.parametrize("name", LOGS)
def test_only_aborted_batches_are_hidden(reader: Callable[..., list[Any]], name: str) -> None:
    batches, aborted, visible = LOGS[name]
    assert reader(b"".join(batches), aborted) == [value.encode() for value in visible]


@pytest.mark.parametrize("reader", [rule, consumer, table, command_line])
def test_without_aborted_transactions_all_batches_are_visible(reader: Callable[..., list[Any]]) -> None:
    batches, _, _ = LOGS["across each other"]
    assert len(reader(b"".join(batches), [])) == 9
