"""Decide which part of a log to compact, and how urgent that is.

Source: Kafka's ``LogCleanerManager`` and ``LogToClean``.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from oncelog.log.index import MAX_RELATIVE_OFFSET
from oncelog.log.log import Log
from oncelog.log.segment import Segment

SEGMENTS_A_GROUP = 20
"""Segments that compaction replaces in one step, which renames the files of each."""


class Plan(NamedTuple):
    """The part of a log to clean. Its dirty part is ``[first_dirty, end)``. It starts and ends with whole segments."""

    log: Log
    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether a record has waited for longer than ``max.compaction.lag.ms``."""

    @property
    def dirty_ratio(self) -> float:
        """Return the fraction of the cleanable bytes that was not compacted yet."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Return whether the log is dirty enough (``min.cleanable.dirty.ratio``) or overdue."""
        return (self.overdue and self.dirty_bytes > 0) or self.dirty_ratio > self.log.config.min_cleanable_ratio


def make_plan(log: Log, checkpoint: int | None, now_ms: int) -> Plan:
    """Plan a round of a log that was cleaned up to ``checkpoint`` (None: never).

    The plan excludes the active segment, records after the last stable offset (an open transaction, or not committed
    yet), and records younger than ``min.compaction.lag.ms``. A checkpoint outside of the log is ignored.
    """
    first_dirty = log.log_start_offset
    if checkpoint is not None and first_dirty < checkpoint <= log.log_end_offset:
        first_dirty = checkpoint
    active = log.segments.active.base_offset
    dirty = [segment for segment in log.segments.holding(first_dirty) if segment.base_offset < active]
    bound = min([log.last_stable_offset, active, *_first_young(dirty, log.config.min_compaction_lag_ms, now_ms)])
    end = log.segments.holding(max(bound, first_dirty))[0].base_offset
    cleanable = [segment for segment in dirty if segment.base_offset < end]
    clean = takewhile(lambda segment: segment.base_offset < first_dirty, log.segments)
    return Plan(
        log,
        first_dirty,
        end,
        sum(segment.size for segment in clean),
        sum(segment.size for segment in cleanable),
        _is_overdue(dirty, log.config.max_compaction_lag_ms, now_ms),
    )


def _first_young(dirty: list[Segment], lag_ms: int, now_ms: int) -> list[int]:
    """Return the base offset of the first segment that has a record younger than the lag, if there is one."""
    if lag_ms > 0:
        for segment in dirty:
            if segment.newest_ms() > now_ms - lag_ms:
                return [segment.base_offset]
    return []


def _is_overdue(dirty: list[Segment], lag_ms: int, now_ms: int) -> bool:
    latest = now_ms - lag_ms
    if latest <= 0:  # there is no limit, so the first batch of each segment need not be read
        return False
    firsts = [segment.first_batch_timestamp() or 0 for segment in dirty]
    return min((first for first in firsts if first > 0), default=now_ms) < latest


def group_segments(plan: Plan, end: int) -> list[list[Segment]]:
    """Return the segments before ``end`` in groups. Each becomes one segment of at most the full size.

    Kafka does not limit the number of segments in a group. If that leaves small segments, the next round joins them.
    """
    config = plan.log.config
    segments = [segment for segment in plan.log.segments if segment.base_offset < end]
    ends = [segment.base_offset for segment in segments[1:]] + [plan.end]
    groups: list[list[Segment]] = []
    size = offsets = times = 0
    for segment, segment_end in zip(segments, ends, strict=True):
        index, time_index = segment.index_bytes()
        size, offsets, times = size + segment.size, offsets + index, times + time_index
        fits = (
            groups
            and len(groups[-1]) < SEGMENTS_A_GROUP
            and size <= config.segment_bytes
            and max(offsets, times) <= config.segment_index_bytes
            and segment_end - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if fits:
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size, offsets, times = segment.size, index, time_index
    return groups
