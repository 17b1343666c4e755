"""KIP-467: if some records of a batch are invalid, the answer names them, each with its reason."""

from __future__ import annotations

import time
from typing import Any

import pytest

from oncelog.protocol.compression import Codec
from oncelog.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import LOG_APPEND_TIME, Record, build_batch
from support.wire import Session, Wire, code

INVALID_RECORD, INVALID_TIMESTAMP = code("INVALID_RECORD"), code("INVALID_TIMESTAMP")
HOUR = 3_600_000


def records(
    *keys: bytes | None, ages: list[int] | None = None, who: Session | None = None, sequence: int = 0, **options: Any
) -> bytes:
    """Return a batch of one record for each key, `ages` ms old."""
    now = int(time.time() * 1000)
    if who is not None:
        options |= {"producer_id": who.producer_id, "producer_epoch": who.epoch, "base_sequence": sequence}
    ages = ages or [0] * len(keys)
    rows = [Record(index, now - age, key, b"v") for index, (key, age) in enumerate(zip(keys, ages, strict=True))]
    return bytes(build_batch(rows, **options))


def refused(answer: Any) -> list[int]:
    """Return the records that the broker names. Each must have a reason."""
    assert answer.base_offset == -1
    assert answer.error_message
    assert all(error.batch_index_error_message for error in answer.record_errors)
    return [error.batch_index for error in answer.record_errors]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_each_record_without_a_key_is_named_in_a_compacted_topic(wire: Wire, name: str, codec: Codec) -> None:
    wire.create_topic(name, cleanup_policy="compact")
    answer = wire.produce(name, records(b"a", None, b"", None, None, codec=codec))
    assert answer.error_code == INVALID_RECORD
    assert refused(answer) == [1, 3, 4], "an empty key is one"
    for error in answer.record_errors:
        assert "key" in error.batch_index_error_message
    assert "3" in answer.error_message
    assert wire.offset(name) == 0, "nothing of the batch is in the log"


def test_each_record_too_far_in_the_future_is_named(wire: Wire, name: str) -> None:
    wire.create_topic(name, message_timestamp_after_max_ms="1000")
    answer = wire.produce(name, records(None, None, None, ages=[0, -HOUR, -2 * HOUR]))
    assert (answer.error_code, refused(answer)) == (INVALID_TIMESTAMP, [1, 2])
    assert all("is out of range" in error.batch_index_error_message for error in answer.record_errors)
    assert wire.offset(name) == 0


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_each_record_too_old_is_named_and_valid_ones_are_not(wire: Wire, name: str, codec: Codec) -> None:
    """The batch's header has only the largest timestamp."""
    wire.create_topic(name, message_timestamp_before_max_ms=str(HOUR))
    answer = wire.produce(name, records(None, None, None, ages=[0, 2 * HOUR, 0], codec=codec))
    assert (answer.error_code, refused(answer)) == (INVALID_TIMESTAMP, [1])
    assert wire.produce(name, records(None, None, ages=[HOUR // 2, 0], codec=codec)).error_code == 0


def test_invalid_timestamp_precedes_a_missing_key_and_a_record_is_named_once(wire: Wire, name: str) -> None:
    wire.create_topic(name, cleanup_policy="compact", message_timestamp_before_max_ms=str(HOUR))
    answer = wire.produce(name, records(None, b"k", None, b"k", ages=[0, 2 * HOUR, 2 * HOUR, 0]))
    assert (answer.error_code, refused(answer)) == (INVALID_TIMESTAMP, [0, 1, 2])
    reasons = [error.batch_index_error_message for error in answer.record_errors]
    assert ["key" in reason for reason in reasons] == [True, False, True]


def test_each_record_with_a_log_append_time_is_named(wire: Wire, name: str) -> None:
    wire.create_topic(name, message_timestamp_type="LogAppendTime")
    answer = wire.produce(name, records(None, None, timestamp_type=LOG_APPEND_TIME))
    assert (answer.error_code, refused(answer)) == (INVALID_TIMESTAMP, [0, 1])
    assert all("LogAppendTime" in error.batch_index_error_message for error in answer.record_errors)


def test_versions_before_8_have_only_the_error_code(wire: Wire, name: str) -> None:
    wire.create_topic(name, cleanup_policy="compact")
    answer = wire.produce(name, records(None), version=7)
    assert (answer.error_code, answer.record_errors, answer.error_message) == (INVALID_RECORD, [], None)


def test_other_partitions_are_written_and_other_errors_name_no_record(wire: Wire, name: str) -> None:
    wire.create_topic(name, 3, cleanup_policy="compact")
    damaged = bytearray(records(b"k"))
    damaged[-1] ^= 1
    data = [
        PartitionProduceData(index=index, records=each)
        for index, each in enumerate([records(b"k"), records(b"k", None), bytes(damaged)])
    ]
    topics = [TopicProduceData(name=name, partition_data=data)]
    answer = wire.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics), 11)
    good, bad, corrupt = sorted(answer.responses[0].partition_responses, key=lambda partition: partition.index)
    assert (good.error_code, good.record_errors, good.base_offset) == (0, [], 0)
    assert (bad.error_code, refused(bad)) == (INVALID_RECORD, [1])
    assert (corrupt.error_code, corrupt.record_errors) == (code("CORRUPT_MESSAGE"), [])
    assert [wire.offset(name, partition=index) for index in range(3)] == [1, 0, 0]


def test_rejected_batch_uses_no_sequence(wire: Wire, name: str) -> None:
    wire.create_topic(name, cleanup_policy="compact")
    who = wire.session()
    for _ in range(2):
        assert refused(wire.produce(name, records(b"a", None, who=who))) == [1]
    good = wire.produce(name, records(b"a", b"b", who=who))
    assert (good.error_code, good.base_offset) == (0, 0)
    # The same sequences again: invalid records are reported before duplicates.
    assert refused(wire.produce(name, records(b"a", None, who=who))) == [1]
    assert wire.offset(name) == 2


def test_rejection_by_the_log_returns_the_log_start_offset(wire: Wire, name: str) -> None:
    """The answer has it for invalid records and for sequences, and -1 if the batch did not reach the log."""
    wire.create_topic(name, 1, cleanup_policy="compact,delete")
    who = wire.session()
    assert wire.produce(name, records(b"a", b"b", who=who)).error_code == 0
    where = [DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])]
    wire.call(DeleteRecordsRequest(topics=where, timeout_ms=10_000))
    assert wire.produce(name, records(None)).log_start_offset == 1
    gap = wire.produce(name, records(b"a", who=who, sequence=77))
    assert (gap.error_code, gap.log_start_offset) == (code("OUT_OF_ORDER_SEQUENCE_NUMBER"), 1)
    damaged = bytearray(records(b"k"))
    damaged[-1] ^= 1
    for other in (wire.produce(name, damaged), wire.produce(name, records(b"k"), partition=9)):
        assert (other.error_code != 0, other.log_start_offset) == (True, -1)
