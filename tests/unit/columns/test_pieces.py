"""Decoding in pieces: Arrow batches of bounded size, even if the record batches are large."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.columns.decode import PIECE_BYTES, PIECE_ROWS, decode_batches, decode_pieces
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import HEADER_SIZE, Record, build_batch, decode_records, pack_batch


def log(sizes: Iterable[Iterable[int]], codec: Codec = Codec.NONE) -> bytes:
    """Return record batches whose values have these sizes."""
    data, offset = b"", 0
    for batch in sizes:
        records = [
            Record(offset + i, 5, None, bytes(size), (("h", b"x" * (size % 3)),)) for i, size in enumerate(batch)
        ]
        data += bytes(build_batch(records, base_offset=offset, codec=codec))
        offset += len(records)
    return data


def pieces(data: bytes, end: int, start: int = 0, **limits: int) -> tuple[list[pa.RecordBatch], int]:
    found = []
    reading = decode_pieces(
        [data], topic="t", partition=0, start_offset=start, end_offset=end, include_headers=True, **limits
    )
    while True:
        try:
            found.append(next(reading))
        except StopIteration as stop:
            return found, stop.value


@pytest.mark.parametrize("sizes", [[[1 << 20] * 40], [[1 << 20]] * 40], ids=["one batch", "many batches"])
def test_arrow_batch_is_bounded_however_small_the_compressed_log_is(sizes: list[list[int]]) -> None:
    data = log(sizes, Codec.ZSTD)
    assert len(data) < 100_000
    found, end = pieces(data, 40)
    assert (end, sum(each.num_rows for each in found)) == (40, 40)
    assert max(each.get_total_buffer_size() for each in found) < 1.1 * PIECE_BYTES


def test_arrow_batch_of_small_records_is_bounded_by_its_rows() -> None:
    rows = 3 * PIECE_ROWS + 1
    found, _ = pieces(log([[0] * rows], Codec.ZSTD), rows)
    assert [each.num_rows for each in found] == [PIECE_ROWS] * 3 + [1]


def test_oversized_record_gets_its_own_arrow_batch() -> None:
    found, _ = pieces(log([[10, 500, 10, 10]]), 4, max_bytes=100)
    assert [each.num_rows for each in found] == [1, 1, 2]


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=9), max_size=5),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(1, 200),
    st.integers(1, 5),
)
def test_pieces_together_equal_the_whole(
    sizes: list[list[int]], start: int, end: int, max_bytes: int, max_rows: int
) -> None:
    data = log(sizes)
    found, reached = pieces(data, end, start, max_bytes=max_bytes, max_rows=max_rows)
    whole, after = decode_batches(
        [data], topic="t", partition=0, start_offset=start, end_offset=end, include_headers=True
    )
    for each in found:
        each.validate(full=True)
        assert 0 < each.num_rows <= max_rows
    assert pa.Table.from_batches(found, whole.schema).to_pylist() == whole.to_pylist()
    assert reached == min(after, end)


@pytest.mark.parametrize(("at", "count"), [(4, 9), (8, 9), (None, 10), (None, 8)])
def test_damage_within_a_split_batch_is_an_error(at: int | None, count: int) -> None:
    """A record's length or the number of records is wrong, and the checksum is right, as a faulty client may write
    it.
    """
    payload = bytearray(log([[30] * 9])[HEADER_SIZE:])
    if at is not None:
        payload[at * len(payload) // 9] = 0x7F
    damaged = pack_batch(payload, count, last_offset_delta=count - 1, base_timestamp=5, max_timestamp=5)
    with pytest.raises(ProtocolError, match="the batch at offset 0") as refused:
        pieces(bytes(damaged), count, max_bytes=100)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_error_names_the_damaged_batch() -> None:
    data = bytearray(log([[5], [5], [5]]))
    data[-1] ^= 1
    reading = decode_pieces([data], topic="t", partition=0, start_offset=0, end_offset=3, max_rows=1)
    assert next(reading)["offset"].to_pylist() == [0]
    with pytest.raises(ProtocolError, match=r"the batch at offset 2: .*CRC") as refused:
        next(reading)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_header_name_that_is_not_utf_8_is_decoded_with_replacement() -> None:
    records = [
        Record(0, 5, None, b"a", (("ok", b"1"), ("\udcff", b"2"))),
        Record(1, 5, None, b"b", ()),
        Record(2, 5, None, b"c", (("x\udce2\udc82y\udcc3", None), ("\u00e9", b""))),
    ]
    data = build_batch(records)
    table, _ = decode_batches([data], topic="t", partition=0, start_offset=0, include_headers=True)
    table.validate(full=True)
    seen = [[(header["key"], header["value"]) for header in row] for row in table["headers"].to_pylist()]
    assert seen == [[("ok", b"1"), ("\ufffd", b"2")], [], [("x\ufffdy\ufffd", None), ("\u00e9", b"")]]
    assert seen == [list(record.headers) for record in decode_records(data)], "record by record, too"
