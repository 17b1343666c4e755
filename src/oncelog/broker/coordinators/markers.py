"""Write the transaction markers that coordinators decide on, and retry until each partition has its marker.

This broker appends the markers of its own partitions. It sends the others to the brokers that lead them. An attempt
whose outcome is unknown is repeated: a second marker changes nothing in a partition that has the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from oncelog.broker.coordinators.marker_outbox import MarkerOutbox
from oncelog.broker.coordinators.partition_markers import PartitionMarkers
from oncelog.broker.coordinators.record_batches import EndMarker
from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.broker.peers import Peers
from oncelog.broker.retrying import wait_s
from oncelog.broker.workers import Runtime
from oncelog.cluster.commits import Commits
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.partition_state import state_path
from oncelog.cluster.replica import Replica
from oncelog.cluster.store import MetadataStore, StoreError
from oncelog.coordinator.effects import Markers
from oncelog.coordinator.transactions.coordinator import TransactionCoordinator
from oncelog.coordinator.transactions.decisions import MarkerResult, marker_result
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import TopicPartition

_RETRY_MS = 20, 1000
MARKERS_A_TURN = 20
"""Markers that are written before other requests have their turn."""


class MarkerWriter:
    """Write markers for the transaction coordinators of one broker."""

    def __init__(
        self,
        shell: CoordinatorShell[TransactionCoordinator],
        cache: MetadataCache,
        store: MetadataStore,
        appender: PartitionMarkers,
        peers: Peers,
        runtime: Runtime,
    ) -> None:
        self._shell = shell
        self._cache = cache
        self._store = store
        self._appender = appender
        self._peers = peers
        self._outbox = MarkerOutbox(peers, runtime.workers)
        self._workers = runtime.workers
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger
        self._closed = False

    def close(self) -> None:
        """Write nothing from now on."""
        self._closed = True

    def write(self, all_markers: list[Markers]) -> None:
        """Write these markers soon, after the coordinator's response to the client."""
        for markers in all_markers:
            asyncio.get_running_loop().call_soon(self._write_markers, markers, 0)

    def _write_markers(self, markers: Markers, failures: int) -> None:
        """Write the markers and report them to the coordinator. Retry those that fail, after `failures` attempts."""
        if len(markers.partitions) <= MARKERS_A_TURN:
            self._write_some(markers, failures)
        else:
            self._workers.spawn(self._write_many(markers, failures), "write markers")

    async def _write_many(self, markers: Markers, failures: int) -> None:
        for first in range(0, len(markers.partitions), MARKERS_A_TURN):
            some = markers.partitions[first : first + MARKERS_A_TURN]
            await self._appender.create_logs(some)
            self._write_some(replace(markers, partitions=some), failures)
            await asyncio.sleep(0)

    def _write_some(self, markers: Markers, failures: int) -> None:
        """Write a few markers: here, through other brokers, or later if a partition has no leader."""
        if self._closed or not self._are_needed(markers):
            return
        own: list[TopicPartition] = []
        away: dict[int, list[TopicPartition]] = {}
        unknown: list[TopicPartition] = []
        leaderless: list[TopicPartition] = []
        for each in markers.partitions:
            info = self._cache.image.partition(*each)
            if info is None:
                unknown.append(each)
            elif info.leader == self._peers.node_id:
                own.append(each)
            elif self._peers.knows(info.leader):
                away.setdefault(info.leader, []).append(each)
            else:
                leaderless.append(each)
        if own:
            self._write_own(_only(markers, own), failures)
        for broker, theirs in away.items():
            part = _only(markers, theirs)
            self._outbox.send(broker, part, partial(self._markers_written, part, failures))
        if leaderless:
            part = _only(markers, leaderless)
            self._markers_written(part, failures, dict.fromkeys(leaderless, ErrorCode.LEADER_NOT_AVAILABLE))
        if unknown:
            self._workers.spawn(self._find_deleted(_only(markers, unknown), failures), "find deleted partitions")

    def _are_needed(self, markers: Markers) -> bool:
        shard = self._shard(markers)
        return shard is not None and shard.needs(markers)

    def _shard(self, markers: Markers) -> TransactionCoordinator | None:
        try:
            return self._shell.terms.shard(self._shell.partition_for(markers.transactional_id))
        except ProtocolError as error:
            self._logger.info("leaving the markers of %r to its new coordinator: %s", markers.transactional_id, error)
            return None

    async def _find_deleted(self, markers: Markers, failures: int) -> None:
        """Ask the tree which of the unknown partitions are deleted. The image may be older than a partition.

        Without the marker, a transaction may only complete if the partition no longer exists.
        """
        try:
            existing = await self._workers.read_store(_existing, self._store, markers.partitions)
        except StoreError as error:
            self._logger.warning("cannot look up the partitions of %r: %r", markers.transactional_id, error)
            existing = set(markers.partitions)
        deleted = set(markers.partitions) - existing
        self._markers_written(markers, failures, dict.fromkeys(existing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), deleted)

    def _write_own(self, markers: Markers, failures: int) -> None:
        results = dict.fromkeys(markers.partitions, ErrorCode.NONE)
        written: dict[TopicPartition, tuple[Replica, int]] = {}
        marker = EndMarker(
            markers.commit,
            markers.producer_id,
            markers.producer_epoch,
            markers.coordinator_epoch,
            markers.transaction_version,
        )
        for each in markers.partitions:
            try:
                written[each] = self._appender.append(*each, marker)
            except ProtocolError as error:
                results[each] = error.code
                if not failures:
                    self._log(markers, each, error)

        def ended(errors: list[ErrorCode]) -> None:
            self._markers_written(markers, failures, results | dict(zip(written, errors, strict=True)))

        commits = Commits(len(written), ended)
        for replica, offset in written.values():
            commits.add(replica, offset)

    def _markers_written(
        self,
        markers: Markers,
        failures: int,
        results: dict[TopicPartition, ErrorCode],
        deleted: frozenset[TopicPartition] | set[TopicPartition] = frozenset(),
    ) -> None:
        """Report the written markers to the coordinator, and retry the others later."""
        shard = None if self._closed else self._shard(markers)
        if shard is None:
            return
        effects = shard.markers_written(markers, results, self._now_ms(), deleted=deleted)
        self._shell.apply(self._shell.partition_for(markers.transactional_id), effects)
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in results.values():
            return
        # A partition that knows a later epoch rejects the marker. The other partitions still need theirs.
        rest = [each for each, error in results.items() if marker_result(error) is MarkerResult.RETRY]
        if rest:
            delay_s = wait_s(failures, *_RETRY_MS)
            asyncio.get_running_loop().call_later(delay_s, self._write_markers, _only(markers, rest), failures + 1)

    def _log(self, markers: Markers, partition: TopicPartition, error: ProtocolError) -> None:
        self._logger.warning(
            "cannot write the marker of %r (producer id %d, epoch %d) to %s-%d: %s",
            markers.transactional_id,
            markers.producer_id,
            markers.producer_epoch,
            *partition,
            error,
        )


def _only(markers: Markers, partitions: Sequence[TopicPartition]) -> Markers:
    return markers if len(partitions) == len(markers.partitions) else replace(markers, partitions=tuple(partitions))


def _existing(store: MetadataStore, partitions: Sequence[TopicPartition]) -> set[TopicPartition]:
    """Return the partitions that exist in the tree. Blocks. Raises StoreError."""
    return {each for each in partitions if store.exists(state_path(*each))}
