from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from oncelog.protocol import records as r
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ProtocolError

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
ROWS = st.lists(
    st.builds(
        r.Record,
        offset=st.just(0),
        timestamp=st.integers(-1, 2**62),
        key=st.none() | st.binary(max_size=300),
        value=st.none() | st.binary(max_size=300),
        headers=HEADERS,
    ),
    min_size=1,
    max_size=20,
)


@given(ROWS, st.sampled_from(Codec), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_round_trip(rows: list[r.Record], codec: Codec, base_offset: int, sequence: int) -> None:
    batch = r.build_batch(
        rows, codec=codec, base_offset=base_offset, producer_id=1, producer_epoch=0, base_sequence=sequence
    )
    header = r.parse_header(batch)
    r.check_batch(header, memoryview(batch))
    assert header.last_sequence == (sequence + len(rows) - 1) % 2**31
    assert header.max_timestamp == max(row.timestamp for row in rows)
    assert r.decode_records(batch) == [row._replace(offset=base_offset + i) for i, row in enumerate(rows)]


@given(ROWS, st.sampled_from(Codec), st.data())
def test_damage_raises_only_protocol_errors(rows: list[r.Record], codec: Codec, data: st.DataObject) -> None:
    batch = r.build_batch(rows, codec=codec)
    for _ in range(3):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        assert len(r.decode_records(batch, limit=1 << 20)) >= 0


@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        for _, view in r.iter_batches(data):
            r.decode_records(view, limit=1 << 20)
