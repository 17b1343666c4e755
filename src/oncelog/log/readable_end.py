"""Find the end of the records that a consumer can read: the offset after the last one before a given end.

Markers, batches that compaction has emptied and, for `read_committed`, aborted records have offsets, too. A consumer
never gets them. If they are the last ones, a client may not advance its position past them, and the distance from its
committed offset to the end never becomes zero.
"""

from __future__ import annotations

from oncelog.log.segment import Segment
from oncelog.log.segments import Segments
from oncelog.log.steps import Steps
from oncelog.log.txn_index import AbortedTransaction
from oncelog.protocol.records import BatchHeader

MOST_STEPS = 256
"""Steps backwards, each of one interval of the offset index (`index.interval.bytes`, 4 KiB by default)."""


def readable_end(segments: Segments, start: int, end: int, *, committed: bool) -> Steps[int]:
    """Return the offset after the last readable record in ``[start, end)``, or ``start`` if there is none.

    Pause after each step. With ``committed``, aborted records are not readable; ``end`` is then at most the last stable
    offset. After MOST_STEPS steps without a readable record, return the offset that the search has reached, which is
    larger than the exact one.
    """
    if start >= end:
        return start
    slot = segments.index_of(end - 1)
    known = list(segments)
    segment = known[slot]
    whole = slot + 1 < len(known) and end >= known[slot + 1].base_offset
    upper = segment.size if whole else segment.position_of(end)
    reached = end
    for _ in range(MOST_STEPS):
        if segment not in segments:  # retention or compaction has removed it in a pause
            return max(reached, start)
        while upper <= 0:
            if slot == 0 or segment.base_offset <= start:
                return start
            slot -= 1
            segment = known[slot]
            upper = segment.size
        lower = segment.entry_before(upper)
        first, found = _last_readable(segments, segment, lower, upper, committed)
        if found is not None:
            return max(min(found, end), start)
        if first is not None:
            reached = min(reached, first)
        if reached <= start:
            return start
        upper = lower
        yield
    return reached


def _last_readable(
    segments: Segments, segment: Segment, lower: int, upper: int, committed: bool
) -> tuple[int | None, int | None]:
    """Return the first offset between two positions, and the offset after the last readable record between them."""
    headers = [header for header, _ in segment.headers(lower, upper)]
    if not headers:
        return None, None
    first, last = headers[0].base_offset, headers[-1].next_offset
    candidates = [header for header in headers if header.count > 0 and not header.is_control]
    if not candidates:
        return first, None
    aborted = segments.aborted_between(first, last) if committed else []
    for header in reversed(candidates):
        if not (header.is_transactional and _is_aborted(header, aborted)):
            return first, header.next_offset
    return first, None


def _is_aborted(header: BatchHeader, aborted: list[AbortedTransaction]) -> bool:
    return any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )
