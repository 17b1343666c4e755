"""How transactions have ended, read from the control markers in the log: the one place that never forgets it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from oncelog import errors
from oncelog.client.cluster import ClusterClient
from oncelog.client.offsets import EARLIEST, list_offsets
from oncelog.client.partition_fetch import fetch_partition
from oncelog.client.types import Marker, Place, TopicPartition
from oncelog.protocol.records import decode_control, iter_batches


async def find_markers(cluster: ClusterClient, places: Iterable[Place], wait_ms: float) -> list[Marker]:
    """For each place the first control marker of its producer, waiting for those that have not come yet."""
    wanted = list(places)
    by_partition: dict[TopicPartition, list[Place]] = {}
    for place in wanted:
        by_partition.setdefault(place.at, []).append(place)
    until = asyncio.get_running_loop().time() + wait_ms / 1000
    found: dict[Place, Marker] = {}
    await asyncio.gather(*(_search(cluster, at, mine, found, until) for at, mine in by_partition.items()))
    return [found.get(place, Marker.MISSING) for place in wanted]


async def _search(
    cluster: ClusterClient, at: TopicPartition, places: list[Place], found: dict[Place, Marker], until: float
) -> None:
    now = asyncio.get_running_loop().time
    position = min(place.after for place in places) + 1
    while any(place not in found for place in places):
        try:
            answer = await fetch_partition(cluster, at, position)
            if answer.error_code:
                position = (await list_offsets(cluster, {at: EARLIEST}))[at].offset
                found.update({p: Marker.GONE for p in places if p not in found and p.after < position})
                continue
        except errors.UnknownTopicError:
            found.update({place: Marker.GONE for place in places if place not in found})
            return
        for header, view in iter_batches(answer.records or b"", partial_ok=True):
            position = max(position, header.next_offset)
            if header.is_control and header.count:  # compaction may leave the batch for its producer, not the marker
                commit, _ = decode_control(view)
                for place in places:
                    if place.producer_id == header.producer_id and place.after < header.base_offset:
                        found.setdefault(place, Marker.COMMIT if commit else Marker.ABORT)
        if position >= answer.high_watermark and now() > until:
            return
