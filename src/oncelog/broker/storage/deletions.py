"""Drop the logs of deleted topics: detach them at once, and set their directories aside step by step."""

from __future__ import annotations

import logging

from oncelog.broker.storage.data_directory import DELETE_SUFFIX
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.cluster.replica import Replica
from oncelog.cluster.topics import TopicInfo
from oncelog.log.guarded_disk import GuardedDisk
from oncelog.log.steps import Steps
from oncelog.protocol.topics import TopicPartition


class Deletion:
    """The progress of dropping the partitions of a deleted topic."""

    def __init__(self, topic: TopicInfo) -> None:
        self.topic = topic
        self.replicas: dict[int, Replica] = {}
        self.folders: dict[GuardedDisk, list[str]] = {}
        """The renamed partition directories that must be removed, by disk."""
        self.stale = False
        """Whether the checkpoint files may still hold offsets of the topic. If so, they must be written again."""


class Deletions:
    """The deletions in progress."""

    def __init__(
        self, replicas: dict[TopicPartition, Replica], directories: LogDirectories, logger: logging.Logger
    ) -> None:
        """`replicas` are the open partitions of the broker. A deletion removes its topic's replicas from them."""
        self._replicas = replicas
        self._directories = directories
        self._logger = logger
        self._leftovers: dict[TopicPartition, Deletion] = {}
        """Partitions of deleted topics that are not dropped yet."""
        self._stale: dict[str, Deletion] = {}
        """The last deletion of each topic name of which the checkpoint files may hold offsets."""

    def begin(self, topic: TopicInfo) -> Steps[Deletion]:
        """Detach the logs of a deleted topic at once, and return the steps that set their directories aside.

        From now on, no request finds these logs, even if a new topic has the same name. A partition directory is
        renamed before it is removed, because a partly removed one could be mistaken for a log. Partition directories in
        an offline log directory remain.
        """
        deletion = Deletion(topic)
        for partition in range(topic.partition_count):
            key = topic.name, partition
            self.complete(key)
            replica = self._replicas.get(key)
            if replica is not None and replica.topic_id == topic.topic_id:
                deletion.replicas[partition] = self._replicas.pop(key)
            self._leftovers[key] = deletion
        return self._drop_each(deletion)

    def _drop_each(self, deletion: Deletion) -> Steps[Deletion]:
        for partition in range(deletion.topic.partition_count):
            key = deletion.topic.name, partition
            if self._leftovers.get(key) is deletion:
                self.complete(key)
            yield
        return deletion

    def complete_all(self) -> None:
        """Drop all partitions that are left. At the next start, the owners of their directories would be unknown."""
        for key in tuple(self._leftovers):
            self.complete(key)

    def is_stale(self, topic: str) -> bool:
        """Return whether the checkpoint files may hold offsets of a deleted topic of this name."""
        return topic in self._stale

    def checkpointed(self, deletion: Deletion | None = None) -> None:
        """Record that the checkpoints were written after this deletion, or after all that were dropped so far."""
        if deletion is None:
            self._stale.clear()
        elif self._stale.get(deletion.topic.name) is deletion:
            del self._stale[deletion.topic.name]

    def complete(self, key: TopicPartition) -> None:
        """Drop a deleted topic's partition of this key, if any, so that a new topic's log can use its directory.

        After that, the checkpoint files may hold its offsets, also if a round that has read them writes them later.
        Offsets of 0 are ignored, because they do no harm.
        """
        deletion = self._leftovers.pop(key, None)
        if deletion is None:
            return
        topic, partition = deletion.topic, key[1]
        replica = deletion.replicas.pop(partition, None)
        stale = False
        if replica is not None:
            log, replicated = replica.log, len(topic.partitions[partition].replicas) > 1
            stale = log.recovery_point > 0 or log.log_start_offset > 0 or (replicated and log.high_watermark > 0)
        if replica is not None:
            replica.log.discard()
            replica.release()
        log_dir = self._directories.find(*key)
        self._directories.forget(*key)
        if log_dir is not None:
            stale |= log_dir.forget_offsets(*key)
            try:
                if log_dir.disk.exists(log_dir.folder(*key)):
                    aside = self._directories.set_aside(log_dir, *key, topic.topic_id, DELETE_SUFFIX)
                    deletion.folders.setdefault(log_dir.disk, []).append(aside)
            except OSError as error:
                self._logger.error("cannot delete %s-%d from %s: %s", *key, log_dir.path, error)
        if stale:
            deletion.stale = True
            self._stale[topic.name] = deletion
