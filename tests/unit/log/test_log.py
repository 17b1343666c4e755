"""One partition's log: appending, reading, rolling, transactions."""

from __future__ import annotations

import struct
import tracemalloc
import uuid
from collections.abc import Callable

import pytest
from crc32c import crc32c

from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import (
    LOG_APPEND_TIME,
    Record,
    build_batch,
    build_control_batch,
    decode_records,
    iter_batches,
    parse_header,
)
from support.crashdisk import CrashFile
from support.logs import (
    FOLDER,
    NOW,
    append,
    batch,
    delete_old_segments,
    follow,
    max_timestamp,
    new_log,
    of_producer,
    offset_for_timestamp,
    open_log,
    values,
)

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        call()
    return caught.value.code


# --- appending and reading ---


def test_append_assigns_offsets_and_epoch_in_place() -> None:
    _, log = new_log()
    records = batch(3)
    assert append(log, batch(2), leader_epoch=4).first_offset == 0
    result = append(log, records, leader_epoch=4)
    assert (result.first_offset, result.last_offset, result.duplicate, result.append_time_ms) == (2, 4, False, -1)
    header = parse_header(records)
    assert (header.base_offset, header.partition_leader_epoch) == (2, 4)
    assert bytes(log.read(2, 1000, upto=5, at_least_one=False)) == bytes(records)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset) == (0, 5, 5, 5)
    assert log.size_bytes == 2 * len(batch(1)) + (len(batch(2)) - len(batch(1))) + len(batch(3)) - len(batch(1))


def test_read_only_memory_is_copied() -> None:
    _, log = new_log()
    records = bytes(batch())
    append(log, batch())
    assert log.append_as_leader(records, leader_epoch=0, now_ms=NOW).first_offset == 1
    assert parse_header(records).base_offset == 0


def test_log_has_no_files_before_its_first_batch() -> None:
    disk, log = new_log()
    log.close()
    assert disk.files == {}
    assert log.read(0, 100, upto=0, at_least_one=True) == b""
    log = open_log(disk, topic_id=uuid.UUID(int=5))
    append(log, batch())
    assert sorted(disk.files) == [f"{FOLDER}/00000000000000000000.log", f"{FOLDER}/partition.metadata"]


def test_first_epoch_is_stored_when_the_log_rolls_or_closes() -> None:
    for finish in (lambda log: log.roll(NOW), Log.close, Log.flush):
        disk, log = new_log()
        append(log, batch())
        assert not disk.exists(f"{FOLDER}/leader-epoch-checkpoint")
        finish(log)
        assert disk.read_file(f"{FOLDER}/leader-epoch-checkpoint") == b"0\n1\n0 0\n"


def test_retention_without_old_segments_writes_no_file() -> None:
    disk, log = new_log()
    append(log, batch())
    files = sorted(disk.files)
    assert delete_old_segments(log) == 0
    assert sorted(disk.files) == files


def test_first_epoch_survives_a_kill_before_it_is_stored() -> None:
    disk, log = new_log()
    append(log, batch(3))
    disk.kill()
    log = open_log(disk)
    assert (log.leader_epoch, log.end_offset_for_epoch(0), log.epoch_at(1)) == (0, (0, 3), 0)


def test_second_epoch_is_stored_before_its_first_batch() -> None:
    disk, log = new_log()
    append(log, batch())
    append(log, batch(), leader_epoch=1)
    assert disk.read_file(f"{FOLDER}/leader-epoch-checkpoint") == b"0\n2\n0 0\n1 1\n"


def test_read_whole_batches_within_the_limit() -> None:
    _, log = new_log(LogConfig(index_interval_bytes=100))
    size = len(batch())
    for _ in range(50):
        append(log, batch())
    for offset in (0, 1, 7, 31, 49):
        for limit in (size, 2 * size - 1, 5 * size, 10_000):
            data = log.read(offset, limit, upto=50, at_least_one=True)
            offsets = [header.base_offset for header, _ in iter_batches(data)]
            assert offsets == list(range(offset, min(50, offset + limit // size)))
    assert log.read(3, size - 1, upto=50, at_least_one=False) == b""
    assert len(log.read(3, 0, upto=50, at_least_one=True)) == size
    assert len(log.read(0, 10_000, upto=3, at_least_one=True)) == 3 * size
    assert log.read(3, 10_000, upto=3, at_least_one=True) == b""
    assert log.read(50, 10_000, upto=50, at_least_one=True) == b""


def test_reading_from_inside_a_batch_returns_the_batch() -> None:
    _, log = new_log()
    append(log, batch(10))
    append(log, batch(10))
    data = log.read(13, 10_000, upto=20, at_least_one=True)
    assert [header.base_offset for header, _ in iter_batches(data)] == [10]


@pytest.mark.parametrize("offset", [-1, 2, 99])
def test_offset_out_of_range(offset: int) -> None:
    _, log = new_log()
    append(log, batch())
    assert code_of(lambda: log.read(offset, 100, upto=1, at_least_one=True)) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_reading_continues_in_the_next_segment() -> None:
    _, log = new_log(SMALL)
    for number in range(60):
        append(log, batch(value=b"%d" % number))
    assert len(log.segments) > 4
    assert values(log) == [b"%d" % number for number in range(60)]
    assert values(log, start=33, max_bytes=1) == [b"%d" % number for number in range(33, 60)]


# --- validation ---


def patched(records: bytearray, fmt: str, offset: int, value: int) -> bytearray:
    struct.pack_into(fmt, records, offset, value)
    struct.pack_into(">I", records, 17, crc32c(bytes(records[21:])))
    return records


def flipped(records: bytearray) -> bytearray:
    records[-1] ^= 1
    return records


MARKER = build_control_batch(True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (bytearray(), ErrorCode.INVALID_RECORD),
        (batch() + batch(), ErrorCode.INVALID_RECORD),
        (batch() + flipped(batch()), ErrorCode.INVALID_RECORD),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (flipped(batch()), ErrorCode.CORRUPT_MESSAGE),
        (MARKER, ErrorCode.INVALID_RECORD),
        (batch(base_offset=1), ErrorCode.INVALID_RECORD),
        (batch(value=bytes(2000)), ErrorCode.MESSAGE_TOO_LARGE),
        (patched(batch(), ">i", 57, 2), ErrorCode.INVALID_RECORD),
        (patched(batch(), ">h", 21, 0x10), ErrorCode.INVALID_RECORD),
        (patched(batch(), ">h", 21, 6), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(timestamp=NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
    ],
    ids=[
        "nothing", "two batches", "second batch unchecked", "cut", "crc", "control", "base offset", "size", "count",
        "txn without pid", "codec", "future",
    ],
)  # fmt: skip
def test_invalid_records_of_a_client_are_rejected(records: bytearray, code: ErrorCode) -> None:
    disk, log = new_log(LogConfig(max_message_bytes=1000))
    assert code_of(lambda: append(log, records)) == code
    assert log.log_end_offset == 0
    assert disk.files == {}


def test_client_that_claims_log_append_time() -> None:
    """Kafka replaces it by the producer's type. If the broker sets timestamps, the claim is rejected."""
    _, log = new_log()
    append(log, batch(timestamp_type=LOG_APPEND_TIME))
    header = parse_header(log.read(0, 1000, upto=1, at_least_one=True))
    assert (header.timestamp_type, header.max_timestamp) == (0, NOW)
    _, log = new_log(LogConfig(timestamp_type=LOG_APPEND_TIME))
    assert code_of(lambda: append(log, batch(timestamp_type=LOG_APPEND_TIME))) == ErrorCode.INVALID_TIMESTAMP


def test_batch_larger_than_a_segment() -> None:
    _, log = new_log(LogConfig(segment_bytes=500))
    assert code_of(lambda: append(log, batch(value=bytes(600)))) == ErrorCode.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_batches_are_stored_unchanged(codec: Codec) -> None:
    _, log = new_log()
    records = batch(5, codec=codec)
    append(log, records)
    assert bytes(log.read(0, 10_000, upto=5, at_least_one=True)) == bytes(records)


def test_topic_with_another_codec_recompresses() -> None:
    _, log = new_log(LogConfig(compression=Codec.ZSTD))
    append(log, of_producer(3, 0, 5, codec=Codec.GZIP))
    assert append(log, of_producer(3, 0, 5, codec=Codec.GZIP)).duplicate
    data = log.read(0, 10_000, upto=5, at_least_one=True)
    header = parse_header(data)
    assert (header.codec, header.producer_id, header.base_sequence) == (Codec.ZSTD, 3, 0)
    assert values(log) == [b"v"] * 5


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_batch_that_exceeds_the_limit_when_recompressed_is_rejected(codec: Codec) -> None:
    config = LogConfig(compression=codec, max_message_bytes=10_000)
    _, log = new_log(config)
    records = batch(value=bytes(1_000_000), codec=Codec.ZSTD)
    assert len(records) < 1000
    assert code_of(lambda: append(log, records)) == ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0
    append(log, batch(value=bytes(9_000), codec=Codec.ZSTD))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_batch_that_is_certainly_too_large_is_not_decompressed(codec: Codec) -> None:
    records = batch(value=bytes(100_000_000), codec=codec)
    _, log = new_log(LogConfig(compression=Codec.NONE, max_message_bytes=max(10_000, len(records))))
    tracemalloc.start()
    try:
        assert code_of(lambda: append(log, records)) == ErrorCode.MESSAGE_TOO_LARGE
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30_000_000


def test_log_append_time() -> None:
    _, log = new_log(LogConfig(timestamp_type=LOG_APPEND_TIME))
    assert append(log, of_producer(1, 0, timestamp=5), now_ms=NOW + 7).append_time_ms == NOW + 7
    again = append(log, of_producer(1, 0, timestamp=5), now_ms=NOW + 9)
    assert (again.duplicate, again.append_time_ms) == (True, NOW + 7)
    (record,) = decode_records(log.read(0, 1000, upto=1, at_least_one=True))
    assert record.timestamp == NOW + 7


def test_compacted_topic_needs_keys() -> None:
    _, log = new_log(LogConfig(compact=True))
    append(log, batch())
    records = build_batch([Record(0, NOW, b"k", b""), Record(0, NOW, None, b"")])
    assert code_of(lambda: append(log, records)) == ErrorCode.INVALID_RECORD


def test_records_are_validated_on_request() -> None:
    records = build_batch([Record(0, NOW, b"k", b""), Record(5, NOW, b"k", b"")], keep_offsets=True)
    hidden = patched(records, ">i", 23, 1)
    append(new_log()[1], bytearray(hidden))
    log = new_log(LogConfig(full_record_validation=True))[1]
    assert code_of(lambda: append(log, hidden)) == ErrorCode.INVALID_RECORD


# --- segments ---


def test_segments_roll_by_size_and_write_a_snapshot_each() -> None:
    disk, log = new_log(SMALL)
    for sequence in range(40):
        append(log, of_producer(1, sequence))
    bases = [segment.base_offset for segment in log.segments]
    assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
    for base in bases[1:]:
        assert disk.exists(f"{FOLDER}/{base:020d}.snapshot")
        assert disk.exists(f"{FOLDER}/{base:020d}.log")
    for base in bases[:-1]:
        assert disk.size(f"{FOLDER}/{base:020d}.index")
        assert disk.size(f"{FOLDER}/{base:020d}.timeindex")


def test_segments_roll_by_the_timestamps_of_their_batches() -> None:
    _, log = new_log(LogConfig(segment_ms=100))
    append(log, batch(timestamp=NOW))
    append(log, batch(timestamp=NOW + 100))
    assert len(log.segments) == 1
    append(log, batch(timestamp=NOW + 101))
    assert len(log.segments) == 2


def test_segments_roll_by_the_clock_if_batches_have_no_timestamp() -> None:
    _, log = new_log(LogConfig(segment_ms=100))
    append(log, batch(timestamp=-1))
    append(log, batch(timestamp=-1), now_ms=NOW + 100)
    assert len(log.segments) == 1
    append(log, batch(timestamp=-1), now_ms=NOW + 101)
    assert len(log.segments) == 2


def test_segments_roll_when_an_index_is_full() -> None:
    _, log = new_log(LogConfig(index_interval_bytes=0, segment_index_bytes=36))
    for _ in range(20):
        append(log, batch())
    assert len(log.segments) > 3
    assert values(log) == [b"v"] * 20


def test_segments_roll_before_offsets_outgrow_32_bits() -> None:
    _, log = new_log()
    for base in (0, 2**31 - 1, 2**31):
        follow(log, batch(base_offset=base, leader_epoch=0))
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]
    assert values(log) == [b"v"] * 3


def test_new_file_is_not_truncated_but_an_old_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[str] = []
    really_cut = CrashFile.truncate

    def truncate(file: CrashFile, size: int) -> None:
        cut.append(file._path)
        really_cut(file, size)

    monkeypatch.setattr(CrashFile, "truncate", truncate)
    disk, log = new_log(SMALL)
    old = f"{FOLDER}/{10:020d}.log"
    disk.mkdir(FOLDER)
    disk.open(old, create=True).pwrite(b"left by a roll that failed", 0)
    for number in range(20):
        append(log, batch(value=b"%d" % number))
        if log.log_end_offset in (5, 10):
            log.roll(NOW)
    assert cut == [old]
    assert values(log) == [b"%d" % number for number in range(20)]


def test_empty_segment_is_not_rolled() -> None:
    _, log = new_log()
    append(log, batch())
    log.roll(NOW)
    log.roll(NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_replicated_batches_keep_their_offsets_and_may_leave_gaps() -> None:
    _, log = new_log()
    follow(log, batch(base_offset=5, leader_epoch=2) + batch(base_offset=9, leader_epoch=3))
    assert log.log_end_offset == 10
    assert [log.epoch_at(offset) for offset in (4, 5, 8, 9)] == [-1, 2, 2, 3]
    assert log.end_offset_for_epoch(2) == (2, 9)
    again = batch(base_offset=9, leader_epoch=3)
    assert code_of(lambda: follow(log, again)) == ErrorCode.CORRUPT_MESSAGE
    assert code_of(lambda: follow(log, flipped(batch(base_offset=20))))


def test_offset_for_timestamp() -> None:
    _, log = new_log(SMALL)
    for number in range(40):
        rows = [Record(0, NOW + 10 * number, None, b"x" * 20), Record(0, NOW + 10 * number + 5, None, b"y")]
        append(log, build_batch(rows), leader_epoch=3)
    assert len(log.segments) > 3
    assert offset_for_timestamp(log, 0) == (NOW, 0, 3)
    assert offset_for_timestamp(log, NOW + 125) == (NOW + 125, 25, 3)
    assert offset_for_timestamp(log, NOW + 126) == (NOW + 130, 26, 3)
    assert offset_for_timestamp(log, NOW + 396) is None
    log.advance_log_start(31)
    assert offset_for_timestamp(log, 0) == (NOW + 155, 31, 3)


def test_max_timestamp_returns_the_first_record_that_has_it() -> None:
    _, log = new_log(SMALL)
    assert max_timestamp(log) is None
    for number in [*range(30), *range(30)]:
        append(log, batch(2, timestamp=NOW + number))
    assert max_timestamp(log) == (NOW + 29, 58, 0)


def test_old_segments_are_deleted_and_producers_kept() -> None:
    disk, log = new_log(SMALL)
    for sequence in range(40):
        append(log, of_producer(1, sequence))
    bases = [segment.base_offset for segment in log.segments]
    log.advance_log_start(bases[2] + 1)
    assert delete_old_segments(log) == 2
    assert [segment.base_offset for segment in log.segments] == bases[2:]
    assert not any(disk.exists(f"{FOLDER}/{bases[0]:020d}{suffix}") for suffix in (".log", ".index", ".timeindex"))
    assert code_of(lambda: log.read(0, 10, upto=40, at_least_one=True)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(values(log)) == 40 - bases[2] - 1
    assert code_of(lambda: append(log, of_producer(1, 50))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(lambda: log.advance_log_start(41)) == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("offset", [0, 1, 7, 13, 39])
def test_truncation_reverts_producer_state(offset: int) -> None:
    _, log = new_log(SMALL)
    for sequence in range(40):
        append(log, of_producer(1, sequence, timestamp=NOW + sequence))
    assert log.truncate_to(offset, NOW)
    assert (log.log_end_offset, log.high_watermark) == (offset, offset)
    assert values(log) == [b"v"] * offset
    append(log, of_producer(1, offset))
    assert not log.truncate_to(offset + 1, NOW)
    assert len(values(log)) == offset + 1


# --- positions of reads ---


def test_truncation_drops_cached_read_positions() -> None:
    _, log = new_log()
    for _ in range(4):
        append(log, batch(value=b"x" * 50))
    assert len(values(log, max_bytes=1)) == 4
    log.truncate_to(1, NOW)
    for number in range(20):
        append(log, batch(value=b"%d" % number))
    assert values(log, start=3) == [b"%d" % number for number in range(2, 20)]


def test_reading_from_a_gap_between_segments() -> None:
    _, log = new_log(LogConfig(segment_bytes=150))
    for base in (0, 9, 20, 2**32):
        follow(log, batch(base_offset=base, value=b"%d" % base, leader_epoch=0))
    assert [segment.base_offset for segment in log.segments] == [0, 10, 2**31 + 1]
    assert values(log, start=5) == [b"9", b"20", b"%d" % 2**32]
    assert values(log, start=10) == [b"20", b"%d" % 2**32]
    assert values(log, start=21) == [b"%d" % 2**32]
