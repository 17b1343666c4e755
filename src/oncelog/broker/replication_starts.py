"""The log start offsets of followers. A follower reports one to its leader only when it is in a checkpoint.

The leader acknowledges DeleteRecords when all followers have reported the new log start. If a crash could undo it, a
follower that is elected after the crash would return deleted records. In Kafka, it does.
"""

from __future__ import annotations

from oncelog.broker.storage.checkpoints import Checkpoints
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.workers import Workers
from oncelog.cluster.replica import Replica


class StartOffsets:
    """Write the checkpoints of replicas whose log start has advanced. Replicas of one directory share the writes."""

    def __init__(self, checkpoints: Checkpoints, directories: LogDirectories, workers: Workers) -> None:
        self._checkpoints = checkpoints
        self._directories = directories
        self._workers = workers
        self._due: dict[DataDirectory, dict[Replica, int]] = {}
        """The log start offsets to write. One task works on each directory."""

    def store(self, replica: Replica) -> None:
        """Write the log start offset of a replica soon, and record in the replica that it is stored."""
        directory = self._directories.holding(replica.log.directory)
        due = self._due.get(directory)
        if due is None:
            due = self._due[directory] = {}
            self._workers.spawn(self._write(directory, due), f"store log start offsets in {directory.path}")
        due[replica] = replica.log.log_start_offset

    async def _write(self, directory: DataDirectory, due: dict[Replica, int]) -> None:
        try:
            while due:
                starts = tuple(due.items())
                if await self._checkpoints.write([directory]):
                    for replica, start in starts:
                        if due[replica] == start:
                            del due[replica]
                        replica.start_stored(start)
                elif not directory.online:  # otherwise, no file descriptor was free for some seconds
                    return
        finally:
            del self._due[directory]
