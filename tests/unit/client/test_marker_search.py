"""Search for control markers in partitions that change meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from oncelog.client.producer import markers
from oncelog.client.requests.offsets import Listed
from oncelog.client.types import Marker, Place
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import Record, build_batch, build_control_batch
from oncelog.protocol.topics import TopicPartition

OUT = ("out", 0)
PID = 7


class Log:
    """A partition whose Fetch answers have one batch each.

    `growth`: foreign batches that are added before each answer.
    """

    def __init__(self, patch: pytest.MonkeyPatch, batches: int, growth: int = 0, marker: int = -1) -> None:
        self.end, self.growth, self.marker = batches, growth, marker
        self.fetched: list[int] = []
        patch.setattr(markers, "fetch_partitions", self._fetch)
        patch.setattr(markers, "list_offsets", self._list)

    async def _fetch(
        self, _: Any, positions: Mapping[TopicPartition, int], **rest: Any
    ) -> dict[TopicPartition, PartitionData]:
        self.end += self.growth
        (position,) = positions.values()
        self.fetched.append(position)
        data = PartitionData(partition_index=0, high_watermark=self.end)
        if position > self.end:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif position < self.end:
            data.records = self._batch(position)
        await asyncio.sleep(0)
        return {OUT: data}

    def _batch(self, offset: int) -> bytearray:
        if offset != self.marker:
            return build_batch([Record(offset, 0, b"", b"")], base_offset=offset)
        return build_control_batch(
            True, producer_id=PID, producer_epoch=0, coordinator_epoch=0, timestamp=0, base_offset=offset
        )

    async def _list(self, _: Any, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Listed]:
        return {at: Listed(0, -1, -1) for at in wanted}


def find(after: int, wait_ms: float) -> list[Marker]:
    cluster: Any = None
    return asyncio.run(asyncio.wait_for(markers.find_markers(cluster, [Place(OUT, PID, after)], wait_ms), 60))


def test_search_ends_in_a_partition_written_faster_than_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, batches=10, growth=2)
    assert find(4, wait_ms=-1) == [Marker.MISSING]
    assert log.fetched == list(range(5, 12))


def test_marker_below_the_end_is_found_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, batches=50, growth=1, marker=40)
    assert find(4, wait_ms=-1) == [Marker.COMMIT]
    assert log.fetched[-1] == 40


def test_search_beyond_a_truncated_log_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, batches=3, marker=2)
    assert find(9, wait_ms=1_000_000) == [Marker.MISSING]
    assert log.fetched == [10]
    assert find(1, wait_ms=1_000_000) == [Marker.COMMIT]
