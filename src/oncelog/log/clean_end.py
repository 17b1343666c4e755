"""What a log's files were at a clean stop, so that the next start notices files that have changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from oncelog.log.segment import Segment


class CleanEnd(NamedTuple):
    """The segments of a log at a clean stop. The clean-shutdown mark has one for each log."""

    first: int
    """The first offset of the first segment."""
    active: int
    """The first offset of the active segment."""
    older_bytes: int
    """The size of all segments before the active one."""
    active_bytes: int
    end: int
    """The log end offset."""

    def changed_from(self, segments: Sequence[Segment]) -> int | None:
        """Return the offset from which recovery must read the segments, or None if their names and sizes match."""
        now = clean_end(segments, self.end)
        if now == self:
            return None
        return now.active if now._replace(active_bytes=self.active_bytes) == self else 0


def clean_end(segments: Sequence[Segment], end: int) -> CleanEnd:
    """Return the present state of a log's segments. ``end`` is the log end offset."""
    *older, active = segments
    older_bytes = sum(segment.size for segment in older)
    return CleanEnd(segments[0].base_offset, active.base_offset, older_bytes, active.size, end)
