"""Read the offsets of all logs in a directory for its checkpoints, while the event loop serves other requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from oncelog.broker.storage.data_directory import DataDirectory, LogOffsets, Offsets
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.roles import Roles
from oncelog.cluster.replica import Replica
from oncelog.log.log import Log
from oncelog.log.steps import Steps
from oncelog.protocol.topics import TopicPartition

LOGS_A_STEP = 2000
"""The logs whose offsets are read in one step, which takes some ms."""


class LogOffsetReader:
    """Read the offsets of open logs, and those in the checkpoints of the others."""

    def __init__(self, directories: LogDirectories, replicas: Mapping[TopicPartition, Replica], roles: Roles) -> None:
        """`replicas` has the open logs."""
        self._directories = directories
        self._replicas = replicas
        self._roles = roles

    def all(self, directory: DataDirectory) -> Steps[LogOffsets]:
        """Return the recovery point, log start offset and high watermark of each log in a directory, with pauses.

        A log that the broker has not opened keeps its checkpointed offsets.
        """
        points = yield from self._offsets(directory, directory.recovery_points, attrgetter("recovery_point"))
        starts = yield from self._offsets(directory, directory.start_offsets, attrgetter("log_start_offset"))
        return LogOffsets(points, starts, (yield from self.high_watermarks(directory)))

    def high_watermarks(self, directory: DataDirectory) -> Steps[Offsets]:
        """Return the high watermark of each log in a directory, with pauses. See `all`."""
        return self._offsets(directory, directory.high_watermarks, attrgetter("high_watermark"))

    def _offsets(self, directory: DataDirectory, checkpointed: Offsets, of: Callable[[Log], int]) -> Steps[Offsets]:
        """Return one offset of each log in a directory, with a pause after some logs.

        If a log is deleted in a pause, the result may have its offset. `Deletions.is_stale` is true until a later round
        has ended.
        """
        find, hosts, replicas = self._directories.find, self._roles.hosts, self._replicas
        found: Offsets = {}
        opened, known = tuple(replicas), tuple(checkpointed)
        for start in range(0, len(opened), LOGS_A_STEP):
            for key in opened[start : start + LOGS_A_STEP]:
                if key in replicas and find(*key) is directory:
                    found[key] = of(replicas[key].log)
            yield
        for start in range(0, len(known), LOGS_A_STEP):
            for key in known[start : start + LOGS_A_STEP]:
                if key not in found and key in checkpointed and hosts(*key):
                    found[key] = checkpointed[key]
            yield
        return found
