"""Write the transaction markers that coordinators decide on, and retry until each partition has its marker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.broker.storage.new_logs import NewLogs
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.workers import Workers
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.replica import Replica
from oncelog.coordinator.effects import Markers
from oncelog.coordinator.transactions.coordinator import TransactionCoordinator
from oncelog.coordinator.transactions.decisions import MarkerResult, marker_result
from oncelog.protocol.errors import ErrorCode, ProtocolError

_BACKOFF_MS = 20
_MAX_BACKOFF_MS = 1000
MARKERS_A_TURN = 20
"""Markers that are written before other requests have their turn."""

Partition = tuple[str, int]


class MarkerWriter:
    """Write markers for the transaction coordinators of one broker."""

    def __init__(
        self,
        shell: CoordinatorShell[TransactionCoordinator],
        cache: MetadataCache,
        partitions: Partitions,
        new_logs: NewLogs,
        workers: Workers,
        *,
        now_ms: Callable[[], int],
        logger: logging.Logger,
    ) -> None:
        self._shell = shell
        self._cache = cache
        self._partitions = partitions
        self._new_logs = new_logs
        self._workers = workers
        self._now_ms = now_ms
        self._logger = logger
        self._closed = False

    def close(self) -> None:
        """Write nothing from now on."""
        self._closed = True

    def write(self, all_markers: list[Markers]) -> None:
        """Write these markers soon, after the coordinator's response to the client."""
        for markers in all_markers:
            asyncio.get_running_loop().call_soon(self._write_markers, markers, _BACKOFF_MS)

    def _write_markers(self, markers: Markers, backoff_ms: int) -> None:
        """Write the markers and report them to the coordinator. Retry those that fail."""
        if len(markers.partitions) <= MARKERS_A_TURN:
            self._write_some(markers, backoff_ms)
        else:
            self._workers.spawn(self._write_many(markers, backoff_ms), "write markers")

    async def _write_many(self, markers: Markers, backoff_ms: int) -> None:
        for first in range(0, len(markers.partitions), MARKERS_A_TURN):
            some = markers.partitions[first : first + MARKERS_A_TURN]
            await self._new_logs.create(filter(None, map(self._replica, some)))
            self._write_some(replace(markers, partitions=some), backoff_ms)
            await asyncio.sleep(0)

    def _write_some(self, markers: Markers, backoff_ms: int) -> None:
        if self._closed:
            return
        try:
            coordinator_partition = self._shell.partition_for(markers.transactional_id)
            shard = self._shell.shard(coordinator_partition)
        except ProtocolError as error:
            self._logger.info("leaving the markers of %r to its new coordinator: %s", markers.transactional_id, error)
            return
        if not shard.needs(markers):
            return
        deleted = {partition for partition in markers.partitions if self._is_deleted(partition)}
        results = {
            partition: self._write_marker(markers, partition)
            for partition in markers.partitions
            if partition not in deleted
        }
        written = [partition for partition, code in results.items() if code is ErrorCode.NONE]
        self._partitions.when_committed(
            written,
            lambda lost: self._markers_written(coordinator_partition, markers, results | lost, deleted, backoff_ms),
        )

    def _replica(self, partition: Partition) -> Replica | None:
        try:
            return self._partitions.get(*partition)
        except ProtocolError:  # writing the marker reports the error
            return None

    def _markers_written(
        self,
        coordinator_partition: int,
        markers: Markers,
        results: dict[Partition, ErrorCode],
        deleted: set[Partition],
        backoff_ms: int,
    ) -> None:
        """Report the written markers to the coordinator, and retry the others later."""
        try:
            shard = self._shell.shard(coordinator_partition)
        except ProtocolError as error:
            self._logger.info("leaving the markers of %r to its new coordinator: %s", markers.transactional_id, error)
            return
        self._shell.apply(
            coordinator_partition, shard.markers_written(markers, results, self._now_ms(), deleted=deleted)
        )
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in results.values():
            return
        # A partition that knows a later epoch rejects the marker. The other partitions still need theirs.
        rest = tuple(partition for partition, error in results.items() if marker_result(error) is MarkerResult.RETRY)
        if rest:
            asyncio.get_running_loop().call_later(
                backoff_ms / 1000,
                self._write_markers,
                replace(markers, partitions=rest),
                min(2 * backoff_ms, _MAX_BACKOFF_MS),
            )

    def _is_deleted(self, partition: Partition) -> bool:
        return self._cache.image.partition(*partition) is None

    def _write_marker(self, markers: Markers, partition: Partition) -> ErrorCode:
        try:
            self._partitions.append_marker(
                *partition,
                commit=markers.commit,
                producer_id=markers.producer_id,
                producer_epoch=markers.producer_epoch,
                coordinator_epoch=markers.coordinator_epoch,
                transaction_version=markers.transaction_version,
            )
        except ProtocolError as error:
            self._logger.warning(
                "cannot write the marker of %r (producer id %d, epoch %d) to %s-%d: %s",
                markers.transactional_id,
                markers.producer_id,
                markers.producer_epoch,
                *partition,
                error,
            )
            return error.code
        return ErrorCode.NONE
