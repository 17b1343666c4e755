"""Find the logs of this broker that lack records although it is in their ISR or ELR. The broker must leave both.

If such a log led, the other replicas would truncate the records that it lacks. So a broker that starts opens the logs
in whose ISR or ELR it is before it may be elected, and names the incomplete ones in its registration.
"""

from __future__ import annotations

import logging

from oncelog.broker.events import Event
from oncelog.broker.storage.data_directory import DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.replica import Replica
from oncelog.log.recovery import LostRecordsError
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import TopicPartition


class IncompleteLogs:
    """The logs that lack records, until this broker has left their ISRs and ELRs."""

    def __init__(self, cache: MetadataCache, directories: LogDirectories, node_id: int, logger: logging.Logger) -> None:
        self._cache = cache
        self._directories = directories
        self._node_id = node_id
        self._logger = logger
        self.keys: frozenset[TopicPartition] = frozenset()
        """They count as offline, and are not opened."""
        self.changed: Event[[]] = Event()
        """`keys` has changed."""
        self.records_missing: Event[[DataDirectory]] = Event()
        """A log in a directory ends before its high watermark, or has a hole."""

    def suspects(self) -> list[TopicPartition]:
        """Return the partitions that this broker may lead only when it has opened their logs and found them complete.

        They have other replicas, and this broker is in their ISR or ELR.
        """
        return [key for key in self._cache.image.replicated(self._node_id) if self._others(key) is not None]

    def _others(self, key: TopicPartition) -> frozenset[int] | None:
        """Return the other members of a partition's ISR and ELR.

        Return None if this broker is in neither, or if it has the only replica.
        """
        info = self._cache.image.partition(*key)
        if info is None or self._node_id not in info.complete or len(info.replicas) == 1:
            return None
        return frozenset(info.complete) - {self._node_id}

    def add(self, key: TopicPartition) -> None:
        """Count a log as incomplete, if this broker is in its ISR or ELR together with others."""
        if self._others(key) and key not in self.keys:
            self.keys |= {key}
            self.changed()

    def refused(self, key: TopicPartition, error: LostRecordsError) -> None:
        """Count a log as incomplete, because it has a hole or a damaged end.

        If records are missing that were committed, leave the ISRs of all logs in its directory.
        """
        self.add(key)
        directory = self._directories.place(*key)
        if error.end is None or error.end < directory.least_end(*key):
            self._leave_isrs(directory, str(error))
        else:
            self._logger.error(
                "%s. Other replicas may have them, so this broker leaves the ISR of the partition", error
            )

    def check(self, replica: Replica) -> None:
        """If the log lacks committed records, leave the ISRs of all logs in its directory.

        Raises KAFKA_STORAGE_ERROR if this broker is in the log's ISR or ELR together with others.
        """
        key, end = (replica.topic, replica.partition), replica.log.log_end_offset
        directory = self._directories.holding(replica.log.directory)
        committed, others = directory.least_end(*key), self._others(key)
        if others is None or committed <= end:
            return
        text = "%s ends at offset %d, but its records before offset %d were acknowledged"
        message = text % (replica.name, end, committed)
        self.add(key)
        self._leave_isrs(directory, message)
        if others:
            replica.log.discard()
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def _leave_isrs(self, directory: DataDirectory, reason: str) -> None:
        self._logger.error("%s. This broker leaves the ISRs of the partitions in %s", reason, directory.path)
        self.records_missing(directory)

    def release(self, key: TopicPartition) -> None:
        """Let a log be opened if this broker has left its ISR and ELR, or is the last member."""
        if key in self.keys and not self._others(key):
            self.keys -= {key}
            self.changed()

    def forget(self, topic: str) -> None:
        """Forget the logs of a deleted topic."""
        self.keys = frozenset(key for key in self.keys if key[0] != topic)
