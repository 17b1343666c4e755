"""The invariants of a replicated partition, checked on logs and on a ledger of all batches that were ever written."""

from __future__ import annotations

from collections.abc import Iterable

from oncelog.log.log import Log
from oncelog.protocol.records import BatchHeader, iter_batches

Buffer = bytes | memoryview

Key = tuple[int, int]
"""(leader epoch, base offset) of a batch."""


def key_of(header: BatchHeader) -> Key:
    """Return the leader epoch and the base offset of a batch."""
    return header.partition_leader_epoch, header.base_offset


class InvariantError(AssertionError):
    """An invariant is violated. `number` is the one of the cluster's design brief."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(f"invariant {number}: {message}")
        self.number = number


class Ledger:
    """What leaders have written, committed and exposed."""

    def __init__(self) -> None:
        self.committed: dict[int, Key] = {}
        """The batch at each committed base offset."""
        self._batches: dict[Key, tuple[bytes, Key | None]] = {}
        self._leaders: dict[int, tuple[int, int]] = {}
        self._exposed: dict[int, int] = {}

    def lead(self, epoch: int, process: tuple[int, int]) -> None:
        """Record that a process (broker, incarnation) leads an epoch. No other one may."""
        if self._leaders.setdefault(epoch, process) != process:
            raise InvariantError(3, f"{process} leads epoch {epoch}, which {self._leaders[epoch]} has led")

    def note(self, log: Log) -> None:
        """Add the new batches of a log. Known ones must be equal, and have the same batch before them."""
        self.note_batches(batches(log), repr(log))

    def note_batches(
        self, found: Iterable[tuple[BatchHeader, Buffer]], where: str, before: Key | None = None
    ) -> Key | None:
        """Do the same with batches of a replica that follow the batch `before`. Return the last one."""
        for header, view in found:
            key = key_of(header)
            data = bytes(view)
            known = self._batches.setdefault(key, (data, before))
            if known[0] != data or (before is not None and known[1] not in (before, None)):
                raise InvariantError(1, f"{where} has another batch or another prefix at {key}")
            before = key
        return before

    def commit(self, log: Log) -> None:
        """Record that the batches of a leader's log below its high watermark are committed."""
        for header, _ in batches(log):
            if header.next_offset <= log.high_watermark:
                self.commit_batch(header)

    def commit_batch(self, header: BatchHeader) -> None:
        """Record that a batch is below a high watermark that a leader has exposed."""
        key = key_of(header)
        if self.committed.setdefault(header.base_offset, key) != key:
            raise InvariantError(2, f"{key} is committed, after {self.committed[header.base_offset]}")

    def expose(self, epoch: int, high_watermark: int | None) -> None:
        """Record the high watermark that consumers of a leader see, which must not be below an earlier one."""
        if high_watermark is None:
            return
        before = max((seen for other, seen in self._exposed.items() if other <= epoch), default=0)
        if high_watermark < before:
            raise InvariantError(4, f"the leader of epoch {epoch} exposes {high_watermark} after {before}")
        self._exposed[epoch] = high_watermark

    def check_leader(self, log: Log, epoch: int) -> None:
        """Check that the log of a new leader has all committed batches."""
        self.check_complete(
            [header for header, _ in batches(log)], f"the leader of epoch {epoch}", log.log_start_offset
        )

    def check_complete(self, headers: Iterable[BatchHeader], who: str, log_start: int = 0) -> None:
        """Check that a replica with these batches has all committed ones."""
        found = {header.base_offset: header.partition_leader_epoch for header in headers}
        for offset, (written, _) in self.committed.items():
            if offset >= log_start and found.get(offset) != written:
                raise InvariantError(2, f"{who} lacks offset {offset} of epoch {written}")


def check_equal(one: Log, two: Log) -> None:
    """Compare the producers and aborted transactions of two logs with the same batches, and all of them."""
    if one.log_start_offset or two.log_start_offset:
        return
    found = [
        (
            {
                entry.producer_id: (entry.epoch, entry.last_sequence, entry.txn_start, entry.coordinator_epoch)
                for entry in log.producer_entries.values()
            },
            log.segments.aborted_between(0, log.log_end_offset),
        )
        for log in (one, two)
    ]
    if found[0] != found[1]:
        raise InvariantError(6, f"{one!r} and {two!r} have the producers and aborted transactions {found}")


def check_offsets(log: Log) -> None:
    stable, high_watermark, end = log.last_stable_offset, log.high_watermark, log.log_end_offset
    if not stable <= high_watermark <= end:
        raise InvariantError(7, f"LSO {stable}, HW {high_watermark}, LEO {end}")
    undecided: dict[int, int] = {}
    for header, _ in batches(log):
        if header.is_control and header.last_offset < high_watermark:
            undecided.pop(header.producer_id, None)
        elif header.is_transactional and not header.is_control:
            undecided.setdefault(header.producer_id, header.base_offset)
    first = min(undecided.values(), default=stable)
    if stable > max(first, log.log_start_offset):
        raise InvariantError(7, f"LSO {stable} is after the undecided transaction at {first}; HW {high_watermark}")


def batches(log: Log) -> list[tuple[BatchHeader, memoryview]]:
    """Return all batches of a log."""
    found: list[tuple[BatchHeader, memoryview]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, upto=log.log_end_offset, at_least_one=True)
        if not data:
            break
        found += iter_batches(data)
        offset = found[-1][0].next_offset
    return found


def last_key(log: Log) -> Key:
    """Return the epoch and the base offset of the last batch."""
    found = batches(log)
    return key_of(found[-1][0]) if found else (-1, -1)
