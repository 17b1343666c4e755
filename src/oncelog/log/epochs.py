"""The leader epochs of a partition and their start offsets (``leader-epoch-checkpoint``).

Source: KIP-101, KIP-279; Kafka's ``LeaderEpochFileCache``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from oncelog.log.checkpoint import CorruptCheckpointError, decode_checkpoint, encode_checkpoint
from oncelog.log.disk import Disk, read_if_exists
from oncelog.protocol.records import BatchHeader

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
FIRST_EPOCH = 0
FILE_NAME = "leader-epoch-checkpoint"


class LeaderEpochs:
    """Epochs with their start offsets, both growing. Changes reach the file at `flush`.

    A log in its first epoch has no file until then, which saves a file in each new log. Recovery finds the epoch in the
    log.
    """

    __slots__ = ("_dirty", "_disk", "_epochs", "_starts", "_stored", "path", "unsynced")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._dirty = False
        self._stored = False
        """Whether a file may exist."""
        self.unsynced: list[str] = []
        """The file, if it was written. A caller that syncs it removes it from the list."""

    def load(self) -> None:
        """Read the file. A missing or damaged one counts as empty, because recovery finds the epochs in the log."""
        self._stored = True
        try:
            data = read_if_exists(self._disk, self.path) or b""
            rows = [(int(epoch), int(start)) for epoch, start in decode_checkpoint(data)]
        except (CorruptCheckpointError, ValueError):
            rows = []
            self._dirty = True
        self._epochs = [epoch for epoch, _ in rows]
        self._starts = [start for _, start in rows]

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Return all (epoch, start offset)."""
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int | None:
        """Return the last epoch, or None."""
        return self._epochs[-1] if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Add ``epoch``, which begins at ``start_offset``. Return whether it is new."""
        if epoch < 0 or (self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]):
            return False
        while self._epochs and (self._epochs[-1] >= epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self._dirty = True
        return True

    def assign_batches(self, headers: list[BatchHeader]) -> None:
        """Add the epochs of batches before they are appended. If the file cannot be written, add none."""
        if headers[-1].partition_leader_epoch == self.latest == headers[0].partition_leader_epoch and (
            not self._dirty or self.may_wait
        ):
            return
        before = self.entries
        for header in headers:
            self.assign(header.partition_leader_epoch, header.base_offset)
        if self.may_wait:
            return
        try:
            self.flush()
        except OSError:
            self._restore(before)
            raise

    @property
    def may_wait(self) -> bool:
        """Return whether the file can be written later. Without a file, the epoch is 0."""
        return not self._stored and self._epochs == [FIRST_EPOCH]

    def _restore(self, entries: list[tuple[int, int]]) -> None:
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]

    def flush(self) -> None:
        """Write the file, if the epochs have changed."""
        if self._dirty:
            rows = (f"{epoch} {start}" for epoch, start in zip(self._epochs, self._starts, strict=True))
            self._disk.atomic_write(self.path, encode_checkpoint(rows))
            self._dirty = False
            self._stored = True
            if self.path not in self.unsynced:
                self.unsynced.append(self.path)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch not above ``epoch``, and its end offset; (-1, -1) if it is unknown."""
        if epoch == UNDEFINED_EPOCH or not self._epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        return (self._epochs[higher - 1] if higher else epoch), self._starts[higher]

    def epoch_for(self, offset: int) -> int | None:
        """Return the epoch in which ``offset`` was written, or None if it is unknown."""
        slot = bisect_right(self._starts, offset) - 1
        return self._epochs[slot] if slot >= 0 else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at or after ``end_offset``."""
        while self._starts and self._starts[-1] >= end_offset:
            self._epochs.pop()
            self._starts.pop()
            self._dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that ended before the last deleted record, which is at ``start_offset - 1``.

        Keep the epoch of that record, and the offset at which this epoch began. A returning follower may have another
        record at ``start_offset - 1``, which a former leader never replicated. The leader detects it, because the
        follower's epoch ended where the kept epoch began. Kafka's `LeaderEpochFileCache.truncateFromStart` lets the
        kept epoch begin at ``start_offset``. So in Kafka, the follower keeps its record, and the producer's state.
        """
        slot = bisect_left(self._starts, start_offset) - 1
        if slot <= 0:
            return
        del self._epochs[:slot], self._starts[:slot]
        self._dirty = True

    def clear(self) -> None:
        """Drop all epochs."""
        self._dirty = self._dirty or bool(self._epochs)
        self._epochs.clear()
        self._starts.clear()
