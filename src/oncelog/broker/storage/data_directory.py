"""Read and write the files of one log directory: identity, checkpoints and clean-shutdown mark, in Kafka's formats."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from oncelog.broker.storage import clean_mark
from oncelog.broker.storage.clean_mark import CleanEnds
from oncelog.broker.storage.log_dir_registry import FormerDirectory
from oncelog.cluster.topics import parse_topic_id, topic_id_text
from oncelog.log.checkpoint import (
    PARTITION_METADATA,
    CorruptCheckpointError,
    decode_partition_metadata,
    encode_partition_metadata,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from oncelog.log.disk import Disk, read_if_exists
from oncelog.log.guarded_disk import GuardedDisk
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import TopicPartition

META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
UNCHECKED = "oncelog-unchecked"
"""The clean-shutdown mark of the last clean stop, until all logs were opened and compared with it. Then it has only the
logs that lack records, until the broker has left their ISRs."""
GENERATION = "oncelog-generation"
"""A file with a number that only grows. The metadata store has it too, so that an older copy is noticed."""
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"

VERSIONS = ("0", "1")
"""The versions of `meta.properties` that oncelog reads: Kafka writes 0 with ZooKeeper, and 1 with KRaft."""
FORMAT_KEY = "oncelog.format"
FORMAT = 1
"""Increase it if older versions of oncelog cannot read the directories of this version. Kafka ignores the key."""

_FOLDER = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")
_METADATA_TOPIC = "__cluster_metadata"

Offsets = dict[TopicPartition, int]
_ASIDE = ".new"
"""The suffix of a checkpoint file that has not replaced the current one yet."""


class LogOffsets(NamedTuple):
    """The checkpointed offsets of the logs in one directory."""

    recovery_points: Offsets
    start_offsets: Offsets
    high_watermarks: Offsets


class DataDirectory:
    """One entry of `log.dirs`. All its files are read and written through `disk`."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        node_id: int,
        logger: logging.Logger,
        on_failure: Callable[[DataDirectory, OSError], None],
    ) -> None:
        """`on_failure` is called once, perhaps in a worker thread, when the directory goes offline."""
        self.path = path
        self.disk = GuardedDisk(disk, path, lambda error: on_failure(self, error))
        self.directory_id: UUID | None = None
        """The id of the directory in Kafka's metadata (KIP-858). None before `open`.

        If the directory is offline, this is the id that its path had before, if any.
        """
        self.clean = False
        """Whether the last broker process that used the directory closed all its logs. Set by `open`."""
        self.is_new = False
        """Whether no broker has used the directory before: it had neither an identity nor logs. Set by `open`."""
        self.generation = 0
        """See `GENERATION`. 0 if the directory has none. Set by `open`."""
        self.is_identified = False
        """Whether `meta.properties` had a directory id. Set by `open`."""
        self._is_opened = False
        self.deleted: list[str] = []
        """Partition directories of deleted topics that `open` found. The broker has to remove them."""
        self.found: set[TopicPartition] = set()
        """The partitions whose directories `open` found."""
        self.recovery_points: Offsets = {}
        """(topic, partition) -> offset up to which the log was synced when the broker started."""
        self.start_offsets: Offsets = {}
        """(topic, partition) -> first offset that was not deleted when the broker started."""
        self.high_watermarks: Offsets = {}
        """(topic, partition) -> high watermark when the broker started."""
        self.at_stop: CleanEnds = {}
        """(topic, partition) -> the files of the log at the last clean stop. Empty if Kafka or an older oncelog has
        stopped, and after another stop, unless the process died before it had opened its logs."""
        self.checkpoint_version = 0
        """The number of calls of `checkpoint_now`."""
        self._cleaned: Offsets = {}
        self._cleaned_in_place: Offsets = {}
        self._high_watermarks_in_place: Offsets = {}
        self._node_id = node_id
        self._logger = logger

    def __repr__(self) -> str:
        return f"DataDirectory({self.path})"

    @property
    def online(self) -> bool:
        """Return whether the directory may be used, because no operation in it has failed."""
        return self.disk.failure is None

    @property
    def failed_in_use(self) -> bool:
        """Return whether the directory has failed since `open`. Then records that were written may be lost."""
        return self._is_opened and not self.online

    @property
    def absolute_path(self) -> str:
        """Return the absolute path, as Kafka's tools report it."""
        return self.disk.absolute(self.path)

    def identity(self) -> dict[str, str]:
        """Return the entries of `meta.properties`, or an empty dict if the file does not exist. Raises OSError."""
        data = read_if_exists(self.disk, self._file(META_PROPERTIES))
        lines = [] if data is None else data.decode(errors="replace").splitlines()
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {key.strip(): value.strip().replace("\\", "") for key, _, value in pairs}

    def check_exists(self) -> None:
        """Take the directory offline if it was deleted, because writes to open files would still succeed."""
        if self.online and not self.disk.exists(self._file(META_PROPERTIES)):
            self.disk.fail(
                FileNotFoundError(errno.ENOENT, f"{META_PROPERTIES} is missing; the directory was deleted or unmounted")
            )

    def check(self, cluster_id: str) -> None:
        """Raise INCONSISTENT_CLUSTER_ID if the directory is of another cluster or broker, or of a newer format.

        A directory that cannot be read is offline, and is not checked.
        """
        try:
            found = self.identity()
        except OSError:  # the directory is offline
            return
        if found:
            self._check_identity(found, self._own_identity(cluster_id))

    def _own_identity(self, cluster_id: str) -> dict[str, str]:
        return {"cluster.id": cluster_id, "node.id": str(self._node_id)}

    def open(
        self, cluster_id: str, new_directory_id: Callable[[], UUID], former: FormerDirectory | None = None
    ) -> None:
        """Check the owner of the directory, and put the clean-shutdown mark aside until the next clean stop.

        Afterwards, `deleted` names the partition directories of topics whose deletion was interrupted. `former` is
        what the broker has stored about this directory. If it is given and the directory is missing or empty, the
        directory goes offline, and is not created. Raises OSError if the directory is offline, and
        INCONSISTENT_CLUSTER_ID if it belongs to another cluster or broker, or has a newer format.
        """
        if former is None:
            self.disk.mkdir(self.path, parents=True)
            known = self._identify(cluster_id, new_directory_id)
        else:
            self.directory_id = former.directory_id
            exists = self.disk.exists(self.path)
            if not exists or (not self.identity() and not self.list_partitions()):
                error = FileNotFoundError(errno.ENOENT, former.without_logs(self.path, exists=exists))
                self.disk.fail(error)
                raise error
            known = self._identify(cluster_id, lambda: former.directory_id)
        mark = self._file(CLEAN_SHUTDOWN)
        data = read_if_exists(self.disk, mark)
        if data is not None:
            found = clean_mark.decode(data)
            self.clean, self.at_stop = found is not None, found or {}
            self.disk.rename(mark, self._file(UNCHECKED))
            self.disk.sync(self.path)  # otherwise, a power failure may bring the mark back
        elif (data := read_if_exists(self.disk, self._file(UNCHECKED))) is not None:
            self.at_stop = clean_mark.decode(data) or {}
        self.deleted = [self._file(name) for name in self.disk.listdir(self.path) if name.endswith(DELETE_SUFFIX)]
        self.found = set(self.list_partitions())
        self.is_new = not known and not self.found
        self.recovery_points = self._read(RECOVERY_POINTS)
        self.start_offsets = self._read(START_OFFSETS)
        self.high_watermarks = self._read(HIGH_WATERMARKS)
        self._high_watermarks_in_place = self.high_watermarks.copy()
        self._cleaned = self._read(CLEANER_OFFSETS)
        self._cleaned_in_place = self._cleaned.copy()
        self.generation = generation_in(read_if_exists(self.disk, self._file(GENERATION)))
        self._is_opened = True

    def _identify(self, cluster_id: str, new_directory_id: Callable[[], UUID]) -> bool:
        """Write the identity, unless it is written already. Return whether the directory had an identity before."""
        found = self.identity()
        own = self._own_identity(cluster_id)
        if found:
            self._check_identity(found, own)
        known = found.get("directory.id")
        self.is_identified = bool(known)
        self.directory_id = parse_topic_id(known) if known else new_directory_id()
        wanted = {
            "version": "1", **own, "directory.id": topic_id_text(self.directory_id), FORMAT_KEY: str(FORMAT)
        }  # fmt: skip
        if found != wanted:
            lines = "".join(f"{key}={value}\n" for key, value in wanted.items())
            self.disk.atomic_write(self._file(META_PROPERTIES), lines.encode(), sync=True)
        return bool(found)

    def _check_identity(self, found: dict[str, str], own: dict[str, str]) -> None:
        path = self._file(META_PROPERTIES)
        version, mark = found.get("version", "0"), found.get(FORMAT_KEY, "1")
        if version not in VERSIONS:
            raise _inconsistent(f"{path} has version {version}, but this oncelog supports only {', '.join(VERSIONS)}")
        if not mark.isdecimal() or int(mark) > FORMAT:
            raise _inconsistent(
                f"{path} was written by a newer oncelog (format {mark}; this one reads up to {FORMAT}). Start that "
                "version, or use another directory"
            )
        found = {"node.id": found.get("broker.id", own["node.id"]), "cluster.id": own["cluster.id"], **found}
        if found["cluster.id"] != own["cluster.id"]:
            raise _inconsistent(
                f"{path} belongs to another cluster: it has cluster.id={found['cluster.id']}, but this broker's "
                f"metadata has {own['cluster.id']}. Use another directory, or the metadata of that cluster"
            )
        if found["node.id"] != own["node.id"]:
            raise _inconsistent(
                f"{path} has node.id={found['node.id']}, but this broker has {own['node.id']}. Set node.id to "
                f"{found['node.id']}, or use another directory"
            )

    def _read(self, name: str) -> Offsets:
        """Read a checkpoint file. If it is damaged, log a warning and return no offsets: recovery only takes longer."""
        try:
            return read_offset_checkpoint(self.disk, self._file(name))
        except CorruptCheckpointError as error:
            self._logger.warning("ignoring %s: %s", self._file(name), error)
            return {}

    # -- partitions -------------------------------------------------------------------------------------------------

    def list_partitions(self) -> list[TopicPartition]:
        """Return the partitions that have a directory in this log directory. Raises OSError."""
        names = (_FOLDER.fullmatch(name) for name in self.disk.listdir(self.path))
        return [
            (name["topic"], int(name["partition"]))
            for name in names
            if name and name["topic"] != _METADATA_TOPIC and self.disk.size(self._file(name[0])) is None  # no file
        ]

    def folder(self, topic: str, partition: int) -> str:
        """Return the path of a partition directory in this log directory."""
        return self._file(f"{topic}-{partition}")

    def topic_id(self, topic: str, partition: int) -> UUID | None:
        """Return the id of the topic that a partition directory belongs to. Raises OSError.

        Return None if `partition.metadata` does not exist or is damaged.
        """
        path = f"{self.folder(topic, partition)}/{PARTITION_METADATA}"
        data = read_if_exists(self.disk, path)
        if data is None:
            return None
        try:
            return decode_partition_metadata(data)
        except CorruptCheckpointError as error:
            self._logger.warning("%s: %s", path, error)
            return None

    def write_topic_id(self, topic: str, partition: int, topic_id: UUID) -> None:
        """Write the topic id into a partition directory. Raises OSError.

        The file is not synced. If it is lost, the broker writes it again when it opens the log.
        """
        path = f"{self.folder(topic, partition)}/{PARTITION_METADATA}"
        self.disk.atomic_write(path, encode_partition_metadata(topic_id))

    def forget_offsets(self, topic: str, partition: int) -> bool:
        """Remove the checkpointed offsets of a deleted log. Return whether the caller must write the checkpoints.

        Otherwise a new log of this name could begin at the old log's offsets, or count as compacted up to them.
        """
        self.at_stop.pop((topic, partition), None)
        checkpointed = (self.recovery_points, self.start_offsets, self.high_watermarks)
        known = [offsets.pop((topic, partition), None) for offsets in checkpointed]
        cleaned = self._cleaned.pop((topic, partition), None)
        return any(known) or cleaned is not None

    def least_end(self, topic: str, partition: int) -> int:
        """Return the offset that a log had reached when the broker started, as far as its directory says.

        If the log ends before it, this replica has lost records that it had acknowledged.
        """
        stopped = self.at_stop.get((topic, partition))
        return max(self.high_watermarks.get((topic, partition), 0), stopped.files.end if stopped is not None else 0)

    def lower(self, topic: str, partition: int, recovery_point: int, end: int) -> bool:
        """Limit the checkpointed offsets of a log that ends at `end` after recovery. Return whether one was larger."""
        limits = ((self.recovery_points, recovery_point), (self.high_watermarks, end))
        larger = [(offsets, limit) for offsets, limit in limits if offsets.get((topic, partition), 0) > limit]
        for offsets, limit in larger:
            offsets[topic, partition] = limit
        return bool(larger)

    def compacted_topics(self) -> set[str]:
        """Return the topics that have a compacted log in this directory. Raises OSError."""
        return {topic for topic, _ in self._read(CLEANER_OFFSETS)}

    def cleaned(self, topic: str, partition: int) -> int | None:
        """Return the offset up to which a log has been compacted, or None if it never was."""
        return self._cleaned.get((topic, partition))

    def note_cleaned(self, topic: str, partition: int, end: int) -> None:
        """Record that a log is compacted up to `end`, for the next checkpoint."""
        self._cleaned[topic, partition] = end

    def note_truncated(self, topic: str, partition: int, end: int) -> None:
        """Record that a log counts as compacted at most up to `end`, for the next checkpoint.

        Source: Kafka's ``LogCleanerManager.maybeTruncateCheckpoint``.
        """
        if self._cleaned.get((topic, partition), 0) > end:
            self._cleaned[topic, partition] = end

    def checkpoints(self, offsets: LogOffsets) -> dict[str, Offsets]:
        """Return the content of each checkpoint file. The cleaner's file is included only if it has changed."""
        files = dict(zip((RECOVERY_POINTS, START_OFFSETS, HIGH_WATERMARKS), offsets, strict=True))
        if self._cleaned != self._cleaned_in_place:
            files[CLEANER_OFFSETS] = self._cleaned.copy()
        return files

    def changed_high_watermarks(self, marks: Offsets) -> dict[str, Offsets]:
        """Return the content of the file with the high watermarks, or an empty dict if it has not changed."""
        return {} if marks == self._high_watermarks_in_place else {HIGH_WATERMARKS: marks}

    def write_aside(self, checkpoints: dict[str, Offsets]) -> None:
        """Write and sync new checkpoint files beside the current ones, in a worker thread. Raises OSError."""
        for name, offsets in checkpoints.items():
            write_offset_checkpoint(self.disk, self._file(name + _ASIDE), offsets, sync=True)

    def put_in_place(self, checkpoints: dict[str, Offsets]) -> None:
        """Replace the current checkpoints with the files that `write_aside` has written. Raises OSError."""
        for name in checkpoints:
            self.disk.rename(self._file(name + _ASIDE), self._file(name))
        self._are_in_place(checkpoints)

    def checkpoint_now(self, offsets: LogOffsets) -> None:
        """Replace the checkpoints at once, without waiting for the device. Raises OSError."""
        self.checkpoint_version += 1
        checkpoints = self.checkpoints(offsets)
        for name, content in checkpoints.items():
            write_offset_checkpoint(self.disk, self._file(name), content)
        self._are_in_place(checkpoints)

    def _are_in_place(self, checkpoints: dict[str, Offsets]) -> None:
        self._cleaned_in_place = checkpoints.get(CLEANER_OFFSETS, self._cleaned_in_place)
        self._high_watermarks_in_place = checkpoints.get(HIGH_WATERMARKS, self._high_watermarks_in_place)

    @property
    def written_marks(self) -> Offsets:
        """Return the high watermarks in the checkpoint: another object after each change."""
        return self._high_watermarks_in_place

    def grow(self, least: int = 0, *, sync: bool = False) -> None:
        """Write the next generation, which is more than `least`. Raises OSError.

        Without `sync`, a crash of the machine may undo it. Then the directory counts as lost anyway.
        """
        generation = max(self.generation, least) + 1
        self.disk.atomic_write(self._file(GENERATION), b"%d\n" % generation, sync=sync)
        self.generation = generation

    def checked(self, incomplete: Iterable[TopicPartition]) -> None:
        """Forget the last clean stop of all logs but the incomplete ones, after the comparison. Raises OSError."""
        left = {key: self.at_stop[key] for key in incomplete if key in self.at_stop}
        if left:
            self.disk.atomic_write(self._file(UNCHECKED), clean_mark.encode(left), sync=True)
        else:
            self.disk.remove(self._file(UNCHECKED))

    def mark_clean(self, at_stop: CleanEnds) -> None:
        """Write the clean-shutdown mark, so that the next start recovers only logs that differ. Raises OSError."""
        self.disk.atomic_write(self._file(CLEAN_SHUTDOWN), clean_mark.encode(at_stop), sync=True)

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"


def generation_in(content: bytes | None) -> int:
    """Return the number in a `GENERATION` file, or 0 if it is missing or damaged."""
    number = (content or b"").strip()
    return int(number) if number.isdigit() else 0


def _inconsistent(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
