"""Assign partitions to the log directories of a broker, and keep using the others if one fails (KIP-112).

A new partition gets the log directory with the fewest partitions. An existing partition stays in its log directory.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from oncelog.broker.durations import Durations
from oncelog.broker.events import Event
from oncelog.broker.storage.data_directory import STRAY_SUFFIX, DataDirectory
from oncelog.broker.storage.log_dir_registry import FormerDirectory, Known
from oncelog.broker.storage.losses import DirectoryState
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.topics import TopicInfo, topic_id_text
from oncelog.log.checkpoint import PARTITION_METADATA
from oncelog.log.disk import Disk, read_if_exists
from oncelog.log.guarded_disk import GuardedDisk
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.texts import first_named
from oncelog.protocol.topics import TopicPartition

NAME_MAX = 200
"""The characters of a topic's name that a renamed partition directory keeps. A file system allows 255 in a name."""

NAMED = 10
"""The logs that one message names."""


def _hosts(image: MetadataImage, node_id: int, topic: str, partition: int) -> bool:
    info = image.partition(topic, partition)
    return info is not None and node_id in (info.leader, *info.replicas)


class LogDirectories:
    """The entries of `log.dirs`, in their order."""

    def __init__(self, disk: Disk, paths: Sequence[str], node_id: int, logger: logging.Logger) -> None:
        self._logger = logger
        self.failed: Event[[DataDirectory, OSError]] = Event()
        """A directory has gone offline. This happens once for each directory, perhaps in a worker thread."""
        self._all = [DataDirectory(disk, path, node_id, logger, self.failed) for path in dict.fromkeys(paths)]
        self._by_partition: dict[TopicPartition, DataDirectory] = {}
        self._sizes: Counter[str] = Counter()
        self._lost: set[TopicPartition] = set()
        self.syncs = Durations()
        """How long logs waited for the device, by the event loop's clock."""

    def __iter__(self) -> Iterator[DataDirectory]:
        yield from self._all

    @property
    def online(self) -> list[DataDirectory]:
        """Return the directories that may be used."""
        return [directory for directory in self._all if directory.online]

    def states(self) -> list[DirectoryState]:
        """Return the state of each directory after `open`. Omit offline ones that the broker has never used."""
        return [
            DirectoryState(
                str(each.directory_id),
                online=each.online,
                is_clean=each.online and each.clean,
                is_identified=each.online and each.is_identified,
                is_new=each.is_new,
                generation=each.generation,
            )
            for each in self._all
            if each.directory_id is not None
        ]

    def generations(self) -> dict[str, int]:
        """Return the generation of each directory by id, without those that have none."""
        return {str(each.directory_id): each.generation for each in self._all if each.generation}

    def begin_generations(self, noted: Mapping[str, int], *, older: bool) -> None:
        """Write the next generation of each directory: of the older copies, or of all others. Blocks.

        `noted` are the generations in the store. Call this for older copies when the store has the loss. After a crash
        in between, the next start would not find it: they would no longer be older than noted.
        """
        for each in self.online:
            expected = noted.get(str(each.directory_id), 0)
            if (each.generation < expected) is not older:
                continue
            if older:
                self._logger.error(
                    "log directory %s is an older copy: it has generation %d, but this broker has written %d. "
                    "It lacks what was written since then. This broker leaves the ISRs of its partitions and copies "
                    "them from the leaders. Partitions without another replica continue with what is left",
                    each.path, each.generation, expected,
                )  # fmt: skip
            with suppress(OSError):  # the directory goes offline
                each.grow(expected)

    def checked(self, incomplete: frozenset[TopicPartition]) -> None:
        """See `DataDirectory.checked`. Blocks."""
        for each in self.online:
            with suppress(OSError):  # the directory goes offline
                each.checked(incomplete)

    @staticmethod
    def end_generations(stopped: Iterable[DataDirectory]) -> None:
        """Write the next generation of directories whose logs are closed. A copy from before is an old one. Blocks."""
        for each in stopped:
            with suppress(OSError):  # the directory goes offline
                each.grow(sync=True)

    def failed_in_use(self) -> frozenset[str]:
        """Return the ids of the directories that have failed since `open`."""
        return frozenset(str(each.directory_id) for each in self._all if each.failed_in_use)

    def intact(self, image: MetadataImage, node_id: int, lost: Container[str]) -> frozenset[TopicPartition]:
        """Return the replicated partitions that were in a directory outside `lost` in the last process. Blocks.

        `open` has found each of them in that directory. The directory's checkpoint has it too: otherwise, it may have
        been moved there from a lost one.
        """
        found = set()
        for directory in self._all:
            if directory.online and directory.is_identified and str(directory.directory_id) not in lost:
                known = directory.found & directory.recovery_points.keys()
                found |= {key for key in known if self._holds(directory, image, node_id, key)}
        return frozenset(found)

    def _holds(self, directory: DataDirectory, image: MetadataImage, node_id: int, key: TopicPartition) -> bool:
        """Return whether a directory has the log of a replicated partition."""
        info, topic = image.partition(*key), image.topic(key[0])
        if info is None or topic is None or node_id not in info.replicas or len(info.replicas) == 1:
            return False
        with suppress(OSError):  # the directory goes offline
            return self.find(*key) is directory and directory.topic_id(*key) == topic.topic_id
        return False

    def cluster_id(self) -> str | None:
        """Return the cluster id of the first directory that has one, or None. Read errors are logged."""
        for directory in self._all:
            try:
                if found := directory.identity().get("cluster.id"):
                    return found
            except OSError as error:
                self._logger.error("cannot read %s: %s", directory, error)
        return None

    def open(
        self, cluster_id: str, new_directory_id: Callable[[], UUID], former: Mapping[str, FormerDirectory]
    ) -> Known:
        """Open all directories. A directory that cannot be read or written, or is not mounted, goes offline.

        `former` are the directories that the broker had before, by their present paths. Return them together with the
        new ones. Raises KAFKA_STORAGE_ERROR if all are offline. Raises INCONSISTENT_CLUSTER_ID if a directory belongs
        to another cluster or broker, if two have the same id, or if `log.dirs` does not name a known one.
        """
        for directory in self._all:
            try:
                directory.open(cluster_id, new_directory_id, former.get(directory.absolute_path))
            except OSError as error:
                self._logger.error("cannot use log directory %s: %s", directory.path, error)
        if not self.online:
            reasons = "; ".join(f"{directory.path}: {directory.disk.failure}" for directory in self._all)
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot use any of the log directories: {reasons}")
        by_id: dict[UUID | None, str] = {}
        for directory in self.online:
            other = by_id.setdefault(directory.directory_id, directory.path)
            if other != directory.path:
                raise ProtocolError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"{other} and {directory.path} have the same directory.id, so one is a copy of the other. Name "
                    "only one of them in log.dirs",
                )
        return self._with_former(former)

    def _with_former(self, former: Mapping[str, FormerDirectory]) -> Known:
        here = {each.directory_id: each.absolute_path for each in self.online if each.directory_id is not None}
        offline = {each.absolute_path for each in self._all if not each.online}
        for path, (key, _) in former.items():
            if key not in here and path not in offline:
                raise ProtocolError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"this broker also has logs in {path} (directory.id={topic_id_text(key)}). Add it to log.dirs, or "
                    "its copy if the data was copied from there. If it is lost, add it to lost.log.dirs. Partitions "
                    "without another replica then start empty",
                )
        return {**{key: path for path, (key, _) in former.items()}, **here}

    def holds(self, topic: TopicInfo, partition: int) -> bool:
        """Return whether `open` has found a log of the partition. Blocks. Raises OSError."""
        key = topic.name, partition
        return any(
            key in directory.found and directory.topic_id(*key) in (None, topic.topic_id) for directory in self.online
        )

    def lacks(self, topic: TopicInfo, partition: int) -> bool:
        """Return whether a checkpoint has committed records of a log that `open` has found in no directory.

        A log of a deleted topic of the same name does not count.
        """
        key = topic.name, partition
        if any(key in directory.found for directory in self.online):
            return False
        former = f"/{topic.name[:NAME_MAX]}-{partition}."
        return any(
            directory.high_watermarks.get(key, 0) > directory.start_offsets.get(key, 0)
            and not any(former in path for path in directory.deleted)
            for directory in self.online
        )

    def set_strays_aside(self, image: MetadataImage, node_id: int) -> None:
        """Rename the logs that this broker has no replica of, because their topic was deleted while it was down.

        As in Kafka (`LogManager.asyncDelete`, `isStray`), they are kept. Blocks.
        """
        for directory in self.online:
            strays = [key for key in sorted(directory.found) if not _hosts(image, node_id, *key)]
            for key in strays:
                try:
                    self.set_aside(directory, *key, directory.topic_id(*key), STRAY_SUFFIX)
                except OSError as error:
                    self._logger.error("cannot rename the log of %s-%d in %s: %s", *key, directory.path, error)
                    break
                directory.forget_offsets(*key)
                directory.found.discard(key)
            if strays:
                names = first_named((f"{topic}-{index}" for topic, index in strays), len(strays), NAMED)
                self._logger.warning(
                    "renamed %d logs in %s to %s, because this broker has no replica of their partitions: %s",
                    len(strays), directory.path, STRAY_SUFFIX, names,
                )  # fmt: skip

    def locate(self, topics: MetadataImage) -> None:
        """Find the log directory of each partition.

        If a partition is in two log directories, the log with another topic id is set aside. Raises
        INCONSISTENT_CLUSTER_ID if the topic ids do not decide between the two. While a log directory is offline, all
        partitions that are in no other one count as offline, because they may be in it. Otherwise, the broker would
        create empty logs for them.
        """
        for directory in self.online:
            for partition in sorted(directory.found):
                self._found(directory, partition, topics)
        if len(self.online) < len(self._all):
            known = {(topic.name, index) for topic in topics.topics() for index in range(topic.partition_count)}
            self._lost = known - self._by_partition.keys()

    def _found(self, directory: DataDirectory, partition: TopicPartition, topics: MetadataImage) -> None:
        other = self._by_partition.get(partition)
        info = topics.topic(partition[0])
        if other is not None and info is None:
            return  # leftovers of a deleted topic
        if other is not None and info is not None:
            ours = [each for each in (other, directory) if each.topic_id(*partition) == info.topic_id]
            if len(ours) != 1:
                raise ProtocolError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"{partition[0]}-{partition[1]} is in both {other.path} and {directory.path}. Keep the right one, "
                    "and move the other out of the log directory",
                )
            stale = directory if ours[0] is other else other
            aside = self.set_aside(stale, *partition, stale.topic_id(*partition), STRAY_SUFFIX)
            stale.forget_offsets(*partition)
            self._logger.warning("moved a log of another topic named %s to %s", partition[0], aside)
            if ours[0] is other:
                return
            self._sizes[other.path] -= 1
        self._place(partition, directory)

    def _place(self, partition: TopicPartition, directory: DataDirectory) -> None:
        self._by_partition[partition] = directory
        self._sizes[directory.path] += 1

    def is_offline(self, topic: str, partition: int) -> bool:
        """Return whether a partition is, or may be, in a directory that has failed."""
        log_dir = self._by_partition.get((topic, partition))
        return (topic, partition) in self._lost if log_dir is None else not log_dir.online

    def find(self, topic: str, partition: int) -> DataDirectory | None:
        """Return the directory of a partition, or None if it has no directory yet."""
        return self._by_partition.get((topic, partition))

    def prefetch(self, topic: str, partitions: Iterable[int]) -> None:
        """List the files of some logs and read their sizes, so that opening them is fast later. Blocks."""
        for partition in partitions:
            log_dir = self.find(topic, partition)
            if log_dir is not None:
                folder = log_dir.folder(topic, partition)
                with suppress(OSError):  # opening the log reports the error
                    for name in log_dir.disk.listdir(folder):
                        log_dir.disk.size(f"{folder}/{name}")
                    read_if_exists(log_dir.disk, f"{folder}/{PARTITION_METADATA}")

    def place(self, topic: str, partition: int) -> DataDirectory:
        """Return the directory of a partition. A new partition gets the online directory with the fewest partitions.

        Raises KAFKA_STORAGE_ERROR if no directory is online, or if the partition may be in an offline one.
        """
        found = self._by_partition.get((topic, partition))
        if found is None:
            online = self.online
            if not online or (topic, partition) in self._lost:
                message = f"the log directory of {topic}-{partition} is offline"
                raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, message)
            found = min(online, key=lambda directory: self._sizes[directory.path])
            self._place((topic, partition), found)
        return found

    def forget(self, topic: str, partition: int) -> None:
        """Remove a deleted partition, so that its directory counts it no more."""
        log_dir = self._by_partition.pop((topic, partition), None)
        self._lost.discard((topic, partition))
        if log_dir is not None:
            self._sizes[log_dir.path] -= 1

    def set_aside(
        self, directory: DataDirectory, topic: str, partition: int, topic_id: UUID | None, suffix: str
    ) -> str:
        """Rename a partition directory, so that it is no longer a log. Return its new path. Raises OSError."""
        aside = f"{directory.path}/{topic[:NAME_MAX]}-{partition}.{topic_id.hex if topic_id else ''}{suffix}"
        directory.disk.rename(directory.folder(topic, partition), aside)
        return aside

    def holding(self, path: str) -> DataDirectory:
        """Return the directory that contains a path. Directories are never nested."""
        return next(
            directory for directory in self._all if path == directory.path or path.startswith(f"{directory.path}/")
        )

    def disk_of(self, path: str) -> GuardedDisk:
        """Return the disk of the directory that contains a path."""
        return self.holding(path).disk
