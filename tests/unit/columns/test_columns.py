import numpy as np
import pyarrow as pa
import pytest

from oncelog.columns import encode
from oncelog.columns.decode import SCHEMA, decode_batches
from oncelog.columns.encode import encode_partition, partition_of, stamp
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import (
    Record,
    assign_offsets,
    build_batch,
    build_control_batch,
    decode_records,
    parse_header,
)


def batch(offset: int, values: list[bytes], *, producer: int = -1) -> bytearray:
    records = [Record(offset + i, 1000 + i, None, value) for i, value in enumerate(values)]
    return build_batch(
        records,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        transactional=producer >= 0,
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytearray:
    return build_control_batch(
        commit, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=offset
    )


# one committed, one aborted, one that stands between
TRANSACTIONS = b"".join(
    [
        batch(0, [b"plain"]),
        batch(1, [b"aborted"], producer=7),
        batch(2, [b"committed"], producer=8),
        marker(3, 7, commit=False),
        marker(4, 8, commit=True),
        batch(5, [b"same producer, later"], producer=7),
        marker(6, 7, commit=True),
    ]
)


def values(aborted: list[tuple[int, int]] | None, start: int = 0) -> list[bytes]:
    table, next_offset = decode_batches(
        [TRANSACTIONS], topic="t", partition=0, start_offset=start, aborted=aborted
    )
    assert next_offset == 7
    return table.column("value").to_pylist()  # type: ignore[no-any-return]


def test_read_committed_hides_the_aborted_transaction_only() -> None:
    assert values([(7, 1)]) == [b"plain", b"committed", b"same producer, later"]


def test_read_uncommitted_shows_all_but_markers() -> None:
    assert values(None) == [b"plain", b"aborted", b"committed", b"same producer, later"]


def test_records_before_the_start_and_behind_the_end_are_left_out() -> None:
    data = batch(0, [b"a", b"b", b"c", b"d"])
    table, next_offset = decode_batches([data], topic="t", partition=0, start_offset=1, end_offset=3)
    assert table.column("value").to_pylist() == [b"b", b"c"]
    assert next_offset == 3


def test_nothing_gives_an_empty_table_of_the_same_columns() -> None:
    table, next_offset = decode_batches([], topic="t", partition=0, start_offset=9)
    assert (table.num_rows, table.schema, next_offset) == (0, SCHEMA, 9)


def test_a_batch_cut_off_at_the_end_waits_for_the_next_fetch() -> None:
    data = bytes(batch(0, [b"a"])) + bytes(batch(1, [b"b"]))[:-3]
    table, next_offset = decode_batches([data], topic="t", partition=0, start_offset=0)
    assert (table.column("value").to_pylist(), next_offset) == ([b"a"], 1)


def test_a_damaged_batch_is_an_error() -> None:
    data = batch(0, [b"payload"])
    data[-2] ^= 1
    with pytest.raises(ProtocolError) as refused:
        decode_batches([data], topic="t", partition=0, start_offset=0)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_record_count_that_lies_is_an_error() -> None:
    data = batch(0, [b"a", b"b"])
    data[60] = 3
    with pytest.raises(ProtocolError) as refused:
        decode_batches([data], topic="t", partition=0, start_offset=0, check_crcs=False)
    assert refused.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "type_",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()],
    ids=str,
)
def test_any_binary_or_string_column_sliced_or_chunked(type_: pa.DataType) -> None:
    text = pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_)
    wanted = ["a", None, "", "dd", "e"] if text else [b"a", None, b"", b"dd", b"e"]
    other = "x" if text else b"x"
    tail = pa.array([other, *wanted[2:]], type_).slice(1)
    chunked = pa.chunked_array([pa.array(wanted[:2], type_), tail])
    (encoded,) = encode_partition(None, chunked, timestamps=5)
    stamp(encoded.buffer, -1, -1, -1, transactional=False)
    expected = [None if value is None else value.encode() if isinstance(value, str) else value for value in wanted]
    assert [record.value for record in decode_records(encoded.buffer)] == expected


def test_batches_keep_to_their_size_and_one_record_may_exceed_it() -> None:
    column = pa.array([b"x" * 100] * 50 + [b"y" * 5000] + [b"x" * 100] * 5)
    encoded = encode_partition(None, column, max_batch_bytes=1000)
    assert sum(part.count for part in encoded) == 56
    assert [len(part.buffer) for part in encoded if len(part.buffer) > 1000] == [len(encoded[-2].buffer)]


def test_stamping_leaves_a_batch_with_a_right_checksum() -> None:
    (encoded,) = encode_partition(pa.array([b"k"]), pa.array([b"v"]), timestamps=3)
    stamp(encoded.buffer, 11, 4, 2**31 - 1, transactional=True)
    assign_offsets(encoded.buffer, 0, 10, 0)
    header = parse_header(encoded.buffer)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (11, 4, 2**31 - 1)
    assert header.is_transactional
    table, _ = decode_batches([encoded.buffer], topic="t", partition=2, start_offset=0)
    assert table.to_pylist()[0] | {"timestamp": None} == {
        "key": b"k", "value": b"v", "topic": "t", "partition": 2, "offset": 10, "timestamp": None, "timestampType": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "partition"),
    # What Java's producer answers for 100 partitions (murmur2 of the key, made positive, modulo).
    [(b"21", (-973932308 & 0x7FFFFFFF) % 100), (b"foobar", (-790332482 & 0x7FFFFFFF) % 100),
     (b"a-little-bit-long-string", (-985981536 & 0x7FFFFFFF) % 100),
     (b"a-little-bit-longer-string", (-1486304829 & 0x7FFFFFFF) % 100),
     (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", (-58897971 & 0x7FFFFFFF) % 100), (b"abc", 479470107 % 100)],
)  # fmt: skip
def test_keys_go_where_javas_producer_puts_them(key: bytes, partition: int) -> None:
    assert partition_of(pa.array([key]), 100).tolist() == [partition]


def test_rows_without_a_key_are_left_to_the_caller() -> None:
    assert partition_of(pa.array([None, b"a"], pa.binary()), 3).tolist()[0] == -1


def test_chosen_rows_only() -> None:
    (encoded,) = encode_partition(
        None, pa.array([b"a", b"b", b"c"]), timestamps=pa.array([1, 2, 3]), rows=np.array([2, 0])
    )
    stamp(encoded.buffer, -1, -1, -1, transactional=False)
    assert [(r.value, r.timestamp) for r in decode_records(encoded.buffer)] == [(b"c", 3), (b"a", 1)]
    assert encoded.max_timestamp == 3


def test_a_column_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        encode_partition(None, pa.array([1, 2]))


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="same number"):
        encode_partition(pa.array([b"a"]), pa.array([b"a", b"b"]))


def test_no_rows_no_batches() -> None:
    assert encode.encode_partition(None, pa.array([], pa.binary())) == []
