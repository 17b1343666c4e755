"""Columns and the record codec are two ways to write and read the same bytes."""

import contextlib

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from oncelog.columns.decode import decode_batches
from oncelog.columns.encode import encode_partition
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import HEADER_SIZE, Record, assign_offsets, build_batch, decode_records, stamp

DATA = st.none() | st.binary(max_size=40)
NAMES = st.text(max_size=5)
ROWS = st.lists(
    st.tuples(st.integers(0, 2**41), DATA, DATA, st.lists(st.tuples(NAMES, DATA), max_size=3)), min_size=1, max_size=30
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def headers_of(row: Row) -> list[dict[str, object]]:
    return [{"key": name, "value": value} for name, value in row[3]]


@given(ROWS, st.sampled_from(Codec), st.integers(100, 2000))
def test_record_codec_reads_batches_built_from_columns(rows: list[Row], codec: Codec, size: int) -> None:
    encoded = encode_partition(
        pa.array([row[1] for row in rows], pa.binary()),
        pa.array([row[2] for row in rows], pa.binary()),
        pa.array([headers_of(row) for row in rows], HEADERS),
        pa.array([row[0] for row in rows]),
        codec=codec,
        max_batch_bytes=size,
    )
    offset = 0
    found = []
    for batch in encoded:
        stamp(batch.buffer, 1, 0, offset, transactional=False)
        assign_offsets(batch.buffer, 0, offset, 0)
        found += decode_records(batch.buffer)
        offset += batch.count
    assert found == [Record(i, row[0], row[1], row[2], tuple(row[3])) for i, row in enumerate(rows)]


@given(ROWS, st.sampled_from(Codec), st.integers(0, 31))
def test_columns_read_batches_of_the_record_codec(rows: list[Row], codec: Codec, start: int) -> None:
    data = build_batch([Record(i, *row[:3], tuple(row[3])) for i, row in enumerate(rows)], codec=codec)
    table, next_offset = decode_batches([data], topic="t", partition=1, start_offset=start, include_headers=True)
    assert next_offset == max(start, len(rows))
    kept = rows[start:]
    assert table.column("key").to_pylist() == [row[1] for row in kept]
    assert table.column("value").to_pylist() == [row[2] for row in kept]
    assert table.column("headers").to_pylist() == [headers_of(row) for row in kept]
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [row[0] * 1000 for row in kept]


@given(ROWS, st.data())
def test_damaged_records_raise_or_decode_to_a_valid_table(rows: list[Row], data: st.DataObject) -> None:
    batch = build_batch([Record(0, *row[:3], tuple(row[3])) for row in rows])
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(HEADER_SIZE, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        table, _ = decode_batches(
            # start at the least offset: damage may make a record's offset negative, and no record may be skipped
            # because of that
            [batch],
            topic="t",
            partition=0,
            start_offset=-(2**63),
            include_headers=True,
            check_crcs=False,
        )
        table.validate(full=True)
        assert table.num_rows == len(rows)
