"""Columns above 2 GiB, whose offsets exceed 32 bits. The tests reserve the memory, but touch little of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from oncelog.client.producer.table_batches import PIECE_BYTES, _in_pieces
from oncelog.columns.decode import decode_batches
from oncelog.columns.encode import Rows, partition_of
from oncelog.protocol.records import stamp

SIZE = (2 << 30) + (1 << 20)
WORDS = [b"first", b"last"]
MB = 1 << 20


def huge(kind: pa.DataType) -> pa.Array:
    """Return three rows: two words, and between them one that fills the column up to its size."""
    wide = kind in (pa.large_string(), pa.large_binary())
    size = SIZE if wide else (1 << 31) - 1
    data = np.zeros(size, np.uint8)
    data[:5] = np.frombuffer(WORDS[0], np.uint8)
    data[-4:] = np.frombuffer(WORDS[1], np.uint8)
    ends = np.array([0, 5, size - 4, size], np.int64 if wide else np.int32)
    return pa.Array.from_buffers(kind, 3, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def values(rows: Rows, chosen: list[int]) -> list[Any]:
    found: list[Any] = []
    for batch in rows.batches(np.array(chosen), max_batch_bytes=1 << 16):
        stamp(batch.buffer, -1, -1, -1, transactional=False)
        table, _ = decode_batches([bytes(batch.buffer)], topic="t", partition=0, start_offset=0)
        found += table["value"].to_pylist()
    return found


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.string(), pa.binary()], ids=str)
def test_end_of_huge_chunk_is_encoded(kind: pa.DataType) -> None:
    column = huge(kind)
    rows = Rows(None, column)
    assert values(rows, [0, 2]) == WORDS
    assert rows.longest() > (1 << 31) - 20
    assert values(Rows(None, column.slice(2)), [0]) == WORDS[1:]


def test_keys_at_the_end_of_a_huge_chunk_get_their_partitions() -> None:
    column = huge(pa.large_binary())
    words = pa.array(WORDS, pa.binary())
    assert partition_of(column.slice(0, 1), 1_000)[0] == partition_of(words, 1_000)[0]
    assert partition_of(column.slice(2), 1_000)[0] == partition_of(words, 1_000)[1]


def test_values_of_one_width_are_encoded_beyond_2_gib() -> None:
    count = SIZE // MB
    data = np.zeros(count * MB, np.uint8)
    data[-4:] = np.frombuffer(b"last", np.uint8)
    column = pa.Array.from_buffers(pa.binary(MB), count, [None, pa.py_buffer(data)])
    (value,) = values(Rows(None, column), [count - 1])
    assert len(value) == MB
    assert value.endswith(b"last")


def test_table_above_2_gib_is_split_without_a_copy() -> None:
    count = SIZE // MB
    data = np.zeros(count * MB, np.uint8)
    data[-4:] = np.frombuffer(b"last", np.uint8)
    ends = np.arange(count + 1, dtype=np.int64) * MB
    column = pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    before = pa.total_allocated_bytes()
    pieces = list(_in_pieces([pa.record_batch({"value": column})]))
    assert pa.total_allocated_bytes() - before < MB
    assert sum(piece.num_rows for piece in pieces) == count
    assert all(piece.nbytes <= PIECE_BYTES + MB for piece in pieces)
    last = Rows(None, pieces[-1]["value"])
    (value,) = values(last, [last.count - 1])
    assert value.endswith(b"last")


def test_values_of_one_width_may_be_null_and_sliced() -> None:
    column = pa.array([b"ab", None, b"cd"], pa.binary(2))
    assert values(Rows(None, column), [0, 1, 2]) == [b"ab", None, b"cd"]
    assert values(Rows(None, column.slice(1)), [0, 1]) == [None, b"cd"]
