from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c

from oncelog.protocol import records as r
from oncelog.protocol.compression import Codec, compress, decompress
from oncelog.protocol.errors import ErrorCode, ProtocolError

ROWS = [
    r.Record(0, 1000, b"k", b"v"),
    r.Record(1, 990, None, b"x" * 300, (("h", b"1"), ("h", None), ("ä", b""))),
    r.Record(2, 1_000_000, b"", None),
]


def recrc(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def code_of(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        call()
    return caught.value.code


def check(batch: bytearray) -> None:
    r.check_batch(r.parse_header(batch), memoryview(batch))


@pytest.mark.parametrize("codec", list(Codec))
def test_batch_round_trip(codec: Codec) -> None:
    batch = r.build_batch(ROWS, codec=codec, producer_id=7, producer_epoch=3, base_sequence=11, transactional=True)
    header = r.parse_header(batch)
    r.check_batch(header, memoryview(batch))
    assert header.size == len(batch)
    assert (header.codec, header.count, header.last_offset_delta) == (codec, 3, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (
        7,
        3,
        11,
        13,
    )
    assert (header.base_timestamp, header.max_timestamp, header.timestamp_type) == (1000, 1_000_000, 0)
    assert header.is_transactional
    assert not header.is_control
    assert r.decode_records(batch) == ROWS


def test_layout_of_a_batch() -> None:
    """The layout of Kafka's DefaultRecordBatch, in full."""
    batch = r.build_batch([r.Record(0, 5, b"k", b"vv")], producer_id=1, producer_epoch=2, base_sequence=3)
    record = bytes.fromhex("12 00 00 00 02 6b 04 76 76 00".replace(" ", ""))
    body = struct.pack(">hiqqqhii", 0, 0, 5, 5, 1, 2, 3, 1) + record
    assert bytes(batch) == struct.pack(">qiibI", 0, 9 + len(body), -1, 2, crc32c(body)) + body


def test_offsets_are_assigned_outside_the_checksum() -> None:
    batch = r.build_batch(ROWS)
    r.assign_offsets(batch, 0, 500, 9)
    header = r.parse_header(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (500, 502, 503)
    assert header.partition_leader_epoch == 9
    check(batch)
    assert [row.offset for row in r.decode_records(batch)] == [500, 501, 502]


def test_log_append_time_applies_to_every_record() -> None:
    two = bytearray(r.build_batch(ROWS)) + r.build_batch(ROWS)
    pos = len(two) // 2
    r.set_max_timestamp(two, pos, 1, 77)
    second = two[pos:]
    check(second)
    assert r.parse_header(second).timestamp_type == 1
    assert {row.timestamp for row in r.decode_records(second)} == {77}
    r.set_max_timestamp(second, 0, 0, 1_000_000)
    assert second == two[:pos]


def test_kept_offsets_and_delete_horizon() -> None:
    rows = [r.Record(10, 5, b"a", None), r.Record(17, 6, b"b", b"1")]
    batch = r.build_batch(rows, base_offset=8, keep_offsets=True, delete_horizon_ms=99)
    header = r.parse_header(batch)
    assert header.delete_horizon_ms == 99
    assert header.last_offset == 17
    assert r.decode_records(batch) == rows


@pytest.mark.parametrize("commit", [True, False])
def test_control_batch(commit: bool) -> None:
    batch = r.build_control_batch(commit, producer_id=4, producer_epoch=1, coordinator_epoch=6, timestamp=123)
    header = r.parse_header(batch)
    r.check_batch(header, memoryview(batch))
    assert header.is_control
    assert header.is_transactional
    assert header.base_sequence == -1
    assert r.decode_control(batch) == (commit, 6)


def test_control_batch_of_another_type_is_not_a_marker() -> None:
    other = r.pack_batch(
        r.encode_record(0, 0, bytes.fromhex("00000002"), bytes(6)),
        1,
        base_timestamp=0,
        max_timestamp=0,
        attributes=0x30,
    )
    assert code_of(lambda: r.decode_control(other)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("sequence", "delta", "expected"),
    [(0, 1, 1), (2**31 - 1, 1, 0), (2**31 - 2, 3, 1), (5, -5, 0), (0, -1, 2**31 - 1)],
)
def test_sequences_wrap_to_zero(sequence: int, delta: int, expected: int) -> None:
    assert r.next_sequence(sequence, delta) == expected


def test_batch_may_contain_the_wrap() -> None:
    batch = r.build_batch(ROWS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert r.parse_header(batch).last_sequence == 0


def test_iter_batches() -> None:
    one, two = (
        r.build_batch(ROWS),
        r.build_control_batch(True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=0),
    )
    got = list(r.iter_batches(one + two))
    assert [bytes(view) for _, view in got] == [bytes(one), bytes(two)]
    assert list(r.iter_batches(b"")) == []


@pytest.mark.parametrize("cut", [1, 11, 12, 16, 17, 60, 61, 70])
def test_truncated_batch_is_corrupt_or_the_end(cut: int) -> None:
    batch = r.build_batch(ROWS)
    data = batch + batch[:cut]
    assert code_of(lambda: list(r.iter_batches(data))) == ErrorCode.CORRUPT_MESSAGE
    assert len(list(r.iter_batches(data, partial_ok=True))) == 1


def test_length_less_than_a_header_is_corrupt_even_if_partial_is_ok() -> None:
    batch = r.build_batch(ROWS)
    struct.pack_into(">i", batch, 8, 3)
    assert code_of(lambda: list(r.iter_batches(batch, partial_ok=True))) == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "code"),
    [
        (0, ErrorCode.INVALID_RECORD),
        (1, ErrorCode.INVALID_RECORD),
        (3, ErrorCode.CORRUPT_MESSAGE),
        (127, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_only_magic_2(magic: int, code: ErrorCode) -> None:
    batch = r.build_batch(ROWS)
    batch[16] = magic
    assert code_of(lambda: r.parse_header(batch)) == code


def test_one_flipped_bit_fails_the_crc() -> None:
    for pos in range(21, 61):
        batch = r.build_batch(ROWS)
        batch[pos] ^= 4
        assert code_of(lambda batch=batch: check(batch)) == ErrorCode.CORRUPT_MESSAGE  # type: ignore[misc]


def _patched(fmt: str, offset: int, value: int, **options: int) -> bytearray:
    batch = r.build_batch(ROWS, **options)  # type: ignore[arg-type]
    struct.pack_into(fmt, batch, offset, value)
    return recrc(batch)


PRODUCER = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (_patched(">i", 57, 0), ErrorCode.INVALID_RECORD),
        (_patched(">i", 57, -3), ErrorCode.INVALID_RECORD),
        (_patched(">i", 57, 2), ErrorCode.INVALID_RECORD),
        (_patched(">i", 23, -1), ErrorCode.INVALID_RECORD),
        (_patched(">h", 21, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (_patched(">h", 21, 0x10), ErrorCode.INVALID_RECORD),
        (_patched(">i", 53, -1, **PRODUCER), ErrorCode.INVALID_RECORD),
        (_patched(">h", 51, -1, **PRODUCER), ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "no records",
        "negative count",
        "wrong count",
        "negative delta",
        "codec",
        "txn without pid",
        "sequence",
        "epoch",
    ],
)
def test_header_rules(batch: bytearray, code: ErrorCode) -> None:
    assert code_of(lambda: check(batch)) == code


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x0e",
        bytes.fromhex("100000 00 026b 04 7676 00".replace(" ", "")),
        bytes.fromhex("120000 00 7e6b 04 7676 00".replace(" ", "")),
        bytes.fromhex("120000 00 026b 04 7676 40".replace(" ", "")),
        bytes.fromhex("120000 00 026b 04 7676 01".replace(" ", "")),
        bytes.fromhex("120000 00 026b 04 7676 00 00".replace(" ", "")),
        bytes.fromhex("ffffffffffff0000"),
        bytes.fromhex("160000 00 026b 04 7676 02 0200".replace(" ", "")),
        bytes.fromhex("0000"),
    ],
)
def test_malformed_records(record: bytes) -> None:
    batch = r.pack_batch(record, 1, base_timestamp=0, max_timestamp=0)
    assert code_of(lambda: r.decode_records(batch)) == ErrorCode.INVALID_RECORD


def test_impossible_count_allocates_no_memory() -> None:
    batch = r.build_batch(ROWS)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    assert code_of(lambda: r.decode_records(recrc(batch))) == ErrorCode.INVALID_RECORD


def test_decompression_is_bounded() -> None:
    batch = r.build_batch([r.Record(0, 0, None, bytes(1_000_000))], codec=Codec.ZSTD)
    assert code_of(lambda: r.decode_records(batch, limit=999_999)) == ErrorCode.CORRUPT_MESSAGE


def test_emptied_batch_has_no_records() -> None:
    batch = r.pack_batch(b"", 0, last_offset_delta=4, base_timestamp=-1, max_timestamp=-1, attributes=int(Codec.ZSTD))
    assert r.decode_records(batch) == []


def test_empty_list_is_not_a_batch() -> None:
    with pytest.raises(ValueError, match="at least one"):
        r.build_batch([])


def test_control_batch_emptied_by_compaction_is_not_a_marker() -> None:
    emptied = r.pack_batch(b"", 0, base_timestamp=0, max_timestamp=0, attributes=0x30)
    assert code_of(lambda: r.decode_control(emptied)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_content_of_any_compression_ratio_round_trips(codec: Codec) -> None:
    content = bytes(5_000_000)
    assert bytes(decompress(codec, compress(codec, content), 5_000_000)) == content


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_stamped_batch_equals_one_built_for_that_producer(codec: Codec) -> None:
    """Repeatedly: a batch may get other sequences, and be moved outside a transaction."""
    made = bytearray(r.HEADER_SIZE) + r.build_batch(ROWS, codec=codec)[r.HEADER_SIZE :]
    r.put_header(made, len(ROWS), codec, 1000, 1_000_000)
    for (producer_id, epoch, sequence), transactional in (
        ((7, 3, 2**31 - 1), True),
        ((8, 0, 0), False),
        ((-1, -1, -1), False),
    ):
        r.stamp(made, producer_id, epoch, sequence, transactional=transactional)
        assert made == r.build_batch(
            ROWS,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )


# --- heads ---


@pytest.mark.parametrize("codec", list(Codec))
def test_heads_equal_those_of_the_records(codec: Codec) -> None:
    batch = r.build_batch(ROWS, codec=codec, base_offset=40)
    expected = [(record.offset, record.timestamp, record.key is not None) for record in r.decode_records(batch)]
    assert list(r.iter_heads(batch)) == expected


def test_heads_are_decoded_lazily() -> None:
    batch = r.build_batch(ROWS)
    del batch[-1]  # the last record is truncated
    struct.pack_into(">i", batch, 8, len(batch) - r.LOG_OVERHEAD)
    heads = r.iter_heads(batch)
    assert next(heads) == (0, 1000, True)
    assert next(heads)[0] == 1
    assert code_of(lambda: list(heads)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("read", [lambda batch: list(r.iter_heads(batch)), r.decode_records])
def test_batch_that_claims_more_records_than_its_bytes_can_hold_is_rejected_first(
    read: Callable[[bytearray], object],
) -> None:
    batch = r.build_batch(ROWS, codec=Codec.ZSTD)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    with pytest.raises(ProtocolError, match="claims 2147483647 records") as caught:
        read(batch)
    assert caught.value.code == ErrorCode.INVALID_RECORD


# --- another codec ---


@pytest.mark.parametrize("codec", list(Codec))
def test_recompressed_batch_has_the_same_records(codec: Codec) -> None:
    batch = r.build_batch(ROWS, codec=Codec.GZIP, producer_id=7, producer_epoch=3, base_sequence=11, transactional=True)
    found = r.recompress(batch, codec, level=None, limit=10_000)
    header = r.parse_header(found)
    r.check_batch(header, memoryview(found))
    assert header._replace(crc=0, batch_length=0, attributes=0) == r.parse_header(batch)._replace(
        crc=0, batch_length=0, attributes=0
    )
    assert (header.codec, header.is_transactional) == (codec, True)
    assert r.decode_records(found) == ROWS


def test_header_name_that_is_not_utf8_survives_recompression() -> None:
    name = b"\xff\xfe".decode(errors=r.LOSSLESS)
    batch = r.build_batch([r.Record(0, 5, b"k", b"v", ((name, b"1"),))])
    found = r.recompress(batch, Codec.LZ4, level=None, limit=10_000)
    (record,) = r.decode_records(found, names=r.LOSSLESS)
    assert record.headers == ((name, b"1"),)


def test_batch_with_records_out_of_order_is_not_recompressed() -> None:
    batch = r.build_batch([ROWS[0], ROWS[2]], keep_offsets=True)
    assert code_of(lambda: r.recompress(batch, Codec.LZ4, level=None, limit=10_000)) == ErrorCode.INVALID_RECORD
