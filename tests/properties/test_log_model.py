"""Test the log against a model: a list of batches, and for each producer what it wrote.

Hypothesis appends idempotent, transactional and plain batches, markers, correct and wrong sequences and epochs. It
rolls, stops cleanly, kills the process, tears the last write, and loses indexes and snapshots. After each step, the
log's answers are compared with the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import iter_batches
from support.crashdisk import CrashDisk
from support.logs import FOLDER, NOW, append, batch, end_txn, of_producer, open_log, values

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150)
PIDS = st.integers(1, 3)
REMEMBERED = 5


@dataclass
class Batch:
    """A batch of the model. ``producer_id`` is -1 for a plain one."""

    first: int
    count: int
    value: bytes
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    txn: bool = False
    commit: bool | None = None
    """The outcome of a marker, or None for data."""

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass
class Producer:
    epoch: int = -1
    next_sequence: int = 0
    txn_start: int | None = None
    batches: list[Batch] = field(default_factory=list)


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.disk = CrashDisk()
        self.log: Log = open_log(self.disk, CONFIG)
        self.batches: list[Batch] = []
        self.counter = 0
        self.flushed = 0

    # --- the model ---

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def producer(self, producer_id: int) -> Producer:
        """Replay the batches of the producer."""
        state = Producer()
        for written in self.batches:
            if written.producer_id != producer_id:
                continue
            if written.epoch != state.epoch:
                state.epoch, state.batches, state.next_sequence = written.epoch, [], 0
            if written.commit is not None:
                state.txn_start = None
                continue
            state.batches = [*state.batches, written][-REMEMBERED:]
            state.next_sequence = written.sequence + written.count
            if written.txn and state.txn_start is None:
                state.txn_start = written.first
        return state

    @property
    def open_transactions(self) -> list[int]:
        starts = (self.producer(producer_id).txn_start for producer_id in (1, 2, 3))
        return sorted(start for start in starts if start is not None)

    @property
    def stable_end(self) -> int:
        return min([*self.open_transactions, self.end])

    def aborted(self) -> list[tuple[int, int, int]]:
        """Return (producer id, first offset, offset of the marker)."""
        found = []
        starts: dict[int, int] = {}
        for written in self.batches:
            if written.commit is None and written.txn:
                starts.setdefault(written.producer_id, written.first)
            elif written.commit is not None and written.producer_id in starts:
                start = starts.pop(written.producer_id)
                if not written.commit:
                    found.append((written.producer_id, start, written.first))
        return found

    def value(self) -> bytes:
        self.counter += 1
        return b"%d" % self.counter

    # --- appending ---

    @rule(count=st.integers(1, 3))
    def append_plain(self, count: int) -> None:
        value = self.value()
        assert append(self.log, batch(count, value=value)).first_offset == self.end
        self.batches.append(Batch(self.end, count, value))

    @rule(producer_id=PIDS, count=st.integers(1, 3), new_epoch=st.booleans(), txn=st.booleans())
    def append_next(self, producer_id: int, count: int, new_epoch: bool, txn: bool) -> None:
        producer = self.producer(producer_id)
        epoch = max(producer.epoch, 0) + (new_epoch and producer.epoch >= 0)
        sequence = producer.next_sequence if epoch == producer.epoch else 0
        txn = txn or producer.txn_start is not None
        value = self.value()
        records = of_producer(producer_id, sequence, count, epoch=epoch, txn=txn, value=value)
        result = append(self.log, records)
        assert (result.first_offset, result.duplicate) == (self.end, False)
        self.batches.append(Batch(self.end, count, value, producer_id, epoch, sequence, txn))

    @rule(producer_id=PIDS, back=st.integers(1, REMEMBERED + 1))
    def append_again(self, producer_id: int, back: int) -> None:
        """Retry a batch: it is recognized while it is remembered, and rejected as stale after that.

        If its transaction has ended, it may be a new batch of the next one.
        """
        producer = self.producer(producer_id)
        mine = [
            b for b in self.batches if b.producer_id == producer_id and b.commit is None and b.epoch == producer.epoch
        ]
        if back > len(mine):
            return
        old = mine[-back]
        records = of_producer(producer_id, old.sequence, old.count, epoch=old.epoch, txn=old.txn, value=old.value)
        ended = old.txn and (producer.txn_start is None or producer.txn_start > old.first)
        if old in producer.batches and ended:
            self.refused(records, ErrorCode.UNKNOWN_PRODUCER_ID)
        elif old in producer.batches:
            result = append(self.log, records)
            assert (result.duplicate, result.first_offset, result.last_offset) == (True, old.first, old.end - 1)
        else:
            self.refused(records, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    @rule(producer_id=PIDS, skip=st.integers(1, 5))
    def append_with_a_gap(self, producer_id: int, skip: int) -> None:
        producer = self.producer(producer_id)
        if producer.epoch >= 0:
            records = of_producer(
                producer_id,
                producer.next_sequence + skip,
                epoch=producer.epoch,
                txn=producer.txn_start is not None,
            )
            self.refused(records, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    @rule(producer_id=PIDS)
    def append_as_a_zombie(self, producer_id: int) -> None:
        producer = self.producer(producer_id)
        if producer.epoch > 0:
            self.refused(of_producer(producer_id, 0, epoch=producer.epoch - 1), ErrorCode.INVALID_PRODUCER_EPOCH)

    @rule(producer_id=PIDS)
    def append_outside_of_the_transaction(self, producer_id: int) -> None:
        producer = self.producer(producer_id)
        if producer.txn_start is not None:
            records = of_producer(producer_id, producer.next_sequence, epoch=producer.epoch)
            self.refused(records, ErrorCode.INVALID_TXN_STATE)

    def refused(self, records: bytearray, code: ErrorCode) -> None:
        with pytest.raises(ProtocolError) as caught:
            append(self.log, records)
        assert caught.value.code == code

    @rule(producer_id=PIDS, commit=st.booleans(), version=st.sampled_from([0, 2]))
    def end_transaction(self, producer_id: int, commit: bool, version: int) -> None:
        epoch = max(self.producer(producer_id).epoch, 0) + (1 if version == 2 else 0)
        end_txn(self.log, producer_id, commit=commit, epoch=epoch, version=version)
        self.batches.append(Batch(self.end, 1, b"", producer_id, epoch, txn=True, commit=commit))

    @rule(producer_id=PIDS, commit=st.booleans())
    def late_marker(self, producer_id: int, commit: bool) -> None:
        producer = self.producer(producer_id)
        if producer.txn_start is not None:
            with pytest.raises(ProtocolError) as caught:
                end_txn(self.log, producer_id, commit=commit, epoch=producer.epoch, version=2)
            assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule(torn=st.integers(0, 200), count=st.integers(1, 3))
    def append_while_the_disk_is_full(self, torn: int, count: int) -> None:
        self.disk.fail_at, self.disk.torn_bytes = self.disk.operations + 1, torn
        self.refused(batch(count, value=b"lost"), ErrorCode.KAFKA_STORAGE_ERROR)
        self.disk.kill()

    # --- stopping and starting ---

    def reopen(self, *, clean: bool) -> None:
        self.disk.kill()
        self.log = open_log(self.disk, CONFIG, clean=clean, recovery_point=self.log.recovery_point if clean else 0)
        self.log.advance_high_watermark(self.log.log_end_offset)

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self.flushed = self.end
        self.reopen(clean=True)

    @rule()
    def kill_and_start(self) -> None:
        self.reopen(clean=False)

    @precondition(lambda self: self.batches)
    @rule(torn=st.integers(1, 60))
    def kill_in_the_middle_of_a_write(self, torn: int) -> None:
        """The last batch is incomplete, and its append was not acknowledged."""
        active = self.log.segments.active
        if not active.size:
            return
        content = self.disk.files[active.path]
        del content.data[-torn:]
        if content.synced is not None and len(content.synced) > len(content.data):
            content.synced = bytes(content.data)
        self.batches.pop()
        self.flushed = min(self.flushed, self.end)
        self.reopen(clean=False)

    @rule(suffix=st.sampled_from([".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"]))
    def kill_and_lose_files(self, suffix: str) -> None:
        for path in [path for path in self.disk.files if path.endswith(suffix)]:
            del self.disk.files[path]
        self.reopen(clean=False)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end

    @rule(data=st.data())
    def crash_the_machine(self, data: st.DataObject) -> None:
        """Any part of the unflushed data may be lost; what remains is a prefix of the written data."""
        self.disk.crash(lambda low, high: data.draw(st.integers(low, high)))
        self.reopen(clean=False)
        end = self.log.log_end_offset
        assert end >= self.flushed
        self.batches = [written for written in self.batches if written.end <= end]

    # --- invariants ---

    @invariant()
    def offsets_agree(self) -> None:
        assert self.log.log_end_offset == self.log.high_watermark == self.end
        assert self.log.last_stable_offset == self.stable_end

    @invariant()
    def uncommitted_reading_sees_all(self) -> None:
        expected = [b.value for b in self.batches if b.commit is None for _ in range(b.count)]
        assert values(self.log, upto=self.end) == expected

    @invariant()
    def committed_reading_hides_open_and_aborted_transactions(self) -> None:
        end = self.stable_end
        aborted = self.aborted()
        hidden = {(pid, offset) for pid, first, last in aborted for offset in range(first, last)}
        expected = [
            b.value
            for b in self.batches
            if b.commit is None and b.end <= end and not (b.txn and (b.producer_id, b.first) in hidden)
        ]
        assert self.read_committed(end) == expected
        assert self.log.aborted_transactions(0, end) == [
            (pid, first) for pid, first, _ in sorted(aborted, key=lambda row: row[2]) if first < end
        ]

    def read_committed(self, end: int) -> list[bytes]:
        """Filter with the list of aborted transactions, as a consumer does."""
        found: list[bytes] = []
        offset = 0
        while offset < end:
            data = self.log.read(offset, 400, upto=end, at_least_one=True)
            headers = [header for header, _ in iter_batches(data)]
            pending = sorted(self.log.aborted_transactions(offset, headers[-1].next_offset), key=lambda row: row[1])
            hidden: set[int] = set()
            for header in headers:
                while pending and pending[0][1] <= header.last_offset:
                    hidden.add(pending.pop(0)[0])
                if header.is_control:
                    hidden.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in hidden):
                    mine = next(b for b in self.batches if b.first == header.base_offset)
                    found += [mine.value]
            offset = headers[-1].next_offset
        return found

    @invariant()
    def producers_agree(self) -> None:
        for info in self.log.producers():
            producer = self.producer(info.producer_id)
            assert (info.producer_epoch, info.current_txn_start_offset) == (
                producer.epoch,
                -1 if producer.txn_start is None else producer.txn_start,
            )
            assert info.last_sequence == producer.next_sequence - 1

    @invariant()
    def files_are_in_the_folder(self) -> None:
        assert all(path.startswith(FOLDER + "/") for path in self.disk.files)


LogMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLog = LogMachine.TestCase
