"""The log start offsets of followers. A follower reports one to its leader only when it is in a checkpoint.

The leader acknowledges DeleteRecords when all live and all in-sync followers have reported the new log start. If a
crash could undo a reported log start, a follower that is elected afterwards would return deleted records. This happens
in Kafka.
"""

from __future__ import annotations

import asyncio

from oncelog.broker.storage.checkpoints import Checkpoints
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.workers import Runtime
from oncelog.cluster.replica import Replica

RETRY_S = 1.0
"""The pause after an unexpected error."""


class StartOffsets:
    """Write the checkpoints of replicas whose log start has advanced. Replicas of one directory share the writes."""

    def __init__(self, checkpoints: Checkpoints, directories: LogDirectories, runtime: Runtime) -> None:
        self._checkpoints = checkpoints
        self._directories = directories
        self._workers = runtime.workers
        self._logger = runtime.logger
        self._due: dict[DataDirectory, dict[Replica, int]] = {}
        """The log start offsets to write. One task works on each directory."""

    @property
    def is_writing(self) -> bool:
        """Return whether a replica soon has another offset to report."""
        return bool(self._due)

    def store(self, replica: Replica) -> None:
        """Write the log start offset of a replica soon, and record in the replica that it is stored."""
        directory = self._directories.holding(replica.log.directory)
        due = self._due.get(directory)
        if due is None:
            due = self._due[directory] = {}
            self._workers.spawn(self._write(directory, due), f"store log start offsets in {directory.path}")
        due[replica] = replica.log.log_start_offset

    async def _write(self, directory: DataDirectory, due: dict[Replica, int]) -> None:
        """Write until all offsets are stored. Between two rounds, wait as long as the last one has taken."""
        loop = asyncio.get_running_loop()
        try:
            while due:
                starts, began = tuple(due.items()), loop.time()
                try:
                    written = await self._checkpoints.write([directory])
                except Exception:  # followers without a stored start must not stay out of the ISR
                    self._logger.exception("cannot store log start offsets in %s", directory.path)
                    await asyncio.sleep(RETRY_S)
                    continue
                if not written and not directory.online:
                    return
                for replica, start in starts if written else ():  # otherwise, no file descriptor was free
                    if due[replica] == start:
                        del due[replica]
                    replica.start_stored(start)
                if due:
                    await asyncio.sleep(loop.time() - began)
        finally:
            del self._due[directory]
