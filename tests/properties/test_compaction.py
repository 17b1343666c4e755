"""Test compaction against a model: the list of all batches that were ever written.

Hypothesis writes plain, idempotent and transactional batches of few keys in all codecs, tombstones and markers. It
rolls, compacts with little memory while it continues to write, fails the disk or kills the process at any step,
advances the time, moves the log start offset, and loses snapshots and indexes. After each step, the log is compared
with the model: what must be present, what may be present, and what must be removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncelog.log.cleaning.clean import Cleaning
from oncelog.log.cleaning.plan import make_plan
from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.protocol.compression import Codec
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import BatchHeader, Record, build_batch, decode_control, decode_records, iter_batches
from support.crashdisk import CrashDisk
from support.logs import NOW, append, delete_old_segments, end_txn, open_log

RETENTION_MS = 1000
CONFIG = LogConfig(
    segment_bytes=400,
    index_interval_bytes=100,
    compact=True,
    delete=False,
    delete_retention_ms=RETENTION_MS,
    min_cleanable_ratio=0.0,
)
PIDS = st.integers(1, 3)
KEYS = st.sampled_from([b"a", b"b", b"c", b"a key of more than sixteen bytes", b""])
PAIRS = st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=3)
CODECS = st.sampled_from(Codec)


@dataclass
class Written:
    """A batch of the model. ``commit`` is the outcome of a marker."""

    first: int
    records: list[Record]
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    txn: bool = False
    commit: bool | None = None
    outcome: bool | None = field(default=None)
    """For transactional data: whether its transaction was committed, or None while it is open."""
    marker: int = -1

    @property
    def end(self) -> int:
        return self.first + max(1, len(self.records))


class CompactionMachine(RuleBasedStateMachine):
    @initialize(start_moves=st.sampled_from([False, False, True]))
    def start(self, start_moves: bool) -> None:
        self.start_moves = start_moves
        self.disk = CrashDisk()
        self.now = NOW
        self.deleted: set[str] = set()
        self.log: Log = open_log(self.disk, CONFIG, unlink=self.unlink)
        self.written: list[Written] = []
        self.checkpoint: int | None = None
        self.cleaned_to = 0
        self.first_cleaned_ms: dict[int, int] = {}
        self.counter = 0

    # --- writing ---

    @property
    def end(self) -> int:
        return self.written[-1].end if self.written else 0

    def last_of(self, producer_id: int) -> Written | None:
        return next((each for each in reversed(self.written) if each.producer_id == producer_id), None)

    def records(self, pairs: list[tuple[bytes, bool]]) -> list[Record]:
        rows = []
        for index, (key, tombstone) in enumerate(pairs):
            self.counter += 1
            value = None if tombstone else b"v%d" % self.counter
            rows.append(Record(self.end + index, self.now + index % 2, key, value, (("n", b"%d" % self.counter),)))
        return rows

    def write(self, pairs: list[tuple[bytes, bool]], codec: Codec, **producer: int | bool) -> Written:
        records = self.records(pairs)
        batch = Written(self.end, records, **producer)  # type: ignore[arg-type]
        data = build_batch(
            records,
            codec=codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.epoch,
            base_sequence=batch.sequence,
            transactional=batch.txn,
        )
        assert append(self.log, data, now_ms=self.now).first_offset == batch.first
        self.written.append(batch)
        return batch

    @rule(pairs=PAIRS, codec=CODECS)
    def write_plain(self, pairs: list[tuple[bytes, bool]], codec: Codec) -> None:
        self.write(pairs, codec)

    @rule(producer_id=PIDS, pairs=PAIRS, codec=CODECS, txn=st.booleans())
    def write_next(self, producer_id: int, pairs: list[tuple[bytes, bool]], codec: Codec, txn: bool) -> None:
        known = {info.producer_id: info for info in self.log.producers()}
        epoch, sequence = 0, 0
        if producer_id in known:  # its state is lost if the log start offset moved and no snapshot was left
            epoch, sequence = known[producer_id].producer_epoch, known[producer_id].last_sequence + 1
            txn = txn or known[producer_id].current_txn_start_offset >= 0
        self.write(pairs, codec, producer_id=producer_id, epoch=epoch, sequence=sequence, txn=txn)

    @rule(producer_id=PIDS, commit=st.booleans(), bump=st.booleans())
    def end_transaction(self, producer_id: int, commit: bool, bump: bool) -> None:
        last = self.last_of(producer_id)
        if last is None:
            return
        epoch = last.epoch + bump
        end_txn(self.log, producer_id, commit=commit, epoch=epoch, version=2 if bump else 0, now_ms=self.now)
        marker = Written(self.end, [], producer_id, epoch, txn=True, commit=commit, outcome=commit)
        for each in self.written:
            if each.producer_id == producer_id and each.txn and each.outcome is None:
                each.outcome, each.marker = commit, marker.first
        self.written.append(marker)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule(ms=st.integers(1, 2 * RETENTION_MS))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    # --- compacting ---

    def clean(self, max_keys: int, meanwhile: int = -1) -> None:
        plan = make_plan(self.log, self.checkpoint, self.now)
        assert plan.end <= self.log.last_stable_offset
        if not plan.is_due:
            return
        cleaning = Cleaning(plan, self.disk, self.now, max_keys=max_keys)
        with closing(cleaning.run()) as steps:
            for number, step in enumerate(steps):
                if number == meanwhile:
                    self.write([(b"a", False), (b"b", True)], Codec.NONE)
                    self.log.roll(self.now)
                step.run()
        end = cleaning.result.end
        assert plan.first_dirty < end <= plan.end
        self.checkpoint = end
        self.note_cleaned(plan.end, end)

    def note_cleaned(self, segments_end: int, end: int) -> None:
        """Nothing after ``end`` is missing. Tombstones up to ``segments_end`` may have got their delete horizon."""
        self.cleaned_to = max(self.cleaned_to, end)
        for each in self.written:
            if each.first < segments_end:
                self.first_cleaned_ms.setdefault(each.first, self.now)

    @rule(
        max_keys=st.integers(1, 6),
        meanwhile=st.integers(-1, 30),
        wait_ms=st.sampled_from([0, 1, RETENTION_MS]),
        more=st.lists(KEYS, max_size=5, unique=True),
    )
    def compact(self, max_keys: int, meanwhile: int, wait_ms: int, more: list[bytes]) -> None:
        self.now += wait_ms
        if more:
            self.write([(key, False) for key in more], Codec.NONE)
            self.log.roll(self.now)
        self.clean(max_keys, meanwhile)

    @rule(fail_in=st.integers(1, 60), torn=st.integers(0, 100), max_keys=st.integers(1, 6))
    def compact_while_the_disk_fails(self, fail_in: int, torn: int, max_keys: int) -> None:
        """The log stays as it was, or is offline until the next start."""
        self.disk.fail_at, self.disk.torn_bytes = self.disk.operations + fail_in, torn
        segments_end = make_plan(self.log, self.checkpoint, self.now).end
        with suppress(OSError, ProtocolError):
            self.clean(max_keys)
        self.disk.fail_at = None
        self.note_cleaned(segments_end, segments_end)
        if self.is_offline():
            self.kill_and_start()

    def unlink(self, paths: Sequence[str], delay_ms: int) -> None:
        assert not self.deleted.intersection(paths), "a file that was not yet unlinked was replaced"
        self.deleted.update(paths)

    @rule()
    def unlink_deleted(self) -> None:
        for path in self.deleted:
            del self.disk.files[path]
        self.deleted.clear()

    def is_offline(self) -> bool:
        try:
            self.log.read(self.log.log_start_offset, 10, upto=self.end, at_least_one=True)
        except ProtocolError as error:
            return error.code == ErrorCode.KAFKA_STORAGE_ERROR
        return False

    @rule(fail_in=st.integers(1, 60), torn=st.integers(0, 100), max_keys=st.integers(1, 6))
    def die_while_compacting(self, fail_in: int, torn: int, max_keys: int) -> None:
        plan = make_plan(self.log, self.checkpoint, self.now)
        if not plan.is_due:
            return
        self.disk.fail_at, self.disk.torn_bytes = self.disk.operations + fail_in, torn
        cleaning = Cleaning(plan, self.disk, self.now, max_keys=max_keys)
        with suppress(OSError, ProtocolError), closing(cleaning.run()) as steps:
            for step in steps:
                try:
                    step.run()
                except OSError:
                    self.disk.broken = True  # no file can be deleted any more
                    raise
        self.note_cleaned(plan.end, plan.end)
        self.kill_and_start()

    # --- other events of a log ---

    @rule(lost=st.sampled_from([".snapshot", ".snapshot", ".txnindex", ".index", ".timeindex", "epoch-checkpoint"]))
    def kill_and_start(self, lost: str = "") -> None:
        self.disk.kill()
        for path in [path for path in self.disk.files if lost and path.endswith(lost)]:
            del self.disk.files[path]
        self.deleted.clear()
        self.log = open_log(self.disk, CONFIG, self.now, log_start_offset=self.log.log_start_offset, unlink=self.unlink)
        self.log.advance_high_watermark(self.log.log_end_offset)

    @rule()
    def stop_and_start(self) -> None:
        start = self.log.log_start_offset
        self.log.close()
        self.deleted.clear()
        self.log = open_log(self.disk, CONFIG, self.now, clean=True, log_start_offset=start, unlink=self.unlink)
        self.log.advance_high_watermark(self.log.log_end_offset)

    @precondition(lambda self: self.written and self.start_moves)
    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        self.log.advance_log_start(int(self.end * part * part))
        delete_old_segments(self.log)

    # --- invariants ---

    def found(self) -> list[tuple[BatchHeader, list[Record]]]:
        rows: list[tuple[BatchHeader, list[Record]]] = []
        offset = self.log.log_start_offset
        while offset < self.end:
            data = self.log.read(offset, 200, upto=self.end, at_least_one=True)
            assert data, f"nothing from {offset} up to {self.end}"
            before = offset
            for header, view in iter_batches(data):
                rows.append((header, decode_records(view)))
                if header.is_control and header.count:
                    decode_control(view)
                offset = header.next_offset
            assert offset > before
        return rows

    @invariant()
    def log_end_is_unchanged(self) -> None:
        assert self.log.log_end_offset == self.log.high_watermark == self.end

    @invariant()
    def records_equal_the_written_ones(self) -> None:
        model = {record.offset: record for each in self.written for record in each.records}
        batches = {each.first: each for each in self.written}
        before = -1
        for header, records in self.found():
            each = batches[header.base_offset]
            assert before < header.base_offset
            before = header.last_offset
            assert (header.last_offset, header.producer_id) == (each.end - 1, each.producer_id)
            assert (header.producer_epoch, header.base_sequence) == (each.epoch, each.sequence)
            assert (header.is_transactional, header.is_control) == (each.txn, each.commit is not None)
            if not header.is_control:
                assert all(record == model[record.offset] for record in records)

    @invariant()
    def last_record_of_each_key_is_kept(self) -> None:
        start = self.log.log_start_offset
        there = {record.offset for _, records in self.found() for record in records}
        last: dict[bytes | None, tuple[Written, Record]] = {}
        for each in self.written:
            if each.outcome is not False:
                last.update({record.key: (each, record) for record in each.records})
        for each, record in last.values():
            first_seen = self.first_cleaned_ms.get(each.first)
            dead = record.value is None and first_seen is not None and self.now >= first_seen + RETENTION_MS
            assert record.offset in there or record.offset < start or dead

    @invariant()
    def uncompacted_records_are_kept(self) -> None:
        """Aborted records may be removed whenever a segment is rewritten."""
        start = max(self.cleaned_to, self.log.log_start_offset)
        left = [each for each in self.written if each.outcome is not False]
        expected = [record.offset for each in left for record in each.records if record.offset >= start]
        firsts = {each.first for each in left}
        found = [records for header, records in self.found() if header.base_offset in firsts and not header.is_control]
        there = [record.offset for records in found for record in records if record.offset >= start]
        assert there == expected

    @invariant()
    def marker_is_kept_as_long_as_its_data(self) -> None:
        found = self.found()
        markers = {header.base_offset for header, records in found if header.is_control and records}
        batches = {each.first: each for each in self.written}
        for header, _ in found:
            each = batches[header.base_offset]
            if each.txn and each.commit is None and each.outcome is not None:
                assert each.marker in markers

    @invariant()
    def aborted_data_is_listed(self) -> None:
        """Every aborted batch in the log belongs to a transaction in the list for consumers."""
        start = self.log.log_start_offset
        aborted = self.log.aborted_transactions(start, self.end)
        batches = {each.first: each for each in self.written}
        for header, _ in self.found():
            each = batches[header.base_offset]
            if each.outcome is False and each.commit is None:
                assert any(pid == each.producer_id and first <= each.first for pid, first in aborted)

    @invariant()
    def producers_are_known(self) -> None:
        """Whatever was compacted and however the log was opened, as long as its start offset did not move."""
        if self.log.log_start_offset:
            return
        for info in self.log.producers():
            last = self.last_of(info.producer_id)
            assert last is not None
            mine = [b for b in self.written if b.producer_id == info.producer_id and b.epoch == last.epoch]
            data = [each for each in mine if each.commit is None]
            sequence = data[-1].sequence + len(data[-1].records) - 1 if data else -1
            assert (info.producer_epoch, info.last_sequence) == (last.epoch, sequence)
            started = [
                b.first for b in self.written if b.producer_id == info.producer_id and b.txn and b.outcome is None
            ]
            assert info.current_txn_start_offset == (started[0] if started else -1)
        assert len(self.log.producers()) == len({b.producer_id for b in self.written} - {-1})

    @invariant()
    def keys_are_unique_in_the_clean_part(self) -> None:
        """After an undisturbed round has processed it."""
        if self.checkpoint is None:
            return
        seen = [
            record.key
            for header, records in self.found()
            if not header.is_control
            for record in records
            if self.log.log_start_offset <= record.offset < self.checkpoint
        ]
        assert len(seen) == len(set(seen))

    @invariant()
    def no_temporary_file_is_left(self) -> None:
        left = {path for path in self.disk.files if path.endswith((".cleaned", ".swap", ".deleted"))}
        assert left == self.deleted


CompactionMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestCompaction = CompactionMachine.TestCase
