"""Opening a partition's folder: which segments there are, what of them is whole, and what the producers did.

After a clean stop few files are touched: names, the newest snapshot, and the last batches of the active segment.
After a crash the segments from the recovery point on are read and checked batch by batch; the first that is not whole
ends the log, and indexes, transaction index, leader epochs and producer state are rebuilt on the way. Source: Kafka's
``LogLoader``, ``LogSegment.recover``, ``ProducerStateManager.truncateAndReload``.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from oncelog.log.config import LogConfig
from oncelog.log.disk import Disk, read_if_exists
from oncelog.log.epochs import FILE_NAME as EPOCHS_FILE
from oncelog.log.epochs import LeaderEpochs
from oncelog.log.index import MAX_RELATIVE_OFFSET
from oncelog.log.leftovers import deleted_files, finish_interrupted
from oncelog.log.producer_state import CompletedTransaction, Origin, ProducerAppend, ProducerState
from oncelog.log.segment import (
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    file_name,
)
from oncelog.log.snapshot import CorruptSnapshotError, decode_snapshot, encode_snapshot
from oncelog.log.steps import Steps, at_once
from oncelog.log.txn_index import AbortedTransaction, TransactionIndex
from oncelog.protocol.compression import Buffer
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.records import BatchHeader, check_crc, decode_control

logger = logging.getLogger(__name__)

BATCHES_A_STEP = 300
"""Batches that are read before others may have their turn: some ms ..."""
BYTES_AS_A_BATCH = 32 * 1024
"""... where so many bytes cost as much as a batch."""


class Snapshots:
    """The producer snapshots of a folder, by the offset they were taken at."""

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = sorted(offsets)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def take(self, state: ProducerState) -> None:
        """Write a snapshot at the state's end offset, unless there is one."""
        offset = state.end_offset
        if offset not in self.offsets:
            self._disk.atomic_write(self._path(offset), encode_snapshot(state.entries.values()))
            self.offsets = sorted([*self.offsets, offset])

    def load(self, state: ProducerState, log_start: int, end: int, now_ms: int) -> None:
        """Load the newest sound snapshot up to ``end`` into ``state``; without one it begins at ``log_start``.

        Snapshots after ``end`` know batches that are not in the log any more: they are removed, as are those from
        before the log's start, and damaged ones.
        """
        for offset in list(self.offsets):
            if offset > end or offset < log_start:
                self.remove(offset)
        for offset in reversed(self.offsets):
            try:
                entries = decode_snapshot(read_if_exists(self._disk, self._path(offset)) or b"")
            except CorruptSnapshotError as error:
                logger.warning("removing %s: %s", self._path(offset), error)
                self.remove(offset)
            else:
                state.load(entries, offset, now_ms)
                return
        state.clear(log_start)

    def paths_from(self, offset: int) -> list[str]:
        """Return the files of the snapshots taken at or after ``offset``."""
        return [self._path(taken) for taken in self.offsets if taken >= offset]

    def remove(self, offset: int) -> None:
        """Remove one snapshot."""
        self._disk.remove(self._path(offset))
        self.offsets.remove(offset)

    def discard(self, offset: int) -> None:
        """Remove the snapshot at ``offset``, if there is one."""
        if offset in self.offsets:
            self.remove(offset)

    def remove_strays(self, bases: list[int]) -> None:
        """Keep the snapshots at the start of a segment, and the newest one if it is behind them all."""
        last = self.offsets[-1:] if self.offsets and self.offsets[-1] > bases[-1] else []
        for offset in list(self.offsets):
            if offset not in bases and offset not in last:
                self.remove(offset)


@dataclass(slots=True)
class Loaded:
    """A folder as it was found, and recovered if need be."""

    segments: list[Segment]
    snapshots: Snapshots
    epochs: LeaderEpochs
    state: ProducerState
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    exists: bool
    """Whether there are files yet."""
    deleted: list[str]
    """Files that are no longer part of the log, and still to be unlinked."""


def finish_transactions(
    state: ProducerState, completed: list[CompletedTransaction], txn_index: TransactionIndex | None
) -> None:
    """Count transactions as decided, in the order of their markers, and note the aborted ones in the index."""
    for transaction in completed:
        if transaction.aborted and txn_index is not None:
            last_stable = state.last_stable_offset_after(transaction)
            txn_index.append(
                AbortedTransaction(
                    transaction.producer_id, transaction.first_offset, transaction.last_offset, last_stable
                )
            )
        state.complete(transaction)


def commit_producers(
    state: ProducerState,
    headers: list[BatchHeader],
    appends: Iterable[ProducerAppend],
    txn_index: TransactionIndex,
    now_ms: int,
) -> None:
    """Apply written batches to the state; ``appends`` has their producers."""
    completed: list[CompletedTransaction] = []
    for append in appends:
        state.commit(append, now_ms)
        completed += append.completed
    if len(completed) > 1:
        completed.sort(key=lambda transaction: transaction.last_offset)
    finish_transactions(state, completed, txn_index)
    for header in headers:
        if header.is_transactional:
            state.end_verification(header)


def add_batch(append: ProducerAppend, header: BatchHeader, view: Buffer, offset: int, version: int = 0) -> None:
    """Let a producer's append check and note one batch, be it data or a marker."""
    if not header.is_control:
        append.append_data(header, offset)
    elif header.count > 0:  # of a marker that compaction has emptied, the transaction is gone as well
        commit, coordinator_epoch = decode_control(view)
        append.append_marker(
            commit,
            epoch=header.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            offset=offset,
            timestamp=header.max_timestamp,
            transaction_version=version,
        )


def replay(
    state: ProducerState, header: BatchHeader, view: Buffer, txn_index: TransactionIndex | None, now_ms: int
) -> None:
    """Take a batch of the log into the producer state."""
    if header.producer_id >= 0:
        append = state.prepare(header.producer_id, Origin.REPLICATION)
        add_batch(append, header, view, header.base_offset)
        state.commit(append, now_ms)
        finish_transactions(state, append.completed, txn_index)
    state.end_offset = header.next_offset


def rebuild_state(
    state: ProducerState, segments: list[Segment], snapshots: Snapshots, log_start: int, end: int, now_ms: int
) -> None:
    """Make ``state`` that of the log up to ``end``: the newest snapshot, and what follows it in the log."""
    at_once(rebuilding(state, segments, snapshots, log_start, end, now_ms))


def rebuilding(
    state: ProducerState, segments: list[Segment], snapshots: Snapshots, log_start: int, end: int, now_ms: int
) -> Steps[None]:
    """Rebuild the state as `rebuild_state` does, with pauses."""
    snapshots.load(state, log_start, end, now_ms)
    bases = [segment.base_offset for segment in segments]
    for segment in segments[max(bisect_right(bases, state.end_offset) - 1, 0) :]:
        if segment.base_offset >= end:
            break
        position = segment.position_of(state.end_offset) if segment.base_offset < state.end_offset else 0
        for count, (header, at) in enumerate(segment.headers(position)):
            if header.base_offset >= end:
                break
            if count % BATCHES_A_STEP == BATCHES_A_STEP - 1:
                yield
            view = segment.pread(header.size, at) if header.is_control else b""
            replay(state, header, view, None, now_ms)
    state.end_offset = end


class Loader:
    """Opens one partition's folder."""

    def __init__(self, disk: Disk, directory: str, config: LogConfig, now_ms: int) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._state = ProducerState(config.producer_id_expiration_ms)
        self._epochs = LeaderEpochs(disk, f"{directory}/{EPOCHS_FILE}")
        self._snapshots = Snapshots(disk, directory, [])
        self._deleted: list[str] = []

    def load(self, *, recovery_point: int, clean: bool, log_start: int) -> Steps[Loaded]:
        """Return the folder's content. Pause if there is much to read.

        ``clean``: the last stop was orderly, so no check is needed. ``recovery_point``: records below this offset are
        on the device. ``log_start``: the checkpointed log start offset.
        """
        names = self._disk.listdir(self._directory)
        if not names:
            return self._empty(log_start)
        names = finish_interrupted(self._disk, self._directory, names)
        self._deleted = deleted_files(self._directory, names)
        self._remove_orphans(names)
        if EPOCHS_FILE in names:
            self._epochs.load()
        segments = [self._segment(int(name[: -len(LOG_SUFFIX)])) for name in names if _is_segment(name)]
        snapshots = [int(name[: -len(SNAPSHOT_SUFFIX)]) for name in names if _is_file(name, SNAPSHOT_SUFFIX)]
        self._snapshots = Snapshots(self._disk, self._directory, snapshots)
        if not segments:
            return self._empty(log_start, exists=True)
        log_start = max(log_start, segments[0].base_offset)
        first = self._first_to_recover(segments, set(names), recovery_point, clean)
        if first is None:
            try:
                end = segments[-1].next_offset()
            except OSError as error:
                logger.warning("%s, though the last stop was clean: it is checked", error)
                first = len(segments) - 1
        if first is not None:
            segments = yield from self._recover(segments, first, log_start)
            end = self._state.end_offset
        if end < log_start:
            logger.warning("%s ends at %d, before its start at %d: emptied", self._directory, end, log_start)
            for segment in segments:
                self._deleted += segment.delete()
            self._epochs.clear()
            return self._empty(log_start, exists=True)
        if first is None:
            yield from rebuilding(self._state, segments, self._snapshots, log_start, end, self._now_ms)
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(log_start)
        self._snapshots.remove_strays([segment.base_offset for segment in segments])
        if end > segments[0].base_offset:
            self._snapshots.take(self._state)
        point = end if clean and first is None else min(recovery_point, end)
        return Loaded(
            segments, self._snapshots, self._epochs, self._state, log_start, end, point, True, self._deleted
        )

    def _empty(self, log_start: int, *, exists: bool = False) -> Loaded:
        for offset in list(self._snapshots.offsets):
            self._snapshots.remove(offset)
        self._state.clear(log_start)
        self._epochs.truncate_from_start(log_start)
        segment = self.new_segment(log_start, self._config)
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

    def new_segment(self, base_offset: int, config: LogConfig) -> Segment:
        """Return a segment without files."""
        return self._make(base_offset, 0, config, new=True)

    def _segment(self, base_offset: int) -> Segment:
        path = f"{self._directory}/{file_name(base_offset, LOG_SUFFIX)}"
        return self._make(base_offset, self._disk.size(path) or 0, self._config, new=False)

    def _make(self, base_offset: int, size: int, config: LogConfig, *, new: bool) -> Segment:
        return Segment(
            self._disk,
            self._directory,
            base_offset,
            size=size,
            new=new,
            index_bytes=config.segment_index_bytes,
            interval=config.index_interval_bytes,
            now_ms=self._now_ms,
        )

    def _remove_orphans(self, names: list[str]) -> None:
        """Remove the indexes that belong to no segment."""
        present = set(names)
        for name in names:
            stem, _, suffix = name.partition(".")
            if f".{suffix}" in SEGMENT_SUFFIXES and stem + LOG_SUFFIX not in present:
                self._disk.remove(f"{self._directory}/{name}")

    def _first_to_recover(
        self, segments: list[Segment], names: set[str], recovery_point: int, clean: bool
    ) -> int | None:
        """Return the first segment that has to be read and checked, None if none has to."""
        suspect = len(segments)
        if not clean:
            bases = [segment.base_offset for segment in segments]
            suspect = max(bisect_right(bases, recovery_point) - 1, 0)
        for slot, segment in enumerate(segments[:suspect]):
            if file_name(segment.base_offset, TXN_INDEX_SUFFIX) in names and not segment.load_txn_index():
                logger.warning("the transaction index of %s is damaged, it is rebuilt", segment.path)
                return slot
        return suspect if suspect < len(segments) else None

    def _recover(self, segments: list[Segment], first: int, log_start: int) -> Steps[list[Segment]]:
        """Read the segments from ``first`` on and return those that are left."""
        base = segments[first].base_offset
        start = min(log_start, base)
        yield from rebuilding(self._state, segments[:first], self._snapshots, start, base, self._now_ms)
        for slot in range(first, len(segments)):
            segment = segments[slot]
            if segment.base_offset > self._state.end_offset and not self._config.compact:
                return self._cut_behind(segments, slot)
            self._state.end_offset = segment.base_offset
            whole = yield from self._recover_segment(segment)
            segment.finish()
            if self._state.end_offset > segments[0].base_offset:
                self._snapshots.take(self._state)
            if not whole:
                return self._cut_behind(segments, slot + 1)
        return segments

    def _cut_behind(self, segments: list[Segment], end: int) -> list[Segment]:
        """Remove the segments from ``end`` on: what they follow is damaged or lost, and a log has no holes."""
        for segment in segments[end:]:
            logger.warning("removing %s, which follows lost data", segment.path)
            self._deleted += segment.delete()
        return segments[:end]

    def _recover_segment(self, segment: Segment) -> Steps[bool]:
        """Read one segment and cut it off where it is damaged; return whether it was whole."""
        size = segment.size
        expected = segment.base_offset
        reason = "batches out of order"
        cost = 0
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
                cost += 1 + header.size // BYTES_AS_A_BATCH
                if cost >= BATCHES_A_STEP:
                    cost = 0
                    yield
        except ProtocolError as error:
            reason = str(error)
        if segment.size == size:
            return True
        logger.warning(
            "%s: cut off %d bytes behind offset %d: %s",
            segment.path,
            size - segment.size,
            self._state.end_offset,
            reason,
        )
        segment.cut(segment.size)
        return False


def _is_file(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and name[: -len(suffix)].isdecimal()


def _is_segment(name: str) -> bool:
    return _is_file(name, LOG_SUFFIX)
