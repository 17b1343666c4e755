"""The files of one log: segments, leader epochs and producer snapshots in its directory. Source: Kafka's LocalLog.

`LogFiles` raises OSError. `Log` decides whether the files may be used, and what a failure means (`file_access`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from functools import partial

from oncelog.log.checkpoint import PARTITION_METADATA, encode_partition_metadata
from oncelog.log.config import LogConfig
from oncelog.log.disk import Disk
from oncelog.log.index import MAX_RELATIVE_OFFSET
from oncelog.log.leftovers import Unlink
from oncelog.log.producer_state import ProducerState
from oncelog.log.recovery import Loaded, rebuilding
from oncelog.log.segment import LOG_SUFFIX, Segment, file_name
from oncelog.log.segments import Segments
from oncelog.log.steps import BATCHES_A_STEP, Pace, Steps
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import BatchHeader


class LogFiles:
    """The files of one log, and the producer state that its snapshots contain."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        topic_id: uuid.UUID | None,
        config: LogConfig,
        new_segment: Callable[[int, LogConfig], Segment],
        loaded: Loaded,
        unlink: Unlink,
    ) -> None:
        """``new_segment`` returns a segment without files."""
        self.directory = directory
        self.config = config
        self.segments = Segments(loaded.segments)
        self.epochs = loaded.epochs
        self.state = loaded.state
        self.exist = loaded.exists
        """Whether the log has files yet. The first append creates them, and takes longer than other appends."""
        self.unsynced = loaded.epochs.unsynced
        """Small files that were written. A caller that syncs them, and the directory, removes them from the list."""
        self.stale = False
        """Whether the producer state is that of the log before a truncation. `rebuilding` ends that."""
        self.unlink = unlink
        self._disk = disk
        self._topic_id = topic_id
        self._new_segment = new_segment
        self._snapshots = loaded.snapshots
        self._snapshots.unsynced = self.unsynced

    @property
    def size_bytes(self) -> int:
        """Return the size of all segments."""
        return sum(segment.size for segment in self.segments)

    # --- creating ---

    def _create(self) -> None:
        """Create the files of a log that gets its first batch, or begins at another offset."""
        create_folder(self._disk, self.directory, self._topic_id)
        self.segments.active.create()
        self._created()

    def _created(self) -> None:
        self.exist = True
        if self._topic_id is not None:
            self.unsynced.append(_metadata_path(self.directory))

    def creation(self, folder: str) -> Callable[[], None]:
        """Return work for a worker thread: it creates the first files of this log in another directory."""
        return partial(create_files, self._disk, folder, self._topic_id, self.segments.active.base_offset)

    def take(self, folder: str) -> bool:
        """Take the files that `creation` has created in ``folder``. Return False if the log has files already."""
        if self.exist or self._disk.exists(self.directory):
            return False
        self._disk.rename(folder, self.directory)
        self._created()
        return True

    # --- rolling ---

    def segment_for(self, last: BatchHeader, size: int, now_ms: int) -> Segment:
        """Return the segment for ``size`` bytes of batches. Create the files, or roll, if that is necessary."""
        if size > self.config.segment_bytes:
            message = f"the record batches have {size} bytes, more than segment.bytes ({self.config.segment_bytes})"
            raise ProtocolError(ErrorCode.RECORD_LIST_TOO_LARGE, message)
        segment = self.segments.active
        if not self.exist:
            self._create()
        if self._snapshots.unfinished is not None:
            self._snapshots.advance()
        if segment.size and (
            segment.size + size > self.config.segment_bytes
            or segment.waited_ms(now_ms, last.max_timestamp) > self.config.segment_age_ms(segment.path)
            or not segment.can_take(last.last_offset)
        ):
            self.roll(now_ms, last.last_offset)
        return self.segments.active

    def roll(self, now_ms: int, last_offset: int = 0) -> None:
        """Start a new segment that can take ``last_offset``, unless the active one is empty.

        It begins where the active one ends, although compaction may have removed the next records. So recovery finds
        lost segments.
        """
        old = self.segments.active
        if not old.size:
            return
        old.finish()
        base_offset = max(old.next_offset(), last_offset - MAX_RELATIVE_OFFSET)
        self.epochs.flush()
        if not self.stale:
            self.state.end_offset = base_offset
            self._snapshots.begin(self.state)
        segment = self._new_segment(base_offset, self.config)
        segment.created_ms = now_ms
        segment.create()
        self.segments.add(segment)

    # --- syncing ---

    def sync_paths(self, start: int, end: int) -> list[str]:
        """Return what to sync so that the offsets in ``[start, end)`` are on the device: files, then the directory."""
        segments = [segment for segment in self.segments.holding(start) if segment.base_offset < end]
        paths = [path for segment in segments for path in segment.sync_paths()]
        paths += self._snapshots.paths_from(start)
        if self.epochs.latest is not None:
            paths.append(self.epochs.path)
        return [*dict.fromkeys([*paths, *self.unsynced]), self.directory]

    def write(self) -> None:
        """Write what is in memory: index entries and leader epochs."""
        self.segments.active.flush_indexes()
        self.epochs.flush()

    def sync(self, paths: Iterable[str]) -> None:
        """Write these files and directories to the device, and wait. May be called from a worker thread."""
        for path in paths:
            self._disk.sync(path)

    def finish(self) -> None:
        """Complete the indexes, and write a producer snapshot at the end of the log."""
        self.segments.active.finish()
        if self.state.end_offset > self.segments.first_offset and not self.stale:
            self._snapshots.take(self.state)
        else:
            self._snapshots.complete()

    # --- deleting ---

    def truncate(self, offset: int) -> None:
        """Delete everything at and after ``offset``. The producer state is stale until `rebuilding` has ended."""
        self.stale = True
        if offset < self.segments.first_offset:
            self._delete(list(self.segments))
            self._begin_at(offset)
        else:
            self._delete(self.segments.after(offset))
            self.segments.active.truncate(offset)
            self.segments.forget_positions()
        self.truncate_epochs(offset)

    def drop(self, newest: list[Segment]) -> None:
        """Delete the newest segments, but not all, newest first. The producer state is stale, as after `truncate`."""
        self.stale = True
        self._delete(newest)
        self.truncate_epochs(newest[-1].base_offset)

    def restart(self, offset: int) -> None:
        """Delete everything. The log begins again at ``offset``. The producer state is stale, as after `truncate`."""
        self.stale = True
        self._delete(list(self.segments)[::-1])
        self.epochs.clear()
        self.epochs.flush()
        self._begin_at(offset)
        if not self.exist:  # the name of the segment is the only place that has the offset
            self._create()

    def rebuilding(self, end: int, now_ms: int, *, high_watermark: int) -> Steps[None]:
        """Build the producer state of the truncated log beside the stale one, with pauses, and replace that."""
        state = ProducerState(self.state.expiration_ms)
        first, holding, pace = self.segments.first_offset, self.segments.holding, Pace(BATCHES_A_STEP)
        yield from rebuilding(state, holding, self._snapshots, first, end, now_ms, pace, high_watermark=high_watermark)
        self.state.replace(state)
        self.stale = False

    def _begin_at(self, offset: int) -> None:
        segment = self._new_segment(offset, self.config)
        if self.exist:
            segment.create()
        self.segments.add(segment)

    def truncate_epochs(self, offset: int) -> None:
        """Delete the leader epochs that start at or after ``offset``."""
        self.epochs.truncate_from_end(offset)
        self.epochs.flush()

    def advance_snapshot(self) -> bool:
        """Encode a part of the unfinished producer snapshot. Return whether none is unfinished any more."""
        return self._snapshots.advance()

    def snapshot_paths(self, offset: int) -> list[str]:
        """Return the first producer snapshot at or after ``offset``, and its directory, for `finishing_snapshot`."""
        return [path for first in self._snapshots.paths_from(offset)[:1] for path in (first, self.directory)]

    def delete_before(self, log_start: int, most: int | None) -> int:
        """Delete segments before ``log_start``, at most ``most`` if it is given. Return their number."""
        doomed = self.segments.before(log_start)[:most]
        self._delete(doomed)
        if doomed or not self.epochs.may_wait:
            self.epochs.flush()
        return len(doomed)

    def replace(self, old: list[Segment], new: Segment) -> list[str]:
        """Replace ``old`` by a compacted segment, whose files end in ``.swap``. Return the files to unlink."""
        deleted = [path for segment in old for path in segment.delete()]
        new.rename("")
        self.segments.replace(old, new)
        for segment in old[1:]:
            deleted += self._snapshots.retire(segment.base_offset)
        return deleted

    def _delete(self, doomed: list[Segment]) -> None:
        deleted = []
        for segment in doomed:
            deleted += segment.delete()
            self.segments.remove(segment)
            deleted += self._snapshots.retire(segment.base_offset)
        self.unlink(deleted, self.config.file_delete_delay_ms)


def create_folder(disk: Disk, folder: str, topic_id: uuid.UUID | None) -> None:
    """Create the directory of a log, without a segment. Raises OSError."""
    disk.mkdir(folder)
    if topic_id is not None:
        disk.atomic_write(_metadata_path(folder), encode_partition_metadata(topic_id))


def create_files(disk: Disk, folder: str, topic_id: uuid.UUID | None, base_offset: int) -> None:
    """Create a directory with the files of an empty log. No other code may use the directory meanwhile. Raises OSError.

    A worker thread may call this.
    """
    create_folder(disk, folder, topic_id)
    disk.atomic_write(f"{folder}/{file_name(base_offset, LOG_SUFFIX)}", b"")


def _metadata_path(folder: str) -> str:
    return f"{folder}/{PARTITION_METADATA}"
