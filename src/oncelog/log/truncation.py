"""Keep the offsets of a log, and truncate the log if a follower has diverged from its leader.

The producer state is rebuilt from a snapshot and the batches after it, which may take seconds. So a truncation pauses
between steps. It builds the new producer state in a second object, which then replaces the stale one. Source: Kafka's
``UnifiedLog.truncateTo``, ``ProducerStateManager.truncateAndReload``.
"""

from __future__ import annotations

from collections.abc import Callable

from oncelog.log.file_access import FileAccess, torn_on_failure
from oncelog.log.log_files import LogFiles
from oncelog.log.readable_end import readable_end
from oncelog.log.recovery import Loaded
from oncelog.log.steps import Steps, at_once

SEGMENTS_A_STEP = 20
"""Segments that a truncation drops in one step. It renames the files of each."""


class TruncatableLog:
    """The offsets of a log, and its truncation. `Log` adds appends and reads."""

    def __init__(self, name: str, files: LogFiles, loaded: Loaded) -> None:
        self.segments = files.segments
        """The segments, oldest first."""
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = loaded.log_start_offset
        self.recovery_point = loaded.recovery_point
        """All offsets before it are on the device."""
        self.truncations = 0
        """The number of truncations and restarts. Records that were read before the last one may have been replaced."""
        self.discard_swap: Callable[[], None] | None = None
        """Deletes the `.swap` files of an unfinished compaction, or None.

        Otherwise, recovery after a crash would complete the compaction, and restore truncated records.
        """
        self._files = files
        self._access = FileAccess(name)
        self._state = loaded.state
        self._readable_ends: dict[bool, tuple[int, int, int]] = {}
        """The last results of `readable_end` by its argument: (end, `truncations`, result)."""

    @property
    def last_stable_offset(self) -> int:
        """Return the last stable offset. All records before it are committed and not in an open transaction."""
        if self.is_stale:
            return self.log_start_offset
        unstable = self._state.first_unstable_offset
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self.log_start_offset)

    def readable_end(self, *, committed: bool) -> Steps[int]:
        """Return the offset after the last record that a consumer can read now, in short steps.

        With ``committed``, that is a record before the last stable offset that is not aborted, otherwise one before the
        high watermark. Markers are no records. The result is known until the log grows. Raises KAFKA_STORAGE_ERROR.
        """
        end = self.last_stable_offset if committed else self.high_watermark
        truncations = self.truncations
        known = self._readable_ends.get(committed)
        if known is not None and known[:2] == (end, truncations):
            return max(known[2], self.log_start_offset)
        search = readable_end(self.segments, self.log_start_offset, end, committed=committed)
        found = self._advance(search)
        while found is None:
            yield
            if self.truncations != truncations:
                return end
            found = self._advance(search)
        self._readable_ends[committed] = end, truncations, found
        return found

    def _advance(self, search: Steps[int]) -> int | None:
        """Run one step of a search. Return its result, or None if there are more steps."""
        with self._access.to("read"):
            try:
                next(search)
            except StopIteration as done:
                result: int = done.value
                return result
        return None

    def advance_high_watermark(self, offset: int) -> None:
        """Record that all records before ``offset`` are committed. A lower offset changes nothing."""
        if offset > self.high_watermark:
            self.high_watermark = min(offset, self.log_end_offset)
        self._state.advance_high_watermark(self.high_watermark)

    def lower_high_watermark(self, offset: int) -> None:
        """Let no reader see the records at or after ``offset`` any more, because a truncation will drop them."""
        self.high_watermark = min(self.high_watermark, max(offset, self.log_start_offset))

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Do the work of `truncating` without a pause."""
        return at_once(self.truncating(offset, now_ms))

    def truncating(self, offset: int, now_ms: int) -> Steps[bool]:
        """Drop all batches with records at or after ``offset``. Return whether any batch was dropped.

        Producer state, transaction index and leader epochs become those of the remaining log. Verifications end. In a
        pause, the log may be shorter, but nothing may be appended to it. If the work ends in a pause, the producer
        state is stale: see `rebuilding`.
        """
        yield from self._dropping(offset)
        with self._access.to("truncate"):
            if offset >= self.log_end_offset:
                self._files.truncate_epochs(self.log_end_offset)
                return False
            offset = self.segments.batch_start(offset)
            with torn_on_failure():
                self._abort_swap()
                self._files.truncate(offset)
            self._end_at(offset)
        yield from self.rebuilding(now_ms)
        return True

    def restarting(self, offset: int, now_ms: int) -> Steps[None]:
        """Drop all records, and let the log start and end at ``offset``, because the leader has no earlier ones.

        For the pauses, see `truncating`.
        """
        yield from self._dropping(self.segments.first_offset)
        with self._access.to("truncate"), torn_on_failure():
            self._abort_swap()
            self._files.restart(offset)
            self.truncations += 1
        self.log_start_offset = self.log_end_offset = self.high_watermark = self.recovery_point = offset
        yield from self.rebuilding(now_ms)

    def _dropping(self, offset: int) -> Steps[None]:
        """Drop most of the segments after ``offset``, newest first, with pauses."""
        while len(doomed := self.segments.after(offset)) > SEGMENTS_A_STEP:
            with self._access.to("truncate"), torn_on_failure():
                self._abort_swap()
                self._files.drop(doomed[:SEGMENTS_A_STEP])
                self._end_at(doomed[SEGMENTS_A_STEP - 1].base_offset)
            yield

    def _abort_swap(self) -> None:
        """Delete the files from which recovery would restore truncated records. Kafka aborts the whole compaction."""
        if self.discard_swap is not None:
            self.discard_swap()

    def _end_at(self, offset: int) -> None:
        self.truncations += 1
        self.log_start_offset = min(self.log_start_offset, offset)
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(self.high_watermark, offset)

    @property
    def is_stale(self) -> bool:
        """Return whether the producer state is that of the log before a truncation, until `rebuilding` has ended.

        Meanwhile, nothing may be appended, and the last stable offset is the log start.
        """
        return self._files.stale

    def rebuilding(self, now_ms: int) -> Steps[None]:
        """Rebuild the producer state of a truncated log, with pauses, if it is stale. Raises KAFKA_STORAGE_ERROR.

        An append of a follower that truncates the log rebuilds the state itself.
        """
        if not self.is_stale:
            return
        steps = self._files.rebuilding(self.log_end_offset, now_ms, high_watermark=self.high_watermark)
        ended = False
        while not ended:
            with self._access.to("rebuild the producers of"):
                ended = next(steps, True) is True
            if not ended:
                yield
        self.advance_high_watermark(self.high_watermark)
