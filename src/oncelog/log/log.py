"""The log of one partition: what is appended, in which order, and by which producers.

`Log` combines validation, producer state and leader epochs with the files (`log_files`). An append first checks
everything, then writes its batches at once, and updates the state after the write. A failed write leaves the log as it
was, except for empty files or an empty segment. There is no clock, no lock and no waiting here: one event loop owns a
log, and the time is an argument. Source: Kafka's UnifiedLog.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from oncelog.log.admission import (
    Admission,
    AppendResult,
    LogStatistics,
    assign_all_offsets,
    commit_producers,
    replay_all,
)
from oncelog.log.clean_end import CleanEnd, clean_end
from oncelog.log.config import LogConfig
from oncelog.log.disk import Disk
from oncelog.log.epochs import UNDEFINED_EPOCH
from oncelog.log.file_access import torn_on_failure
from oncelog.log.follower_append import batch_across, checking, cost
from oncelog.log.leftovers import Unlink, unlink_now
from oncelog.log.log_files import LogFiles
from oncelog.log.producer_state import Origin, ProducerAppend, ProducerEntry, ProducerInfo
from oncelog.log.recovery import Holes, Loaded, Loader, new_segment
from oncelog.log.segment import Segment
from oncelog.log.steps import Pace, Steps
from oncelog.log.timestamps import TimeStep
from oncelog.log.truncation import TruncatableLog
from oncelog.log.validate import ValidBatches, validate
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import build_control_batch

__all__ = ["AppendResult", "Log", "LogStatistics", "Origin", "ProducerInfo"]


class Log(TruncatableLog):
    """One partition's log. Create it with `opening`."""

    def __init__(self, topic: str, partition: int, config: LogConfig, files: LogFiles, loaded: Loaded) -> None:
        super().__init__(f"{topic}-{partition}", files, loaded)
        self.topic = topic
        self.partition = partition
        self.directory = files.directory
        self.config = config
        self.unlink = files.unlink
        self.unsynced = files.unsynced
        """Small files that were written. A caller that syncs them, and the directory, removes them from the list."""
        self._epochs = loaded.epochs
        self._admission = Admission(f"{topic}-{partition}", loaded.state)

    @classmethod
    def opening(
        cls,
        disk: Disk,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        now_ms: int,
        *,
        topic_id: uuid.UUID | None = None,
        recovery_point: int = 0,
        clean: bool = False,
        log_start_offset: int = 0,
        high_watermark: int | None = None,
        holes: Holes = Holes.KEEP,
        at_stop: CleanEnd | None = None,
        unlink: Unlink | None = None,
    ) -> Steps[Log]:
        """Open the log in ``directory``, and recover it unless the last stop was ``clean``. Pause every few ms.

        ``at_stop`` are its files at the last clean stop. If they have changed, the log is recovered too.

        With ``high_watermark``, the checkpointed one, the log's high watermark starts there, not at the log start.
        A log without records has no files: the first append creates them. ``unlink`` gets the files that are no longer
        part of the log, and a delay in ms. Without ``unlink``, the log deletes them at once. Raises
        KAFKA_STORAGE_ERROR, and LostRecordsError if ``holes`` says so.
        """
        unlink = unlink or partial(unlink_now, disk)
        loader = Loader(disk, directory, config, now_ms)
        try:
            loaded = yield from loader.load(
                recovery_point=recovery_point,
                clean=clean,
                log_start=log_start_offset,
                high_watermark=high_watermark,
                holes=holes,
                at_stop=at_stop,
            )
        except OSError as error:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot open {topic}-{partition}: {error}") from error
        unlink(loaded.deleted, 0)
        segments = partial(new_segment, disk, directory, now_ms)
        files = LogFiles(disk, directory, topic_id, config, segments, loaded, unlink)
        log = cls(topic, partition, config, files, loaded)
        log.advance_high_watermark(high_watermark or 0)
        return log

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def closed(self) -> bool:
        """Return whether the log is closed: it neither reads nor writes."""
        return self._access.closed

    @property
    def has_files(self) -> bool:
        """Return whether the log has files. The first append creates them, which takes longer than other appends."""
        return self._files.exist

    @property
    def statistics(self) -> LogStatistics:
        """Return the counters since the log was opened."""
        return self._admission.statistics

    # --- appending ---

    def append_as_leader(
        self,
        records: memoryview | bytearray | bytes,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transaction_version: int = 0,
        verified: bool = True,
        guard: int | None = None,
        validated: ValidBatches | None = None,
    ) -> AppendResult:
        """Append the batches of one request, and return their offsets. Offsets and epoch are patched in place.

        A client's request has one batch, a coordinator's one or more. ``validated`` is the result of `validate` for
        these records, if the caller has it. ``transaction_version`` applies to markers. ``verified`` and ``guard`` say
        that the coordinator has confirmed the transaction (see `start_verification`).

        Raises the errors of `validate`, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        UNKNOWN_PRODUCER_ID, TRANSACTION_COORDINATOR_FENCED, RECORD_LIST_TOO_LARGE, KAFKA_STORAGE_ERROR. After an error,
        nothing is appended.
        """
        batches = validated or self._validate(records, origin, now_ms)
        if origin == Origin.CLIENT and (known := self._find_duplicate(batches)):
            return known
        first = self.log_end_offset
        appends = self._admission.check(
            batches, first, origin, version=transaction_version, verified=verified, guard=guard
        )
        batches = assign_all_offsets(batches, first, leader_epoch)
        self._write(batches, appends, now_ms)
        header = batches.headers[0]
        append_time = header.max_timestamp if header.timestamp_type else -1
        return AppendResult(first, self.log_end_offset - 1, append_time, False, self.log_start_offset)

    def find_duplicate(
        self, records: memoryview | bytearray | bytes, *, now_ms: int, validated: ValidBatches | None = None
    ) -> AppendResult | None:
        """Return where the batch of a client's request is, if the log has it already. Append nothing.

        Raises the errors of `validate`, UNKNOWN_PRODUCER_ID.
        """
        return self._find_duplicate(validated or self._validate(records, Origin.CLIENT, now_ms))

    def _find_duplicate(self, batches: ValidBatches) -> AppendResult | None:
        known = self._admission.find_duplicate(batches.headers[0])
        if known is None:
            return None
        return AppendResult(known.first_offset, known.last_offset, known.timestamp, True, self.log_start_offset)

    def _validate(self, records: memoryview | bytearray | bytes, origin: Origin, now_ms: int) -> ValidBatches:
        view = memoryview(records)
        return validate(memoryview(bytearray(view)) if view.readonly else view, origin, self.config, now_ms)

    def appending_as_follower(
        self, records: memoryview | bytearray | bytes, *, leader_epoch: int, now_ms: int, pace: Pace
    ) -> Steps[int]:
        """Append the batches of a Fetch response as they are, with pauses. Return the new log end offset.

        In a pause, nothing else may append to the log. If the work ends in a pause, or a write fails, the batches that
        were written stay. If a batch is rejected, none is appended.

        Raises CORRUPT_MESSAGE, INVALID_RECORD, RECORD_LIST_TOO_LARGE, KAFKA_STORAGE_ERROR.
        """
        view = memoryview(records)
        base, start = batch_across(view, self.log_end_offset), self.log_start_offset
        end = self.log_end_offset if base is None else base
        latest, segment_bytes = self.epoch_at(end - 1), self.config.segment_bytes
        groups = yield from checking(view, end, latest, leader_epoch, segment_bytes, pace)
        if base is not None:
            self.truncate_to(base, now_ms)  # one step: in a pause, the replica could begin to lead with a stale state
            if self.log_end_offset < base:  # the log had a batch across the base: fetch again from its start
                return self.log_end_offset
        for batches in groups:
            segment = self._write_files(batches, now_ms)
            replay_all(self._state, batches, segment.txn_index, now_ms)
            if self.log_end_offset > start > self.log_start_offset:
                self.log_start_offset = start
                self.high_watermark = max(self.high_watermark, start)
            if pace.is_due(cost(len(batches.headers), len(batches.view))):
                yield
        return self.log_end_offset

    def append_control(
        self,
        commit: bool,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
        transaction_version: int,
    ) -> AppendResult:
        """Append a transaction marker. See `append_as_leader`."""
        marker = build_control_batch(
            commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now_ms,
        )
        return self.append_as_leader(
            marker,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            origin=Origin.COORDINATOR,
            transaction_version=transaction_version,
        )

    def start_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, transaction_version: int, now_ms: int
    ) -> int | None:
        """Return the guard of an append after the coordinator has confirmed the transaction (KIP-890).

        Return None if the transaction is already open here, and needs no confirmation. A marker that arrives before the
        confirmation invalidates the guard. Raises INVALID_PRODUCER_EPOCH for a stale epoch.
        """
        try:
            return self._state.start_verification(
                producer_id, producer_epoch, sequence, strict=transaction_version >= 2, now_ms=now_ms
            )
        except ProtocolError as error:
            self._admission.count(error)
            raise

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether the producer has an open transaction with exactly this epoch.

        Raises INVALID_PRODUCER_EPOCH for an epoch older than the last one seen.
        """
        self._state.check_epoch(producer_id, producer_epoch)
        return self._state.has_open_transaction(producer_id, producer_epoch)

    def void_verifications(self) -> None:
        """End all verifications, because the term of the leader has ended. Appends that wait for one fail."""
        self._state.void_verifications()

    def _write(self, batches: ValidBatches, appends: dict[int, ProducerAppend], now_ms: int) -> None:
        """Write checked and numbered batches with one write, then update the state in memory."""
        segment = self._write_files(batches, now_ms)
        if appends:
            commit_producers(self._state, batches.headers, appends.values(), segment.txn_index, now_ms)
        self._state.end_offset = self.log_end_offset

    def _write_files(self, batches: ValidBatches, now_ms: int) -> Segment:
        """Write batches with one write, and add them to the indexes. Return their segment."""
        headers = batches.headers
        last = headers[-1]
        with self._access.to("append to"):
            segment = self._files.segment_for(last, len(batches.view), now_ms)
            self._epochs.assign_batches(headers)
            try:
                segment.write(batches.view)
            except OSError:  # the new epoch has not begun; the next start removes it from the file
                self._epochs.truncate_from_end(self.log_end_offset)
                raise
        for header in headers:
            segment.commit(header, header.last_offset, header.max_timestamp)
        self.log_end_offset = last.next_offset
        return segment

    def creation(self, folder: str) -> Callable[[], None]:
        """Return work for a worker thread: it creates the first files of this log in another directory."""
        return self._files.creation(folder)

    def take_files(self, folder: str) -> bool:
        """Take the files that `creation` has created in ``folder``. Return False if the log has files already."""
        with self._access.to("create"):
            return self._files.take(folder)

    # --- reading ---

    def read(
        self, offset: int, max_bytes: int, *, upto: int, at_least_one: bool, shared: bool = False
    ) -> bytes | memoryview:
        """Return whole batches, from the one with ``offset`` to the last one before ``upto``.

        At most ``max_bytes``, unless ``at_least_one`` and the first batch is larger. One segment at most is read.
        With ``shared``, the caller only sends the bytes (see `File.view`).
        Raises OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is outside the range of {self!r}")
        if offset >= upto:
            return b""
        with self._access.to("read"):
            return self.segments.read(
                offset, max_bytes, upto=upto, end_offset=self.log_end_offset, at_least_one=at_least_one, shared=shared
            )

    def aborted_transactions(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions with records in ``[start, end)``."""
        return self.segments.aborted_transactions(start, end)

    def search_timestamp(self, timestamp: int, start_offset: int) -> TimeStep | None:
        """Search for the first record at or after ``start_offset`` with at least this timestamp, in one short step.

        Return None if there is no such record. The log may change between two steps.
        """
        with self._access.to("read"):
            return self.segments.search_timestamp(timestamp, max(start_offset, self.log_start_offset))

    def batch_of_max_timestamp(self) -> TimeStep | None:
        """Return the first batch with the largest timestamp, if there is a record."""
        with self._access.to("read"):
            return self.segments.batch_of_max_timestamp()

    # --- offsets, epochs, producers ---

    def reconfigure(self, config: LogConfig) -> None:
        """Use other settings from now on, but those of indexes from the next segment on."""
        self.config = self._files.config = config
        self._state.expiration_ms = config.producer_id_expiration_ms

    @property
    def leader_epoch(self) -> int | None:
        """Return the epoch of the last leader that wrote here, or None."""
        return self._epochs.latest

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which ``offset`` was (or will be) written, -1 if it is unknown."""
        epoch = self._epochs.epoch_for(offset)
        return UNDEFINED_EPOCH if epoch is None else epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above ``epoch``, and its end offset; (-1, -1) if it is unknown (KIP-101)."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    @property
    def producer_entries(self) -> Mapping[int, ProducerEntry]:
        """Return the state of each producer. Callers must not change it."""
        return self._state.entries

    def producers(self) -> list[ProducerInfo]:
        """Return all producers, including expired ones that `expire_producers` has not dropped yet."""
        return self._state.infos()

    def expire_producers(self, now_ms: int) -> int:
        """Drop the producers that were idle for too long. Return their number."""
        return self._state.expire(now_ms)

    # --- files ---

    @property
    def size_bytes(self) -> int:
        """Return the size of all segments."""
        return self._files.size_bytes

    def roll(self, now_ms: int) -> None:
        """Start a new segment, unless the active one is empty."""
        with self._access.to("roll"):
            self._files.roll(now_ms)

    def pending_sync(self) -> tuple[int, list[str]]:
        """Return an offset, and the files to sync so that all records before it are on the device (see `mark_synced`).

        The active segment is not among them: only `flush` and `close` sync it, as in Kafka by default.
        """
        end = self.segments.active.base_offset
        if end <= self.recovery_point:
            return self.recovery_point, []
        return end, self._files.sync_paths(self.recovery_point, end)

    def mark_synced(self, offset: int) -> None:
        """Record that the files of `pending_sync` are on the device."""
        self.recovery_point = max(self.recovery_point, offset)

    def flush(self) -> None:
        """Sync all files. Afterwards, `recovery_point` is the end of the log."""
        if self.has_files:
            self.sync(self._write_unsynced())
            self.mark_synced(self.log_end_offset)

    def close(self) -> None:
        """Complete and sync the files, so that the next start is quick: indexes, and a producer snapshot at the end."""
        if not self.closed:
            self.sync(self.finish())
            self.mark_synced(self.log_end_offset)
            self.discard()

    def finish(self) -> list[str]:
        """Do the part of `close` that writes, and return the paths to sync.

        The caller then calls `sync`, `mark_synced` and `discard`. So it can sync several logs at the same time.
        """
        if self.closed or not self.has_files:
            return []
        with self._access.to("close"):
            self._files.finish()
        return self._write_unsynced()

    def _write_unsynced(self) -> list[str]:
        """Write what is in memory. Return the paths to sync before all offsets are on the device."""
        start, end = self.recovery_point, self.log_end_offset
        if self.truncations:  # the active segment may have been cut at the recovery point, also to no records
            start = min(start, self.segments.active.base_offset)
            end = max(end, start + 1)
        elif start >= end and not self.unsynced:
            return []
        with self._access.to("flush"):
            self._files.write()
            return self._files.sync_paths(start, end)

    def sync(self, paths: Sequence[str]) -> None:
        """Sync these files of the log. May be called from a worker thread. Raises KAFKA_STORAGE_ERROR."""
        if paths:
            with self._access.to("flush"):
                self._files.sync(paths)

    def clean_end(self) -> CleanEnd | None:
        """Return what the files are now, for the `at_stop` of the next opening. Return None if the log has no files."""
        return clean_end(list(self.segments), self.log_end_offset) if self.has_files else None

    def discard(self) -> None:
        """Close a log without writing, because its files are complete, or will be deleted."""
        self._access.closed = True
        for segment in self.segments:
            segment.close()

    def advance_log_start(self, offset: int) -> None:
        """Advance the log start to ``offset`` (DeleteRecords, retention). `delete_old_segments` deletes the files.

        Raises OFFSET_OUT_OF_RANGE if it is after the high watermark.
        """
        if offset > self.high_watermark:
            message = f"offset {offset} is after the high watermark {self.high_watermark}"
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self._epochs.truncate_from_start(offset)
            self._state.advance_log_start(offset)

    def finishing_snapshot(self, offset: int) -> Steps[list[str]]:
        """Finish the producer snapshot of the last roll, with pauses. Raises KAFKA_STORAGE_ERROR.

        Return what to sync so that the first snapshot at or after ``offset`` survives a crash of the machine.
        """
        finished = self.closed
        while not finished:
            with self._access.to("write a producer snapshot of"):
                finished = self._files.advance_snapshot()
            if not finished:
                yield
                finished = self.closed
        return self._files.snapshot_paths(offset)

    def delete_old_segments(self, stored_start: int, most: int | None = None) -> int:
        """Delete segments before the log start, at most ``most`` if it is given. Return their number.

        ``stored_start`` is a log start offset that is in a checkpoint, and for which `finishing_snapshot` has ended.
        Recovery takes the absence of a later segment for a loss, so those are kept. Later rolls do not matter: the
        finished snapshot remains. Do not change a closed log: its directory may have another name now, or belong to a
        new topic.
        """
        if self.closed:
            return 0
        with self._access.to("delete segments of"):
            return self._files.delete_before(min(stored_start, self.log_start_offset), most)

    def replace_segments(self, old: list[Segment], new: Segment) -> None:
        """Replace ``old`` by a compacted segment, whose files end in ``.swap``. Recovery completes a failed change."""
        with self._access.to("compact"), torn_on_failure():
            deleted = self._files.replace(old, new)
        self.unlink(deleted, self.config.file_delete_delay_ms)
