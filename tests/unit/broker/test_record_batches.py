"""Records of coordinators as batches: many are split, unless they belong together."""

from __future__ import annotations

import pytest

from oncelog.broker.coordinators.record_batches import encode
from oncelog.coordinator.groups.consumer.records import group_record
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import iter_batches

RECORDS = [group_record(f"group-{number}", number, 0) for number in range(100)]


def counts(batches: bytearray) -> list[int]:
    return [header.count for header, _ in iter_batches(memoryview(batches))]


def test_many_records_are_split_into_batches() -> None:
    found = counts(encode(RECORDS, None, 1_000, 0))
    assert len(found) > 1
    assert sum(found) == len(RECORDS)


def test_records_that_belong_together_are_one_batch_or_refused() -> None:
    assert counts(encode(RECORDS, None, 100_000, 0, whole=True)) == [len(RECORDS)]
    with pytest.raises(ProtocolError, match="100 records that belong together exceed a batch of 1000 bytes") as raised:
        encode(RECORDS, None, 1_000, 0, whole=True)
    assert raised.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
