import numpy as np
import pyarrow as pa
import pytest

from oncelog.columns import encode
from oncelog.columns.decode import SCHEMA, decode_batches
from oncelog.columns.encode import encode_partition, partition_of
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import (
    Record,
    assign_offsets,
    build_batch,
    build_control_batch,
    decode_records,
    pack_batch,
    parse_header,
    stamp,
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


# one committed, one aborted, one open transaction
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
    table, next_offset = decode_batches([TRANSACTIONS], topic="t", partition=0, start_offset=start, aborted=aborted)
    assert next_offset == 7
    return table.column("value").to_pylist()  # type: ignore[no-any-return]


def test_read_committed_hides_only_the_aborted_transaction() -> None:
    assert values([(7, 1)]) == [b"plain", b"committed", b"same producer, later"]


def test_read_uncommitted_shows_all_but_markers() -> None:
    assert values(None) == [b"plain", b"aborted", b"committed", b"same producer, later"]


def test_records_before_the_start_and_after_the_end_are_left_out() -> None:
    data = batch(0, [b"a", b"b", b"c", b"d"])
    table, next_offset = decode_batches([data], topic="t", partition=0, start_offset=1, end_offset=3)
    assert table.column("value").to_pylist() == [b"b", b"c"]
    assert next_offset == 3


def test_empty_input_gives_an_empty_table_with_the_same_columns() -> None:
    table, next_offset = decode_batches([], topic="t", partition=0, start_offset=9)
    assert (table.num_rows, table.schema, next_offset) == (0, SCHEMA, 9)


def test_truncated_batch_at_the_end_is_left_to_the_next_fetch() -> None:
    data = bytes(batch(0, [b"a"])) + bytes(batch(1, [b"b"]))[:-3]
    table, next_offset = decode_batches([data], topic="t", partition=0, start_offset=0)
    assert (table.column("value").to_pylist(), next_offset) == ([b"a"], 1)


def test_damaged_batch_is_an_error() -> None:
    data = batch(0, [b"payload"])
    data[-2] ^= 1
    with pytest.raises(ProtocolError) as refused:
        decode_batches([data], topic="t", partition=0, start_offset=0)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_false_record_count_is_an_error() -> None:
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


def test_stamped_batch_has_a_correct_checksum() -> None:
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
    # The result of Java's producer for 100 partitions (murmur2 of the key, made positive, modulo).
    [(b"21", (-973932308 & 0x7FFFFFFF) % 100), (b"foobar", (-790332482 & 0x7FFFFFFF) % 100),
     (b"a-little-bit-long-string", (-985981536 & 0x7FFFFFFF) % 100),
     (b"a-little-bit-longer-string", (-1486304829 & 0x7FFFFFFF) % 100),
     (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", (-58897971 & 0x7FFFFFFF) % 100), (b"abc", 479470107 % 100)],
)  # fmt: skip
def test_keys_are_assigned_as_by_javas_producer(key: bytes, partition: int) -> None:
    assert partition_of(pa.array([key]), 100).tolist() == [partition]


def test_rows_without_a_key_are_left_to_the_caller() -> None:
    assert partition_of(pa.array([None, b"a"], pa.binary()), 3).tolist()[0] == -1


def test_selected_rows_only() -> None:
    (encoded,) = encode_partition(
        None, pa.array([b"a", b"b", b"c"]), timestamps=pa.array([1, 2, 3]), rows=np.array([2, 0])
    )
    stamp(encoded.buffer, -1, -1, -1, transactional=False)
    assert [(r.value, r.timestamp) for r in decode_records(encoded.buffer)] == [(b"c", 3), (b"a", 1)]
    assert encoded.max_timestamp == 3


def test_column_without_bytes_is_rejected() -> None:
    with pytest.raises(TypeError, match="int64"):
        encode_partition(None, pa.array([1, 2]))


def test_columns_of_different_length_are_rejected() -> None:
    with pytest.raises(ValueError, match="same number"):
        encode_partition(pa.array([b"a"]), pa.array([b"a", b"b"]))


def test_no_rows_no_batches() -> None:
    assert encode.encode_partition(None, pa.array([], pa.binary())) == []


def test_gap_after_the_last_batch_does_not_stop_a_reader() -> None:
    data = bytes(batch(0, [b"a"])) + bytes(batch(10, [b"b"]))
    table, next_offset = decode_batches([data], topic="t", partition=0, start_offset=0, end_offset=5)
    assert (table.column("value").to_pylist(), next_offset) == ([b"a"], 5)


def test_marker_emptied_by_compaction_ends_no_transaction() -> None:
    control = marker(1, 7, commit=False)
    empty = control[:61]
    empty[57:61] = bytes(4)
    empty[8:12] = (61 - 12).to_bytes(4, "big")
    data = bytes(batch(0, [b"aborted"], producer=7)) + bytes(empty) + bytes(batch(2, [b"also"], producer=7))
    table, next_offset = decode_batches(
        [data], topic="t", partition=0, start_offset=0, aborted=[(7, 0)], check_crcs=False
    )
    assert (table.num_rows, next_offset) == (0, 3)


def crafted(payload: bytes, count: int) -> bytearray:
    return pack_batch(payload, count, last_offset_delta=0, base_timestamp=0, max_timestamp=0)


HUGE = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"""2^63 - 1 as a varint."""
LYING = {
    "a record of 2^63 - 1 bytes": crafted(HUGE + bytes(20), 1),
    "a key of 2^63 - 1 bytes": crafted(b"\x40\x00\x00\x00" + HUGE + bytes(18), 1),
    "a value of 2^63 - 1 bytes": crafted(b"\x40\x00\x00\x00\x01" + HUGE + bytes(17), 1),
    "2^63 - 1 headers": crafted(b"\x40\x00\x00\x00\x01\x01" + HUGE + bytes(16), 1),
    "a header key of 2^63 - 1 bytes": crafted(b"\x40\x00\x00\x00\x01\x01\x02" + HUGE + bytes(15), 1),
    "a header value of 2^63 - 1 bytes": crafted(b"\x40\x00\x00\x00\x01\x01\x02\x00" + HUGE + bytes(14), 1),
    "a key of -2 bytes": crafted(b"\x40\x00\x00\x00\x03" + bytes(27), 1),
    "2^31 - 1 records": crafted(bytes(14), 2**31 - 1),
    "-1 records": crafted(bytes(14), -1),
    "a varint that does not end": crafted(b"\xff" * 30, 1),
}


@pytest.mark.parametrize("data", LYING.values(), ids=LYING)
def test_false_lengths_are_errors(data: bytearray) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode_batches([data], topic="t", partition=0, start_offset=0, include_headers=True, check_crcs=False)
    assert refused.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.chunked_array([pa.array(["a", None]).dictionary_encode(), pa.array(["b"]).dictionary_encode()]),
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int32()), ["a", None, "b"]),
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 4], pa.int32()), ["a", None, "b"]).slice(1),
        pa.array([b"a", None, b"b"], pa.binary(1)),
        pa.array([b"x", b"a", None, b"b"], pa.binary(1)).slice(1),
    ],
    ids=["dictionary", "dictionaries", "runs", "runs, sliced", "fixed size", "fixed size, sliced"],
)
def test_other_kinds_of_bytes(column: pa.Array) -> None:
    (encoded,) = encode_partition(column, None)
    assert [record.key for record in decode_records(encoded.buffer)] == [b"a", None, b"b"]


def test_columns_without_a_chunk_and_columns_of_nulls() -> None:
    assert encode_partition(None, pa.chunked_array([], pa.binary())) == []
    (encoded,) = encode_partition(None, pa.nulls(2))
    assert [record.value for record in decode_records(encoded.buffer)] == [None, None]


def test_headers_sliced_chunked_and_null() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = [[{"key": "dropped", "value": b"0"}], [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, []]
    column = pa.chunked_array([pa.array(rows, kind).slice(1), pa.array([[{"key": "c", "value": b""}]], kind)])
    (encoded,) = encode_partition(None, pa.nulls(4), column)
    assert [record.headers for record in decode_records(encoded.buffer)] == [
        (("a", b"1"), ("b", None)), (), (), (("c", b""),),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("timestamps", "rows", "message"),
    [
        (pa.array([1, None]), None, "1 of 2 timestamps are null"),
        (pa.array([1, 1 << 60], pa.timestamp("s")), None, "out of bounds timestamp"),
        (np.array([1]), None, "shape"),
        (0, np.array([2]), "row numbers 2 to 2"),
        (0, np.array([-1, 0]), "row numbers -1 to 0"),
    ],
)
def test_timestamps_and_rows_out_of_range_are_rejected(timestamps: object, rows: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode_partition(None, pa.array([b"a", b"b"]), timestamps=timestamps, rows=rows)


def test_headers_without_a_key_are_rejected() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    with pytest.raises(ValueError, match="column headers: a header of row 1 has no key"):
        encode_partition(None, pa.array([b"a", b"b"]), pa.array([[], [None]], kind))


def test_topic_without_partitions_is_rejected() -> None:
    with pytest.raises(ValueError, match="partitions must be at least 1"):
        partition_of(pa.array([b"a"]), 0)


def test_reading_stops_after_the_batch_that_reaches_max_bytes() -> None:
    data = b"".join(bytes(batch(2 * number, [b"x" * 50, b"y"])) for number in range(4))
    offset, seen = 0, []
    while offset < 8:
        table, offset = decode_batches([data], topic="t", partition=0, start_offset=offset, max_bytes=70)
        seen.append(table["offset"].to_pylist())
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_timestamps_out_of_range_are_clamped() -> None:
    records = [Record(0, -(2**60), None, None), Record(1, 2**60, None, None), Record(2, 7, None, None)]
    table, _ = decode_batches([build_batch(records)], topic="t", partition=0, start_offset=0)
    last = (2**63 - 1) // 1000 * 1000
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [-last, last, 7000]


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.binary()),
        pa.large_list(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
    ],
    ids=["map", "large list of views"],
)
def test_other_kinds_of_headers(kind: pa.DataType) -> None:
    pairs = [[("dropped", b"0")], [("a", b"1"), ("b", None)], None, []]
    if not pa.types.is_map(kind):
        pairs = [row and [{"key": key, "value": value} for key, value in row] for row in pairs]
    (encoded,) = encode_partition(None, pa.nulls(3), pa.array(pairs, kind).slice(1))
    assert [record.headers for record in decode_records(encoded.buffer)] == [(("a", b"1"), ("b", None)), (), ()]


def test_header_fields_are_found_by_name() -> None:
    column = pa.array([[{"value": b"1", "key": b"a"}, {"value": None, "key": b"b"}], None])
    assert [field.name for field in column.type.value_type] == ["value", "key"]
    (encoded,) = encode_partition(None, pa.nulls(2), column)
    assert [record.headers for record in decode_records(encoded.buffer)] == [(("a", b"1"), ("b", None)), ()]


@pytest.mark.parametrize("fields", [["key"], ["name", "value"], ["key", "value", "more"], ["key", "key"], []])
def test_headers_with_other_fields_are_rejected(fields: list[str]) -> None:
    kind = pa.list_(pa.struct([(field, pa.binary()) for field in fields]))
    with pytest.raises(TypeError, match=r"headers must be a list of structs \(key, value\), not"):
        encode_partition(None, pa.nulls(1), pa.nulls(1, kind))


def test_longest_row_is_found() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([None, [{"key": "ab", "value": b"c"}, {"key": "d", "value": None}], []], kind)
    rows = encode.Rows(pa.array([b"k", b"kk", None]), pa.array([b"12345", b"1", b"12"]), headers)
    assert rows.longest() == len("kk" + "1" + "ab" + "c" + "d")
    assert encode.Rows(None, pa.array([b"12345", None])).longest() == 5
