"""The partitions that this broker holds: opened when first needed, closed with what a quick restart needs.

A partition's log is opened at its first use, so that the time to start does not grow with their number; the broker
opens the rest in the background.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from oncelog.cluster.metadata import TopicInfo, Topics
from oncelog.cluster.replica import Replica
from oncelog.log.checkpoint import PARTITION_METADATA, CorruptCheckpointError, decode_partition_metadata
from oncelog.log.config import LogConfig
from oncelog.log.disk import Disk, read_if_exists
from oncelog.log.log import AppendResult, Log
from oncelog.protocol.errors import ErrorCode, ProtocolError

CONSUMER_OFFSETS = "__consumer_offsets"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_NAME_MAX = 200
"""Characters of a topic's name that stay in the name of a folder that was set aside (255 are allowed in all)."""


class Partitions:
    """Every (topic, partition) of this broker."""

    def __init__(
        self,
        *,
        topics: Topics,
        node_id: int,
        disk: Disk,
        directory: str,
        recovery_points: dict[tuple[str, int], int],
        start_offsets: dict[tuple[str, int], int],
        clean: bool,
        log_config: Callable[[TopicInfo], LogConfig],
        min_insync_replicas: Callable[[TopicInfo], int],
        now_ms: Callable[[], int],
        checkpoint: Callable[[], None],
        logger: logging.Logger,
    ) -> None:
        """`clean`: the broker before this one closed every log. `checkpoint` writes down what the offsets are now."""
        self._topics = topics
        self._node_id = node_id
        self._disk = disk
        self._directory = directory
        self._recovery_points = recovery_points
        self._start_offsets = start_offsets
        self._clean = clean
        self._log_config = log_config
        self._min_insync_replicas = min_insync_replicas
        self._now_ms = now_ms
        self._checkpoint = checkpoint
        self._logger = logger
        self._replicas: dict[tuple[str, int], Replica] = {}
        self.on_transaction_end: Callable[[int, int, int, bool], None] | None = None

    def __len__(self) -> int:
        return len(self._replicas)

    def leads(self, topic: str, partition: int) -> bool:
        """Whether this broker is the partition's leader."""
        info = self._topics.topic(topic)
        if info is None or not 0 <= partition < info.partition_count:
            return False
        return info.partitions[partition].leader == self._node_id

    def get(self, topic: str, partition: int) -> Replica | None:
        """The replica that this broker leads; opened now if it was not. None where there is none."""
        replica = self._replicas.get((topic, partition))
        if replica is None and self.leads(topic, partition):
            replica = self._open(topic, partition)
        return replica

    def find(self, topic: str, partition: int) -> Replica:
        """As `get`; UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER instead of None."""
        replica = self.get(topic, partition)
        if replica is not None:
            return replica
        info = self._topics.topic(topic)
        if info is None or not 0 <= partition < info.partition_count:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} does not exist")
        raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} is led by another broker")

    def opened(self) -> Iterator[Replica]:
        """Every replica whose log is open."""
        yield from self._replicas.values()

    def _open(self, topic: str, partition: int) -> Replica:
        info = self._topics.topic(topic)
        assert info is not None
        renewed = not self._is_own_folder(info, partition) and self._forget_offsets(topic, partition)
        log = Log.open(
            self._disk,
            self._folder(topic, partition),
            topic,
            partition,
            self._log_config(info),
            self._now_ms(),
            topic_id=info.topic_id,
            recovery_point=self._recovery_points.get((topic, partition), 0),
            clean=self._clean,
            log_start_offset=self._start_offsets.get((topic, partition), 0),
        )
        replica = Replica(
            topic,
            partition,
            info.topic_id,
            log,
            info.partitions[partition].leader_epoch,
            replicas=len(info.partitions[partition].replicas),
            min_insync_replicas=self._min_insync_replicas(info),
        )
        self._replicas[topic, partition] = replica
        if renewed:
            self._checkpoint()
        return replica

    def _folder(self, topic: str, partition: int) -> str:
        return f"{self._directory}/{topic}-{partition}"

    def _is_own_folder(self, topic: TopicInfo, partition: int) -> bool:
        """Whether this topic's log is in its folder; one of a former topic of the same name is set aside.

        Such a log is left when a deletion is interrupted. It is kept, as Kafka does: should the metadata have been
        lost, it is all that there is.
        """
        folder = self._folder(topic.name, partition)
        if not self._disk.exists(folder):
            return False
        path = f"{folder}/{PARTITION_METADATA}"
        data = read_if_exists(self._disk, path)
        try:
            if data is None or decode_partition_metadata(data) == topic.topic_id:
                return True
        except CorruptCheckpointError as error:
            self._logger.warning("%s: %s", path, error)
            return True
        stray = self._set_aside(topic, partition, STRAY_SUFFIX)
        self._logger.warning("%s is the log of another topic of this name, it is now in %s", folder, stray)
        return False

    def _set_aside(self, topic: TopicInfo, partition: int, suffix: str) -> str:
        aside = f"{self._directory}/{topic.name[:_NAME_MAX]}-{partition}.{topic.topic_id.hex}{suffix}"
        self._disk.rename(self._folder(topic.name, partition), aside)
        return aside

    def _forget_offsets(self, topic: str, partition: int) -> bool:
        """Forgets what the checkpoints said of a log that is gone; whether they said anything."""
        known = [offsets.pop((topic, partition), None) for offsets in (self._recovery_points, self._start_offsets)]
        return any(known)

    def append_marker(
        self,
        topic: str,
        partition: int,
        *,
        commit: bool,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        transaction_version: int,
    ) -> AppendResult:
        """Ends a producer's transaction in one partition; its offsets in `__consumer_offsets` become visible with it.

        Raises ProtocolError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, KAFKA_STORAGE_ERROR.
        """
        result = self.find(topic, partition).append_control(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            now_ms=self._now_ms(),
        )
        if topic == CONSUMER_OFFSETS and self.on_transaction_end is not None:
            self.on_transaction_end(partition, producer_id, producer_epoch, commit)
        return result

    def drop(self, topic: TopicInfo) -> list[str]:
        """Closes every partition of a deleted topic; its folders, set aside under the names returned, may go.

        Renamed first, because a folder that was removed in part might pass for a log.
        """
        doomed = []
        for partition in range(topic.partition_count):
            replica = self._replicas.pop((topic.name, partition), None)
            if replica is not None:
                replica.log.discard()
                replica.wake()
            self._forget_offsets(topic.name, partition)
            if self._disk.exists(self._folder(topic.name, partition)):
                doomed.append(self._set_aside(topic, partition, DELETE_SUFFIX))
        return doomed

    def reconfigure(self, topic: TopicInfo) -> None:
        """Lets the open logs of a topic go on with the settings that it has now."""
        config, least = self._log_config(topic), self._min_insync_replicas(topic)
        for partition in range(topic.partition_count):
            replica = self._replicas.get((topic.name, partition))
            if replica is not None:
                replica.log.reconfigure(config)
                replica.min_insync_replicas = min(least, len(topic.partitions[partition].replicas))

    def close(self) -> bool:
        """Closes every open log; False when the next start has to recover.

        That is when a log could not be closed, or when one that a crash has left behind was not opened this time.
        """
        clean = self._clean or all(
            (topic.name, partition) in self._replicas or not self.leads(topic.name, partition)
            for topic in self._topics.topics()
            for partition in range(topic.partition_count)
        )
        for replica in self._replicas.values():
            try:
                replica.log.close()
            except (OSError, ProtocolError) as error:
                self._logger.error("cannot close %r: %s", replica, error)
                clean = False
        return clean

    def recovery_points(self) -> dict[tuple[str, int], int]:
        """Up to where each log is known to be on disk; of those never opened, what it was."""
        points = {key: point for key, point in self._recovery_points.items() if self.leads(*key)}
        points.update({key: replica.log.recovery_point for key, replica in self._replicas.items()})
        return points

    def start_offsets(self) -> dict[tuple[str, int], int]:
        """Log start offset of each partition; of those never opened, what it was."""
        offsets = {key: offset for key, offset in self._start_offsets.items() if self.leads(*key)}
        offsets.update({key: replica.log.log_start_offset for key, replica in self._replicas.items()})
        return offsets

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """High watermark of each open partition."""
        return {key: replica.log.high_watermark for key, replica in self._replicas.items()}
