"""With `flush.messages`, recovered records are synced before they count as committed."""

from __future__ import annotations

import pytest

from oncelog.cluster.replica import Replica
from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.records import Record, build_batch
from support.crashdisk import CrashDisk
from support.logs import NOW, append, leading_replica, new_log, open_log


class Asked:
    """Record a replica's calls of its flusher."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def now(self, replica: Replica) -> None:
        self.calls.append("now")

    def later(self, replica: Replica) -> None:
        self.calls.append("later")

    def files(self, replica: Replica) -> None:
        replica.log.unsynced.clear()


def killed(config: LogConfig) -> tuple[CrashDisk, Log]:
    """Return a disk with one record that was never synced, and the log that recovery opens."""
    disk, log = new_log(config)
    append(log, build_batch([Record(0, NOW, None, b"x")]))
    assert log.recovery_point == 0
    disk.kill()
    return disk, open_log(disk, config)


def test_recovered_records_are_committed_after_their_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, log = killed(LogConfig(flush_messages=1))
    # a constructor of a replica must not sync, because the event loop would wait
    monkeypatch.setattr(disk, "sync", None)
    asked = Asked()
    replica = leading_replica("t", log, flush=asked)
    assert (log.high_watermark, replica.synced_offset, asked.calls) == (0, 0, ["now"])
    outcomes: list[tuple[ErrorCode, int]] = []
    replica.when_committed(0, lambda error: outcomes.append((error, log.high_watermark)))
    assert not outcomes
    replica.synced(1)
    assert (log.high_watermark, replica.synced_offset, outcomes, asked.calls) == (1, 1, [(ErrorCode.NONE, 1)], ["now"])


def test_recovered_records_are_committed_at_once_without_flush_messages() -> None:
    _, log = killed(LogConfig())
    asked = Asked()
    replica = leading_replica("t", log, flush=asked)
    assert (log.high_watermark, log.recovery_point, replica.synced_offset, asked.calls) == (1, 0, 0, ["later"])
