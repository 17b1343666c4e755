"""What a stretch of a log contains: which batches are committed, aborted or open, and where the markers are. No I/O.

A batch of a transaction is decided by a marker after it. If the marker is further on than was read, the broker's list
of aborted transactions decides (read_committed), or the list of the open ones of its producers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import BatchHeader, decode_control

PLAIN, COMMITTED, ABORTED, OPEN, ENDED = "plain", "committed", "aborted", "open", "ended"
COMMIT, ABORT, CONTROL = "commit marker", "abort marker", "control record"
MARKERS = frozenset({COMMIT, ABORT, CONTROL})


class Batch(NamedTuple):
    """A batch: its first and last offset, its producer, and what it is.

    `kind` is PLAIN, one of MARKERS, or empty for a batch of a transaction. `aborted` says how that transaction ended if
    the broker has said so, otherwise it is None. `size` is in bytes, `timestamp` in ms since the epoch.
    """

    first: int
    last: int
    producer_id: int
    producer_epoch: int
    kind: str
    records: int
    size: int
    timestamp: int
    aborted: bool | None = None


class Span(NamedTuple):
    """Neighbouring batches in the same state and of the same producer. Both offsets are included."""

    first: int
    last: int
    state: str
    producer_id: int
    producer_epoch: int
    records: int
    size: int
    timestamp: int


def batch_of(header: BatchHeader, view: memoryview, aborted: bool | None) -> Batch:
    """Return a batch of a Fetch response."""
    kind = PLAIN
    if header.is_control:
        kind = _marker(header, view)
    elif header.is_transactional:
        kind = ""
    return Batch(
        header.base_offset,
        header.last_offset,
        header.producer_id,
        header.producer_epoch,
        kind,
        header.count,
        header.size,
        header.max_timestamp,
        aborted if kind == "" else None,
    )


def _marker(header: BatchHeader, view: memoryview) -> str:
    if not header.count:  # compaction has removed the marker from its batch
        return CONTROL
    try:
        return COMMIT if decode_control(view)[0] else ABORT
    except ProtocolError:
        return CONTROL


def states(batches: Iterable[Batch], open_from: Mapping[int, int]) -> list[tuple[Batch, str]]:
    """Return each batch with its state, in order. `open_from` has the first offset of open transactions by producer."""
    ordered = sorted(batches)
    markers: dict[int, list[tuple[int, str]]] = {}
    for batch in ordered:
        if batch.kind in (COMMIT, ABORT):
            markers.setdefault(batch.producer_id, []).append((batch.first, batch.kind))
    return [(batch, batch.kind or _outcome(batch, markers.get(batch.producer_id, []), open_from)) for batch in ordered]


def _outcome(batch: Batch, markers: list[tuple[int, str]], open_from: Mapping[int, int]) -> str:
    if batch.aborted is not None:
        return ABORTED if batch.aborted else COMMITTED
    at = bisect_right(markers, (batch.last, "~"))
    if at < len(markers):
        return COMMITTED if markers[at][1] == COMMIT else ABORTED
    begun = open_from.get(batch.producer_id)
    return OPEN if begun is not None and batch.first >= begun else ENDED


def spans(batches: Iterable[Batch], open_from: Mapping[int, int]) -> list[Span]:
    """Return the batches as spans. A marker is always a span of its own."""
    found: list[Span] = []
    for batch, state in states(batches, open_from):
        last = found[-1] if found else None
        if (
            last is not None
            and state not in MARKERS
            and (last.state, last.last + 1) == (state, batch.first)
            and (state == PLAIN or last.producer_id == batch.producer_id)
        ):
            found[-1] = last._replace(
                last=batch.last,
                producer_epoch=batch.producer_epoch,
                records=last.records + batch.records,
                size=last.size + batch.size,
                timestamp=max(last.timestamp, batch.timestamp),
            )
        else:
            numbers = batch.records, batch.size, batch.timestamp
            found.append(Span(batch.first, batch.last, state, batch.producer_id, batch.producer_epoch, *numbers))
    return found
