"""Append the markers that end transactions to the partitions of this broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from oncelog.broker.coordinators.record_batches import EndMarker
from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.broker.storage.new_logs import NewLogs
from oncelog.broker.storage.partitions import Partitions
from oncelog.cluster.replica import Replica
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.topics import TopicPartition

logger = logging.getLogger(__name__)


class PartitionMarkers:
    """Append markers. Those of `__consumer_offsets` go through the shell of the groups' coordinators."""

    def __init__(
        self,
        partitions: Partitions,
        new_logs: NewLogs,
        groups: CoordinatorShell[Any],
        now_ms: Callable[[], int],
    ) -> None:
        self._partitions = partitions
        self._new_logs = new_logs
        self._groups = groups
        self._now_ms = now_ms

    async def create_logs(self, partitions: Iterable[TopicPartition]) -> None:
        """Create the files of logs that will get their first records, without blocking the event loop."""
        await self._new_logs.create(filter(None, map(self._replica, partitions)))

    def _replica(self, partition: TopicPartition) -> Replica | None:
        try:
            return self._partitions.get(*partition)
        except ProtocolError:  # appending the marker reports the error
            return None

    def append(self, topic: str, partition: int, marker: EndMarker) -> tuple[Replica, int]:
        """End a producer's transaction in one partition. Return the partition's replica and the marker's offset.

        Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
        """
        replica = self._partitions.require(topic, partition)
        if topic == self._groups.topic:
            offset = self._groups.append_marker(replica, marker)
        else:
            offset = replica.append_control(**marker._asdict(), now_ms=self._now_ms()).last_offset
        kind, producer = "commit" if marker.commit else "abort", (marker.producer_id, marker.producer_epoch)
        text = "%s-%d: wrote the %s marker of producer id %d, epoch %d at offset %d"
        logger.debug(text, topic, partition, kind, *producer, offset)
        return replica, offset
