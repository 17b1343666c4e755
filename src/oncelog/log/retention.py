"""Find the segments of a log that exceed ``retention.ms`` or ``retention.bytes``. Source: ``UnifiedLog``.

Retention deletes whole segments, the oldest first, if all their batches are committed.
"""

from __future__ import annotations

from itertools import islice

from oncelog.log.log import Log
from oncelog.log.segment import Segment
from oncelog.log.steps import Steps

SEGMENTS_AT_ONCE = 20
"""Segments that one step may drop. It reads the indexes of each, or renames its files."""


def retained_from(log: Log, now_ms: int) -> int:
    """Return the new log start offset, which drops at most `SEGMENTS_AT_ONCE` segments."""
    start = log.log_start_offset
    if not log.config.delete:
        return start
    segments = log.segments.holding(start)
    ends = [segment.base_offset for segment in segments[1:]] + [log.log_end_offset]
    size = sum(segment.size for segment in segments)
    for segment, end in islice(zip(segments, ends, strict=True), SEGMENTS_AT_ONCE):
        expired = _is_old(segment, log.config.retention_ms, now_ms) or (
            0 <= log.config.retention_bytes <= size - segment.size
        )
        empty_end = segment is log.segments.active and not segment.size
        if empty_end or end > log.high_watermark or not expired:
            break
        size -= segment.size
        start = max(start, end)
    return start


def applying_retention(log: Log, now_ms: int) -> Steps[int]:
    """Advance the log start, with pauses. Return the number of segments before it, or 0 for a closed log.

    Write the new log start to a checkpoint before you delete these segments (`Log.delete_old_segments`).
    Raises KAFKA_STORAGE_ERROR.
    """
    while not log.closed:
        start = retained_from(log, now_ms)
        if start == log.log_end_offset:
            log.roll(now_ms)
        if start == log.log_start_offset:
            return len(log.segments.before(start))
        log.advance_log_start(start)
        yield
    return 0


def _is_old(segment: Segment, retention_ms: int, now_ms: int) -> bool:
    return 0 <= retention_ms < now_ms - segment.newest_ms()


def expired_when_written(segment: Segment, retention_ms: int) -> bool:
    """Return whether all records of a segment were older than ``retention_ms`` already when the segment was created.

    Return False for a segment that an earlier process has written, because the time of its creation is not known.
    """
    return not segment.loaded and _is_old(segment, retention_ms, segment.created_ms)
