"""Open a partition directory: find its segments, truncate damaged data, and restore the producer state.

After a clean stop, this reads only names and sizes, the newest snapshot, and the last batches of the active segment. If
the files are not as they were at the stop, it reads and checks the changed segments, batch by batch. After a crash, it
checks the segments from the recovery point on. The first damaged batch ends the log. Indexes, transaction index, leader
epochs and producer state are rebuilt meanwhile. Source: Kafka's ``LogLoader``, ``LogSegment.recover``,
``ProducerStateManager.truncateAndReload``.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

from oncelog.log.admission import replay
from oncelog.log.clean_end import CleanEnd
from oncelog.log.config import NO_LIMIT, LogConfig
from oncelog.log.disk import Disk
from oncelog.log.epochs import FILE_NAME as EPOCHS_FILE
from oncelog.log.epochs import LeaderEpochs
from oncelog.log.index import MAX_RELATIVE_OFFSET
from oncelog.log.leftovers import deleted_files, finish_interrupted
from oncelog.log.producer_state import ProducerState
from oncelog.log.segment import (
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from oncelog.log.segments import Segments
from oncelog.log.snapshot import Snapshots
from oncelog.log.steps import BATCHES_A_STEP, FILE_REMOVED, Pace, Steps
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import check_crc

logger = logging.getLogger(__name__)

BYTES_PER_BATCH = 32 * 1024
FILE_CHECKED = 4
SEGMENT_FINISHED = 60
"""The cost of writing the indexes and the producer snapshot of a recovered segment."""


class Holes(Enum):
    """What recovery does if records are missing.

    Segments are missing, because a crash of the machine has lost their names, or the end of the log is damaged.
    """

    KEEP = "keep"
    """Keep the records after the hole, because no other replica is known to have them. Drop a damaged end.

    A hole in the middle ends a log that is not compacted.
    """
    REFUSE = "refuse"
    """Raise LostRecordsError, because this replica counts as complete. Keep the files, so that each start notices."""
    DROP = "drop"
    """Drop the records after the hole, or the damaged end. The replica fetches them from the leader."""


class LostRecordsError(ProtocolError):
    """A log has a hole, or its end is damaged."""

    def __init__(self, message: str, end: int | None = None) -> None:
        """`end` is the offset at which the damage begins. None: the log has a hole."""
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self.end = end


@dataclass(slots=True)
class Loaded:
    """The contents of a partition directory, after recovery if that was necessary."""

    segments: list[Segment]
    snapshots: Snapshots
    epochs: LeaderEpochs
    state: ProducerState
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    exists: bool
    """Whether the log has files yet."""
    deleted: list[str]
    """Files that are no longer part of the log, and still to be unlinked."""


def rebuilding(
    state: ProducerState,
    holding: Callable[[int], list[Segment]],
    snapshots: Snapshots,
    first: int,
    end: int,
    now_ms: int,
    pace: Pace,
    *,
    high_watermark: int,
) -> Steps[None]:
    """Rebuild the producer state at ``end`` from a snapshot and the batches after it, with pauses.

    ``first`` is the first offset in the files. It may be before the log start: DeleteRecords deletes no producers, and
    some of them may be only in batches before the log start, if no newer snapshot was finished before a crash.

    The snapshot is the newest one up to ``high_watermark``: the transactions whose markers are after it are not stable
    yet, and a snapshot does not contain them. ``holding`` returns the segment with an offset and all later ones. It is
    called after each pause, in which segments may be deleted or compacted.
    """
    yield from snapshots.loading(state, first, end, max(high_watermark, first), now_ms, pace)
    at: tuple[Segment, int] | None = None
    paused = True
    while paused:
        paused = due = False
        for segment in holding(state.end_offset):
            if paused or segment.base_offset >= end:
                break
            position = 0
            if at is not None and segment is at[0]:
                position = at[1]
            elif segment.base_offset < state.end_offset:
                position = segment.position_of(state.end_offset)
            due = pace.is_due(FILE_CHECKED) or due
            for header, start in segment.headers(position):
                if header.base_offset >= end:
                    break
                view = segment.pread(header.size, start) if header.is_control else b""
                replay(state, header, view, None, now_ms)
                if pace.is_due(1) or due:
                    paused, at = True, (segment, start + header.size)
                    break
        if paused:
            yield
    state.end_offset = end


def new_segment(disk: Disk, directory: str, now_ms: int, base_offset: int, config: LogConfig) -> Segment:
    """Return a segment without files."""
    return Segment(
        disk,
        directory,
        base_offset,
        size=0,
        new=True,
        index_bytes=config.segment_index_bytes,
        interval=config.index_interval_bytes,
        now_ms=now_ms,
    )


class Loader:
    """Open one partition directory. The log does not keep the loader, which takes about 1 KB."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig, now_ms: int) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._state = ProducerState(config.producer_id_expiration_ms)
        self._epochs = LeaderEpochs(disk, f"{directory}/{EPOCHS_FILE}")
        self._snapshots = Snapshots(disk, directory, [])
        self._deleted: list[str] = []
        self._pace = Pace(BATCHES_A_STEP)
        self._high_watermark = NO_LIMIT
        self._holes = Holes.KEEP
        self._on_failure = ExitStack()

    def load(
        self,
        *,
        recovery_point: int,
        clean: bool,
        log_start: int,
        high_watermark: int | None = None,
        holes: Holes = Holes.KEEP,
        at_stop: CleanEnd | None = None,
    ) -> Steps[Loaded]:
        """Return the directory's content. Pause if there is much to read.

        If this fails, or is closed in a pause because the topic was deleted, close the files that it has opened.

        ``clean``: the last stop was orderly, so only changed files are checked. ``at_stop``: the files at the last
        clean stop, or None if they are unknown. ``recovery_point``: records below this offset are on the device.
        ``log_start``: the checkpointed log start offset. ``high_watermark``: the checkpointed one, or 0 if it is
        unknown; None if all records of the log are committed. Raises LostRecordsError if ``holes`` says so.
        """
        self._high_watermark = NO_LIMIT if high_watermark is None else high_watermark
        self._holes = holes
        with self._on_failure:
            loaded = yield from self._load(
                recovery_point=recovery_point, clean=clean, log_start=log_start, at_stop=at_stop
            )
            self._on_failure.pop_all()
            return loaded

    def _load(self, *, recovery_point: int, clean: bool, log_start: int, at_stop: CleanEnd | None) -> Steps[Loaded]:
        names = self._disk.listdir(self._directory)
        if not names:
            return (yield from self._empty(log_start))
        names = finish_interrupted(self._disk, self._directory, names)
        self._deleted = deleted_files(self._directory, names)
        if self._pace.is_due(len(names)):
            yield
        if EPOCHS_FILE in names:
            self._epochs.load()
        segments, snapshots = yield from self._sorting(names)
        self._snapshots = Snapshots(self._disk, self._directory, snapshots)
        if not segments:
            return (yield from self._empty(log_start, exists=True))
        changed = at_stop.changed_from(segments) if at_stop is not None else None
        if changed is not None:
            text = "the files of %s have changed since the last clean stop; recovering the log from offset %d on"
            logger.warning(text, self._directory, max(changed, segments[0].base_offset))
            clean, recovery_point = False, changed if clean else min(recovery_point, changed)
        stored_start, log_start = log_start, max(log_start, segments[0].base_offset)
        if not clean and self._is_hole(segments[0], stored_start) and self._holes is Holes.DROP:
            return (yield from self._emptying(segments, stored_start))
        if not clean and not self._epochs.entries:
            recovery_point = 0  # the file of the epochs is lost, so find all of them in the batches
        first = yield from self._first_to_recover(segments, set(names), recovery_point, clean)
        if first is None:
            try:
                end = segments[-1].checked_end()
            except (OSError, ProtocolError) as error:
                logger.warning("%s, although the last shutdown was clean; recovering the last segment", error)
                first = len(segments) - 1
        if first is not None:
            segments = yield from self._recover(segments, first, log_start)
            end = self._state.end_offset
        if end < log_start:
            logger.warning(
                "%s ends at offset %d, before its start offset %d; emptying the log", self._directory, end, log_start
            )
            return (yield from self._emptying(segments, log_start))
        if first is None:
            yield from self._rebuilding(segments, segments[0].base_offset, end, log_start)
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(log_start)
        yield from self._snapshots.removing_strays([segment.base_offset for segment in segments], self._pace)
        if end > segments[0].base_offset:
            yield from self._snapshots.taking(self._state, self._pace)
        point = end if clean and first is None else min(recovery_point, end)
        return Loaded(
            segments,
            self._snapshots,
            self._epochs,
            self._state,
            log_start,
            end,
            point,
            True,
            self._deleted,
        )

    def _emptying(self, segments: list[Segment], log_start: int) -> Steps[Loaded]:
        yield from self._deleting(segments)
        self._epochs.clear()
        return (yield from self._empty(log_start, exists=True))

    def _empty(self, log_start: int, *, exists: bool = False) -> Steps[Loaded]:
        for offset in list(self._snapshots.offsets):
            self._snapshots.remove(offset)
            if self._pace.is_due(FILE_REMOVED):
                yield
        self._state.clear(log_start)
        self._epochs.truncate_from_end(log_start)  # the process may have died within `LogFiles.restart`
        self._epochs.truncate_from_start(log_start)
        segment = new_segment(self._disk, self._directory, self._now_ms, log_start, self._config)
        if exists:
            segment.create()
        return Loaded(
            [segment],
            self._snapshots,
            self._epochs,
            self._state,
            log_start,
            log_start,
            log_start,
            exists,
            self._deleted,
        )

    def _sorting(self, names: list[str]) -> Steps[tuple[list[Segment], list[int]]]:
        """Return the segments, and the offsets of the snapshots. Remove the indexes that belong to no segment."""
        present = set(names)
        segments, snapshots = [], []
        for name in names:
            stem, dot, kind = name.partition(".")
            suffix, cost = dot + kind, 1
            if suffix == LOG_SUFFIX and stem.isdecimal():
                segments.append(self._segment(int(stem)))
                cost = FILE_CHECKED
            elif suffix == SNAPSHOT_SUFFIX and stem.isdecimal():
                snapshots.append(int(stem))
            elif suffix in SEGMENT_SUFFIXES and stem + LOG_SUFFIX not in present:
                self._disk.remove(f"{self._directory}/{name}")
                cost = FILE_REMOVED
            if self._pace.is_due(cost):
                yield
        return segments, snapshots

    def _rebuilding(self, segments: list[Segment], first: int, end: int, log_start: int) -> Steps[None]:
        return rebuilding(
            self._state,
            Segments(segments).holding,
            self._snapshots,
            first,
            end,
            self._now_ms,
            self._pace,
            high_watermark=max(self._high_watermark, log_start),
        )

    def _segment(self, base_offset: int) -> Segment:
        path = f"{self._directory}/{file_name(base_offset, LOG_SUFFIX)}"
        segment = Segment(
            self._disk,
            self._directory,
            base_offset,
            size=self._disk.size(path) or 0,
            new=False,
            index_bytes=self._config.segment_index_bytes,
            interval=self._config.index_interval_bytes,
            now_ms=self._now_ms,
        )
        self._on_failure.callback(segment.close)
        return segment

    def _first_to_recover(
        self, segments: list[Segment], names: set[str], recovery_point: int, clean: bool
    ) -> Steps[int | None]:
        """Return the index of the first segment that must be read and checked, or None."""
        suspect = len(segments)
        if not clean:
            bases = [segment.base_offset for segment in segments]
            suspect = max(bisect_right(bases, recovery_point) - 1, 0)
        for slot, segment in enumerate(segments[:suspect]):
            if file_name(segment.base_offset, TXN_INDEX_SUFFIX) in names:
                if not segment.load_txn_index():
                    logger.warning("rebuilding the transaction index of %s, because it is damaged", segment.path)
                    return slot
                if self._pace.is_due(FILE_CHECKED):
                    yield
        return suspect if suspect < len(segments) else None

    def _recover(self, segments: list[Segment], first: int, log_start: int) -> Steps[list[Segment]]:
        """Read the segments from ``first`` on. Return the segments that remain."""
        base = segments[first].base_offset
        yield from self._rebuilding(segments[:first], segments[0].base_offset, base, log_start)
        # A follower writes the file of the epochs when it truncates. After a crash, the file may be newer than the
        # batches, and would assign an epoch of the new leader to batches that the new leader does not have.
        self._epochs.truncate_from_end(base)
        for slot in range(first, len(segments)):
            segment = segments[slot]
            # Kafka's compaction leaves holes. Logs are imported from Kafka only if they have no other replicas.
            may_have_holes = self._config.compact and self._holes is Holes.KEEP
            if not may_have_holes and self._is_hole(segment, self._state.end_offset):
                return (yield from self._cutting(segments, slot))
            self._state.end_offset = segment.base_offset
            whole = yield from self._recover_segment(segment)
            if not whole:
                # If this stops halfway, the next start must still find the damage, so the segment is cut last.
                segments = yield from self._cutting(segments, slot + 1)
                segment.cut(segment.size)
            segment.finish()
            if self._state.end_offset > segments[0].base_offset:
                yield from self._snapshots.taking(self._state, self._pace)
            if not whole:
                break
            if self._pace.is_due(SEGMENT_FINISHED):
                yield
        return segments

    def _is_hole(self, segment: Segment, end: int) -> bool:
        """Return whether the records from ``end`` to this segment are missing.

        Each segment begins where the one before ends. The first one begins at the checkpointed log start or before it,
        because segments are deleted only when the new log start is in the checkpoint.
        """
        if segment.base_offset <= end:
            return False
        message = f"{self._directory} has lost the records from offset {end} to {segment.base_offset - 1}"
        if self._holes is Holes.REFUSE:
            raise LostRecordsError(message)
        logger.warning("%s", message)
        return True

    def _cutting(self, segments: list[Segment], end: int) -> Steps[list[Segment]]:
        """Remove the segments from ``end`` on. They follow damaged or lost data, and a log has no holes."""
        if doomed := segments[end:]:
            logger.warning(
                "removing %d segments, from %s on, because data before them is lost", len(doomed), doomed[0].path
            )
            yield from self._deleting(doomed)
        return segments[:end]

    def _deleting(self, segments: list[Segment]) -> Steps[None]:
        """Mark the files of segments as deleted, newest first. If this stops halfway, the log still has no hole."""
        for segment in reversed(segments):
            self._deleted += segment.delete()
            if self._pace.is_due(len(SEGMENT_SUFFIXES) * FILE_REMOVED):
                yield

    def _recover_segment(self, segment: Segment) -> Steps[bool]:
        """Read one segment up to the first damage, and return whether it is whole. The caller truncates the rest.

        Raises LostRecordsError if the rest must stay.
        """
        size = segment.size
        expected = segment.base_offset
        reason = "its batches are out of order"
        segment.reset()
        try:
            for header, view in segment.batches(size):
                check_crc(header, view)
                if header.base_offset < expected or header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                    break
                replay(self._state, header, view, segment.txn_index, self._now_ms)
                segment.commit(header, header.last_offset, header.max_timestamp)
                latest = self._epochs.latest
                if latest is None or header.partition_leader_epoch > latest:
                    self._epochs.assign(header.partition_leader_epoch, header.base_offset)
                expected = header.next_offset
                if self._pace.is_due(1 + header.size // BYTES_PER_BATCH):
                    yield
        except ProtocolError as error:
            reason = str(error)
        if segment.size == size:
            return True
        end = self._state.end_offset
        if self._holes is Holes.REFUSE:
            message = f"{self._directory} has damaged records from offset {end} on: {reason}"
            raise LostRecordsError(message, end)
        logger.warning(
            "truncating %s by %d bytes, to offset %d: %s",
            segment.path,
            size - segment.size,
            end,
            reason,
        )
        return False
