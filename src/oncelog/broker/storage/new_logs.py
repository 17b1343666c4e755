"""Create the files of many new logs, outside the event loop.

A file system may take milliseconds to create a file, and longer while it syncs others. A worker thread therefore
creates the files in a temporary directory, and the event loop renames that directory. Until then, the log has no files:
any other append may create them, and a deletion of the topic finds none. The name of the temporary directory is that of
a deleted partition. If the broker dies, the next start of oncelog or Apache Kafka removes the directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from oncelog.broker.storage.data_directory import DELETE_SUFFIX
from oncelog.broker.storage.log_directories import NAME_MAX, LogDirectories
from oncelog.broker.storage.unlinker import Unlinker
from oncelog.broker.turns import ITEMS_A_TURN, NEW_LOG_ITEMS
from oncelog.broker.workers import Runtime
from oncelog.cluster.replica import Replica
from oncelog.log.guarded_disk import GuardedDisk
from oncelog.protocol.errors import ProtocolError

FEW = ITEMS_A_TURN // NEW_LOG_ITEMS
"""Up to this number of new logs, the appends themselves create the files."""
LOGS_A_JOB = 20
"""Logs whose files one job of a worker thread creates."""


class NewLogs:
    """Create the files of new logs for one broker."""

    def __init__(self, directories: LogDirectories, unlinker: Unlinker, runtime: Runtime) -> None:
        self._directories = directories
        self._unlinker = unlinker
        self._workers = runtime.workers
        self._now_ms = runtime.now_ms
        self._numbers = count()
        self._creating: dict[GuardedDisk, asyncio.Lock] = {}

    async def create(self, replicas: Iterable[Replica]) -> None:
        """Create the files of the logs that have none, unless at most `FEW` logs have none.

        This is only preparation: an append creates the files that are still missing, and reports the errors.
        """
        new = [replica for replica in replicas if not replica.log.has_files]
        if len(new) <= FEW:
            return
        done = asyncio.get_running_loop().create_future()
        self._workers.spawn(self._create(new, done), "create log files")  # a job ends even if the caller is cancelled
        await done

    async def _create(self, replicas: Sequence[Replica], done: asyncio.Future[None]) -> None:
        try:
            by_disk: dict[GuardedDisk, list[Replica]] = {}
            for replica in replicas:
                by_disk.setdefault(self._directories.disk_of(replica.log.directory), []).append(replica)
            jobs = [self._create_on(disk, each, done) for disk, each in by_disk.items()]
            await (asyncio.gather(*jobs) if len(jobs) > 1 else jobs[0])
        finally:
            if not done.done():
                done.set_result(None)

    async def _create_on(self, disk: GuardedDisk, replicas: Sequence[Replica], done: asyncio.Future[None]) -> None:
        for first in range(0, len(replicas), LOGS_A_JOB):
            if done.done():  # the caller was cancelled
                return
            await self._create_some(disk, replicas[first : first + LOGS_A_JOB])

    async def _create_some(self, disk: GuardedDisk, replicas: Sequence[Replica]) -> None:
        new = [(replica, self._temporary(replica)) for replica in replicas if not replica.log.closed]
        works = [replica.log.creation(folder) for replica, folder in new]
        creating = self._creating.setdefault(disk, asyncio.Lock())
        async with creating:  # one job at a time, because other work needs the threads of this directory too
            created = await self._workers.on_disk(disk, _create_each, works)
        for number, (replica, folder) in enumerate(new[: created + 1]):
            if number == created or not _take(replica, folder):
                self._unlinker.folders(disk, [folder], 0)

    def _temporary(self, replica: Replica) -> str:
        """Return a path that no other directory has or had."""
        root = replica.log.directory.rpartition("/")[0]
        unique = f"{self._now_ms():x}-{next(self._numbers):x}"
        return f"{root}/{replica.topic[:NAME_MAX]}-{replica.partition}.{unique}{DELETE_SUFFIX}"


def _take(replica: Replica, folder: str) -> bool:
    try:
        return replica.log.take_files(folder)
    except ProtocolError:  # the log was closed or has gone offline meanwhile
        return False


def _create_each(works: Sequence[Callable[[], None]]) -> int:
    """Run all until one fails. Return how many have succeeded. Blocks."""
    for number, work in enumerate(works):
        try:
            work()
        except OSError:
            return number
    return len(works)
