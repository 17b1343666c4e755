"""Group commit: sync logs for appends that wait for a sync (`flush.messages`) or that are old enough (`flush.ms`).

Each log directory has one round of syncs in flight, in a worker thread. All requests that arrive during a round share
the next one. A round syncs the segments and the names of new files, because recovery needs them. It does not sync
indexes, because recovery can rebuild them.

A failed sync takes the directory offline and is not repeated. Waiting appends get KAFKA_STORAGE_ERROR. If the process
only has too many open files, the round is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

from oncelog.broker.retrying import shortage_backoff
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.workers import Runtime, Workers
from oncelog.cluster.replica import Replica
from oncelog.log.disk import TOO_MANY_OPEN
from oncelog.log.guarded_disk import GuardedDisk
from oncelog.protocol.errors import ProtocolError

CLOSING_JOBS = 8
"""The number of worker threads that sync logs while they are closed."""
NEVER = 2**63 - 1
"""The `flush.ms` that leaves syncs to the operating system."""


class Flusher:
    """The implementation of `oncelog.cluster.replica.Flush`."""

    def __init__(self, directories: LogDirectories, runtime: Runtime) -> None:
        self._directories = directories
        self._workers = runtime.workers
        self._logger = runtime.logger
        self._due: dict[GuardedDisk, dict[Replica, None]] = {}
        self._running: set[GuardedDisk] = set()
        self._timers: dict[Replica, asyncio.TimerHandle] = {}
        self._written: dict[GuardedDisk, dict[str, None]] = {}
        self._syncing: set[GuardedDisk] = set()

    def now(self, replica: Replica) -> None:
        """Sync the replica's log in the next round of its directory."""
        disk = self._directories.disk_of(replica.log.directory)
        self._due.setdefault(disk, {})[replica] = None
        if disk not in self._running:
            self._running.add(disk)
            self._workers.spawn(self._run(disk), "flush")

    def later(self, replica: Replica) -> None:
        """Sync the replica's log when `flush.ms` has passed, unless a sync is scheduled already."""
        flush_ms = replica.log.config.flush_ms
        if flush_ms != NEVER and replica not in self._timers:
            self._timers[replica] = asyncio.get_running_loop().call_later(flush_ms / 1000, self._aged, replica)

    def files(self, replica: Replica) -> None:
        """Sync the small files of the replica's log (leader epochs, partition metadata), and their names.

        Kafka syncs these files when it writes them. Recovery works without them, so no append waits for this sync.
        """
        log = replica.log
        disk = self._directories.disk_of(log.directory)
        paths = [*log.unsynced, log.directory, log.directory.rpartition("/")[0]]
        log.unsynced.clear()
        self._written.setdefault(disk, {}).update(dict.fromkeys(paths))
        if disk not in self._syncing:
            self._syncing.add(disk)
            self._workers.spawn(self._sync_written(disk), "sync small files")

    async def _sync_written(self, disk: GuardedDisk) -> None:
        """Sync the small files of one disk until none is left. If there is no free file descriptor, wait and retry."""
        backoff = shortage_backoff()
        try:
            while paths := self._written.pop(disk, None):
                try:
                    await self._workers.on_disk(disk, _sync_each, disk, list(paths))
                    backoff.reset()
                    continue
                except OSError as error:
                    self._logger.error("cannot sync the epoch and metadata files of logs: %s", error)
                    if error.errno not in TOO_MANY_OPEN:
                        return  # the directory is offline
                self._written[disk] = paths | self._written.get(disk, {})
                await asyncio.sleep(backoff.next_s())
        finally:
            self._syncing.discard(disk)

    def close(self) -> None:
        """Cancel the syncs that `later` has scheduled. The broker closes the logs next, which syncs them."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _aged(self, replica: Replica) -> None:
        del self._timers[replica]
        if replica.synced_offset < replica.log.log_end_offset and not _is_closed(replica):
            self.now(replica)

    async def _run(self, disk: GuardedDisk) -> None:
        backoff = shortage_backoff()
        try:
            while due := self._due.pop(disk, None):
                if await self._round(disk, [replica for replica in due if not _is_closed(replica)]):
                    backoff.reset()
                    continue
                self._due[disk] = due | self._due.get(disk, {})
                await asyncio.sleep(backoff.next_s())
        finally:
            self._running.discard(disk)

    async def _round(self, disk: GuardedDisk, replicas: list[Replica]) -> bool:
        """Sync all waiting logs in one job of a worker thread. Return False if the caller must retry."""
        ends = [
            (replica, replica.log.log_end_offset, replica.log.segments.active.base_offset, replica.log.truncations)
            for replica in replicas
        ]
        paths = [self._paths(replica) for replica in replicas]
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            missing = await self._workers.on_disk(disk, _sync_all, disk, paths)
            self._directories.syncs.add(began, clock())
        except OSError as error:
            self._logger.error("cannot sync logs: %s", error)
            return error.errno not in TOO_MANY_OPEN  # any other error takes the directory offline
        for (replica, end, base, truncations), lost in zip(ends, missing, strict=True):
            if _is_closed(replica):
                continue
            if truncations != replica.log.truncations:  # other records may be at these offsets now
                self.now(replica)
            elif lost is None:
                replica.synced_names = base
                replica.synced(end)
            elif lost in self._paths(replica):
                disk.fail(FileNotFoundError(2, "a segment file is missing", lost))
            else:  # a compacted segment has replaced it, and was synced before that
                self.now(replica)
        return True

    def _paths(self, replica: Replica) -> list[str]:
        log = replica.log
        paths = [segment.path for segment in log.segments.holding(replica.synced_offset)]
        if replica.synced_names != log.segments.active.base_offset:
            paths += [log.directory, log.directory.rpartition("/")[0]]
        return paths


def _is_closed(replica: Replica) -> bool:
    return replica.offline or replica.log.closed


def _sync_each(disk: GuardedDisk, paths: list[str]) -> None:
    """Sync files and directories. Skip missing ones, because their topic was deleted. Blocks. Raises OSError."""
    for path in paths:
        with suppress(FileNotFoundError):
            disk.sync(path)


def _sync_all(disk: GuardedDisk, logs: list[list[str]]) -> list[str | None]:
    """Sync the files of each log. Return for each log its first missing file, or None. Blocks. Raises OSError."""
    missing: list[str | None] = []
    synced: set[str] = set()
    for paths in logs:
        lost = None
        for path in paths:
            try:
                if path not in synced:
                    disk.sync(path)
                    synced.add(path)
            except FileNotFoundError:
                lost = path
                break
        missing.append(lost)
    return missing


async def close_logs(replicas: Collection[Replica], workers: Workers) -> dict[Replica, Exception]:
    """Close logs, and return the errors. Several worker threads sync, because each sync waits for the device."""
    failed: dict[Replica, Exception] = {}
    finished: list[tuple[Replica, list[str]]] = []
    for replica in replicas:
        try:
            finished.append((replica, replica.log.finish()))
        except (OSError, ProtocolError) as error:
            failed[replica] = error
    jobs = (workers.offload(_sync_logs, finished[first::CLOSING_JOBS]) for first in range(CLOSING_JOBS))
    for errors in await asyncio.gather(*jobs):
        failed.update(errors)
    for replica, _ in finished:
        if replica not in failed:
            replica.log.mark_synced(replica.log.log_end_offset)
            replica.log.discard()
    return failed


def _sync_logs(logs: Sequence[tuple[Replica, list[str]]]) -> dict[Replica, Exception]:
    """Sync the given files of logs, and return the errors. Blocks."""
    failed: dict[Replica, Exception] = {}
    for replica, paths in logs:
        try:
            replica.log.sync(paths)
        except ProtocolError as error:
            failed[replica] = error
    return failed
