"""One round of compaction, in steps between which the event loop serves other requests.

A round writes a new segment beside the old ones (``.cleaned``), syncs it, renames it (``.swap``), and deletes the old
ones last. If the process dies, `log.leftovers` completes or rolls back the change at the next start. The log is not
locked: clients append to it and read it meanwhile. If it is truncated or closed, the round ends. Source: Kafka's
``Cleaner`` and ``LocalLog.replaceSegments``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from oncelog.log.cleaning.batches import BatchFilter, CleanedTransactions, RetainedBatch, last_records
from oncelog.log.cleaning.offsets import OffsetMap
from oncelog.log.cleaning.plan import Plan, group_segments
from oncelog.log.cleaning.reading import SegmentReader
from oncelog.log.disk import Disk
from oncelog.log.leftovers import CLEANED_SUFFIX, SWAP_SUFFIX, retire
from oncelog.log.segment import SEGMENT_SUFFIXES, Segment
from oncelog.protocol.records import decode_records, iter_batches


class CleaningStep(NamedTuple):
    """A piece of work that the caller runs before the round continues."""

    run: Callable[[], object]
    io_bytes: int = 0
    """Bytes that this step or the one before reads or writes, for ``log.cleaner.io.max.bytes.per.second``."""
    slow: bool = False
    """Whether it waits for the device, or computes for long. Then it should run in a worker thread."""


CleaningSteps = Generator[CleaningStep, None, None]


class CleaningAbortedError(Exception):
    """The log was closed or truncated, or has lost segments of this round, so the round ends."""


class CleaningResult(NamedTuple):
    """The result of a round: the log is clean up to ``end``."""

    end: int
    bytes_read: int
    bytes_written: int
    keys: int


class Cleaning:
    """One round of one log. `run` yields the steps. `result` is valid after the last one."""

    def __init__(self, plan: Plan, disk: Disk, now_ms: int, *, max_keys: int) -> None:
        self._plan = plan
        self._log = plan.log
        self._truncations = plan.log.truncations
        self._disk = disk
        self._now_ms = now_ms
        self._map = OffsetMap(max_keys)
        self._mapping = CleanedTransactions(plan.log.segments.aborted_between(plan.first_dirty, plan.end))
        self._read = 0
        self._written = 0
        self._found: list[RetainedBatch] = []
        self._unfinished: Segment | None = None

    @property
    def result(self) -> CleaningResult:
        """Return the result."""
        return CleaningResult(self._map.latest + 1, self._read, self._written, len(self._map))

    @property
    def is_void(self) -> bool:
        """Return whether the log was closed or truncated since the round began.

        An error of such a round does not mean that the log is damaged.
        """
        return self._log.closed or self._log.truncations != self._truncations

    def run(self) -> CleaningSteps:
        """Clean the log. Raises CleaningAbortedError, OSError, and ProtocolError if a batch is damaged.

        After each of these errors, the log contains whole segments only, some of which may be cleaned.
        """
        try:
            yield from self._index_keys()
            yield from self._load_indexes()
            log = self._log
            # A segment is rewritten as a whole, even if the map was full before its last key.
            aborted = log.segments.aborted_between(log.segments.first_offset, self._plan.end)
            rules = BatchFilter(
                self._map,
                transactions := CleanedTransactions(aborted),
                last_records(log.producer_entries),
                now_ms=self._now_ms,
                delete_retention_ms=log.config.delete_retention_ms,
            )
            for group in group_segments(self._plan, self._map.latest + 1):
                yield from self._clean_group(group, rules, transactions)
        finally:
            self._log.discard_swap = None
            if self._unfinished is not None:
                self._unfinished.close()
                with suppress(OSError):  # the directory is offline then, and the next start deletes the files
                    self._discard(self._unfinished.base_offset)

    def _discard(self, base_offset: int) -> None:
        """Delete the files of an unfinished segment; some of them may have been renamed."""
        stem = f"{self._log.directory}/{base_offset:020d}"
        # If there is a .cleaned file, recovery ignores .swap files.
        paths = [stem + kind + suffix for suffix in (SWAP_SUFFIX, CLEANED_SUFFIX) for kind in SEGMENT_SUFFIXES]
        for path in paths:
            if self._disk.exists(path):
                self._log.unlink([retire(self._disk, path)], 0)

    def _check(self, segments: list[Segment]) -> None:
        """Raise CleaningAbortedError unless the segments are still part of the log."""
        if self.is_void or not all(segment in self._log.segments for segment in segments):
            raise CleaningAbortedError(f"{self._log!r} changed during its compaction")

    # --- the dirty part: find the last offset of each key ---

    def _index_keys(self) -> CleaningSteps:
        plan = self._plan
        dirty = [segment for segment in self._log.segments.holding(plan.first_dirty) if segment.base_offset < plan.end]
        if not dirty:
            raise CleaningAbortedError(f"{self._log!r} has nothing to compact")
        ends = [segment.base_offset for segment in dirty[1:]] + [plan.end]
        self._map.latest = plan.first_dirty - 1
        for segment, end in zip(dirty, ends, strict=True):
            self._check([segment])
            start = segment.position_of(plan.first_dirty) if segment.base_offset < plan.first_dirty else 0
            full: list[bool] = []
            reader = SegmentReader(self._disk, segment, start)
            while not reader.done:
                yield CleaningStep(reader.fill, slow=True)
                self._check([segment])
                for chunk, slow in reader.chunks():
                    yield CleaningStep(partial(self._index_chunk, chunk, full), len(chunk), slow)
                    self._check([segment])
                    if full:
                        return
            self._map.latest = end - 1

    def _index_chunk(self, chunk: memoryview, full: list[bool]) -> None:
        offsets, first_dirty = self._map, self._plan.first_dirty
        for header, view in iter_batches(chunk):
            if header.is_control:
                self._mapping.is_spent(header, view)
            elif not self._mapping.is_aborted(header):
                for record in decode_records(view):
                    if (
                        record.key is not None
                        and record.offset >= first_dirty
                        and not offsets.put(record.key, record.offset)
                    ):
                        full.append(True)
                        return
            offsets.latest = max(offsets.latest, header.last_offset)

    # --- the whole part: copy what stays ---

    def _load_indexes(self) -> CleaningSteps:
        """Read the indexes of the segments one at a time. Their sizes determine the groups."""
        segments = [segment for segment in self._log.segments if segment.base_offset <= self._map.latest]
        for segment in segments:
            self._check([segment])
            yield CleaningStep(segment.index_bytes)
        self._check(segments)

    def _clean_group(
        self, group: list[Segment], rules: BatchFilter, transactions: CleanedTransactions
    ) -> CleaningSteps:
        self._check(group)
        cleaned = self._unfinished = self._segment_for(group)
        self._discard(cleaned.base_offset)
        cleaned.create()
        keep_end = group[-1].next_offset()
        known = len(transactions.retained)
        for segment in group:
            reader = SegmentReader(self._disk, segment, 0)
            while not reader.done:
                yield CleaningStep(reader.fill, slow=True)
                self._check(group)
                for chunk, slow in reader.chunks():
                    yield CleaningStep(partial(self._filter_chunk, rules, chunk, keep_end), len(chunk), slow)
                    self._check(group)
                    self._read += len(chunk)
                    yield CleaningStep(partial(self._write, cleaned), sum(len(batch.data) for batch in self._found))
                    self._check(group)
        for aborted in transactions.retained[known:]:
            cleaned.txn_index.append(aborted)
        cleaned.finish()
        for path in cleaned.sync_paths():
            yield CleaningStep(partial(self._disk.sync, path), slow=True)
        self._check(group)
        self._log.discard_swap = partial(self._discard, cleaned.base_offset)
        cleaned.rename(SWAP_SUFFIX)
        yield CleaningStep(partial(self._disk.sync, self._log.directory), slow=True)
        self._check(group)
        self._unfinished = self._log.discard_swap = None
        self._log.replace_segments(group, cleaned)
        self._written += cleaned.size
        yield CleaningStep(partial(self._disk.sync, self._log.directory), slow=True)

    def _filter_chunk(self, rules: BatchFilter, chunk: memoryview, keep_end: int) -> None:
        self._found = rules.filter(chunk, keep_end)

    def _write(self, cleaned: Segment) -> None:
        if self._found:
            cleaned.write(b"".join(batch.data for batch in self._found))
        for header, _ in self._found:
            cleaned.commit(header, header.last_offset, header.max_timestamp)

    def _segment_for(self, group: list[Segment]) -> Segment:
        config = self._log.config
        return Segment(
            self._disk,
            self._log.directory,
            group[0].base_offset,
            size=0,
            new=True,
            index_bytes=config.segment_index_bytes,
            interval=config.index_interval_bytes,
            now_ms=max(each.created_ms for each in group),
            suffix=CLEANED_SUFFIX,
        )
