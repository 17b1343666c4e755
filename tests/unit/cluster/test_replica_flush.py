"""What recovery finds is on the device before it counts as committed, where `flush.messages` asks for it."""

from __future__ import annotations

from uuid import UUID

from oncelog.cluster.replica import Replica
from oncelog.log.config import LogConfig
from oncelog.protocol.records import Record, build_batch
from support.logs import NOW, append, new_log, open_log


def test_what_recovery_found_is_synced_first() -> None:
    config = LogConfig(flush_messages=1)
    disk, log = new_log(config)
    append(log, build_batch([Record(0, NOW, None, b"x")]))
    assert log.recovery_point == 0
    disk.kill()
    replica = Replica("t", 0, UUID(int=1), open_log(disk, config), 0)
    assert (replica.log.high_watermark, replica.synced_offset, replica.log.recovery_point) == (1, 1, 1)


def test_without_the_setting_nothing_is_synced() -> None:
    disk, log = new_log(LogConfig())
    append(log, build_batch([Record(0, NOW, None, b"x")]))
    disk.kill()
    replica = Replica("t", 0, UUID(int=1), open_log(disk, LogConfig()), 0)
    assert (replica.log.high_watermark, replica.log.recovery_point) == (1, 0)
