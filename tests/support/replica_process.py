"""One broker's process in `ReplicaWorld`, and its disk, which outlives it."""

from __future__ import annotations

from dataclasses import dataclass, field

from oncelog.cluster.follower import Following
from oncelog.cluster.leader import Leadership
from oncelog.cluster.partition_state import PartitionState
from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from support.crashdisk import CrashDisk
from support.logs import open_log

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150)


class LeaderLog:
    """A log that needs no sync, as its term uses it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.advance_high_watermark = log.advance_high_watermark

    @property
    def stored_end(self) -> int:
        return self.log.log_end_offset


@dataclass
class Process:
    """One broker's process, and its disk, which outlives it."""

    number: int
    disk: CrashDisk = field(default_factory=CrashDisk)
    alive: bool = False
    incarnation: int = 0
    epoch: int = -1
    lost_unsynced: bool = False
    checkpoint: tuple[int, int, int] = (0, 0, 0)
    """Recovery point, high watermark and log start offset, as the checkpoint files have them."""
    log: Log | None = None
    term: Leadership | None = None
    following: Following | None = None
    seen: PartitionState | None = None
    writing: bool = False

    @property
    def open_log(self) -> Log:
        assert self.log is not None
        return self.log

    def start(self) -> None:
        """Start again: recover the log, and use the checkpoints."""
        self.alive = True
        self.incarnation += 1
        self.disk.kill()
        point, high_watermark, log_start = self.checkpoint
        self.log = open_log(
            self.disk, CONFIG, recovery_point=point, log_start_offset=log_start, high_watermark=high_watermark
        )
        self.term = self.following = self.seen = None
        self.writing = False

    def end_term(self) -> None:
        """End the term, which fails its waits and voids verifications."""
        if self.term is not None:
            self.term.end()
            self.term = None
            self.open_log.void_verifications()

    def write_checkpoint(self) -> None:
        """Write the checkpoint files."""
        log = self.open_log
        self.checkpoint = (log.recovery_point, log.high_watermark, log.log_start_offset)

    def flush(self) -> None:
        """Sync the log."""
        self.open_log.flush()
        self.write_checkpoint()
