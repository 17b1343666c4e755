"""How transactions have ended, read from the control markers in the log, which alone keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice

from oncelog.client.cluster import ClusterClient
from oncelog.client.offsets import EARLIEST, Listed, list_offsets
from oncelog.client.partition_fetch import FETCH_BYTES, fetch_partitions
from oncelog.client.types import Marker, Place, TopicPartition
from oncelog.protocol.messages.fetch import PartitionData
from oncelog.protocol.records import decode_control, iter_batches

MIN_BYTES, MAX_BYTES = 1 << 18, 1 << 23
"""Bytes of one Fetch: for a partition beside many others, and in all. A marker has 78 bytes; other producers' records
may lie around it."""
PARTITIONS_AT_ONCE = 1_000
"""Partitions in one round of requests."""


async def find_markers(cluster: ClusterClient, places: Iterable[Place], wait_ms: float) -> list[Marker]:
    """Find the first control marker of each place's producer, waiting for those that have not come yet.

    Partitions with the same leader share their requests.
    """
    wanted = list(places)
    searches: dict[TopicPartition, _Search] = {}
    for place in wanted:
        searches.setdefault(place.at, _Search()).add(place)
    now = asyncio.get_running_loop().time
    until = now() + wait_ms / 1000
    left = dict(searches)
    while left:
        for at in await _read(cluster, dict(islice(left.items(), PARTITIONS_AT_ONCE))):
            search = left.pop(at)
            if search.unfound and (now() <= until or not search.at_end):
                left[at] = search  # the last one: others may have had to wait for this round
    return [searches[place.at].found.get(place, Marker.MISSING) for place in wanted]


class _Search:
    """The search for some markers in one partition."""

    def __init__(self) -> None:
        self.unfound: dict[int, list[Place]] = {}
        """By producer id."""
        self.found: dict[Place, Marker] = {}
        self.position = -1
        self.at_end = False

    def add(self, place: Place) -> None:
        """Look for this place's marker, too."""
        self.position = place.after + 1 if self.position < 0 else min(self.position, place.after + 1)
        self.unfound.setdefault(place.producer_id, []).append(place)

    def take(self, answer: PartitionData) -> None:
        """Look through what one Fetch has brought."""
        for header, view in iter_batches(answer.records or b"", partial_ok=True):
            self.position = max(self.position, header.next_offset)
            # Compaction may leave a control batch for its producer, without the marker.
            if header.is_control and header.count and header.producer_id in self.unfound:
                commit, _ = decode_control(view)
                self._settle(header.producer_id, header.base_offset, Marker.COMMIT if commit else Marker.ABORT)
        self.at_end = self.position >= answer.high_watermark

    def _settle(self, producer_id: int, offset: int, marker: Marker) -> None:
        """Give the marker at `offset`, or what is known without one, to the places before it."""
        places = self.unfound.pop(producer_id)
        self.found.update({place: marker for place in places if place.after < offset})
        later = [place for place in places if place.after >= offset]
        if later:
            self.unfound[producer_id] = later

    def begin_at(self, offset: int) -> None:
        """The log begins there: markers before it are gone."""
        self.position = offset
        for producer_id in list(self.unfound):
            self._settle(producer_id, offset, Marker.GONE)

    def delete(self) -> None:
        """The partition does not exist any more."""
        self.found.update({place: Marker.GONE for places in self.unfound.values() for place in places})
        self.unfound.clear()


async def _read(cluster: ClusterClient, searches: dict[TopicPartition, _Search]) -> list[TopicPartition]:
    """Fetch once for each search. Returns the partitions, those first that the answers had nothing for."""
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
            search.take(answers[at])
    return sorted(searches, key=lambda at: searches[at].position > positions[at])
