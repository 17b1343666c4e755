"""Find how transactions ended. Only the control markers in the log record this."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice

from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.requests.offsets import EARLIEST, Listed, list_offsets
from oncelog.client.requests.partition_fetch import FETCH_BYTES, fetch_partitions
from oncelog.client.types import Marker, Place
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import decode_control, iter_batches
from oncelog.protocol.topics import TopicPartition

MIN_BYTES, MAX_BYTES = 1 << 18, 1 << 23
"""Bytes of one Fetch: for a partition beside many others, and in all. A marker has 78 bytes; records of other producers
may precede it."""
PARTITIONS_AT_ONCE = 1_000
"""Partitions in one round of requests."""


async def find_markers(cluster: ClusterClient, places: Iterable[Place], wait_ms: float) -> list[Marker]:
    """Find the first control marker of each place's producer. Wait `wait_ms` for missing markers.

    After `wait_ms`, read on to the high watermark that a partition has then, and not to a later one: other producers
    may write faster than this search reads. Partitions with the same leader share requests.
    """
    wanted = list(places)
    searches: dict[TopicPartition, _Search] = {}
    for place in wanted:
        searches.setdefault(place.at, _Search()).add(place)
    now = asyncio.get_running_loop().time
    until = now() + wait_ms / 1000
    left = dict(searches)
    while left:
        for at in await _read(cluster, dict(islice(left.items(), PARTITIONS_AT_ONCE)), last=now() > until):
            search = left.pop(at)
            if search.unfound and not search.at_last_end:
                left[at] = search  # moves to the end, so that other partitions come first in the next round
    return [searches[place.at].found.get(place, Marker.MISSING) for place in wanted]


class _Search:
    """The search for some markers in one partition."""

    def __init__(self) -> None:
        self.unfound: dict[int, list[Place]] = {}
        """By producer id."""
        self.found: dict[Place, Marker] = {}
        self.position = -1
        self._last_end = -1
        self.at_last_end = False
        """Whether the search must end without the markers that it has not found."""

    def add(self, place: Place) -> None:
        """Add a place whose marker is to be found."""
        self.position = place.after + 1 if self.position < 0 else min(self.position, place.after + 1)
        self.unfound.setdefault(place.producer_id, []).append(place)

    def take(self, answer: PartitionData, *, last: bool) -> None:
        """Search the records of one Fetch response. `last`: search no further than to its high watermark."""
        for header, view in iter_batches(answer.records or b"", partial_ok=True):
            self.position = max(self.position, header.next_offset)
            # Compaction may keep a producer's control batch without its marker.
            if header.is_control and header.count and header.producer_id in self.unfound:
                commit, _ = decode_control(view)
                self._settle(header.producer_id, header.base_offset, Marker.COMMIT if commit else Marker.ABORT)
        if last and self._last_end < 0:
            self._last_end = answer.high_watermark
        self.at_last_end = 0 <= self._last_end <= self.position

    def _settle(self, producer_id: int, offset: int, marker: Marker) -> None:
        """Set the result of all places before `offset`: the marker there, or GONE."""
        places = self.unfound.pop(producer_id)
        self.found.update({place: marker for place in places if place.after < offset})
        later = [place for place in places if place.after >= offset]
        if later:
            self.unfound[producer_id] = later

    def begin_at(self, offset: int) -> None:
        """Continue at the log start offset. Markers before it no longer exist.

        If the log starts before the position, it was truncated below the position. Then no marker after the position
        can exist.
        """
        if offset <= self.position:
            self.at_last_end = True
            return
        self.position = offset
        for producer_id in list(self.unfound):
            self._settle(producer_id, offset, Marker.GONE)

    def delete(self) -> None:
        """Handle a deleted partition: its markers no longer exist."""
        self.found.update({place: Marker.GONE for places in self.unfound.values() for place in places})
        self.unfound.clear()


async def _read(cluster: ClusterClient, searches: dict[TopicPartition, _Search], *, last: bool) -> list[TopicPartition]:
    """Fetch once for each search. Return the partitions, with those first whose search made no progress.

    With `last`, the searches end at the high watermarks in the first responses of such a round.
    """
    positions = {at: search.position for at, search in searches.items()}
    share = min(FETCH_BYTES, max(MIN_BYTES, MAX_BYTES // len(positions)))
    answers = await fetch_partitions(cluster, positions, partition_bytes=share, max_bytes=MAX_BYTES)
    refused = [at for at, answer in answers.items() if answer.error_code]
    begins: dict[TopicPartition, Listed] = {}
    if refused:
        begins = await list_offsets(cluster, dict.fromkeys(refused, EARLIEST))
    for at, search in searches.items():
        if at not in answers:
            search.delete()
        elif at in begins:
            search.begin_at(begins[at].offset)
        else:
            search.take(answers[at], last=last)
    return sorted(searches, key=lambda at: searches[at].position > positions[at])
