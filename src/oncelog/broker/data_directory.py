"""A broker's data directory: identity, checkpoints and the clean-shutdown mark, in Kafka's files."""

from __future__ import annotations

import logging

from oncelog.broker.partitions import DELETE_SUFFIX
from oncelog.log.checkpoint import CorruptCheckpointError, read_offset_checkpoint, write_offset_checkpoint
from oncelog.log.disk import Disk, read_if_exists
from oncelog.protocol.errors import ErrorCode, ProtocolError

META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"

Offsets = dict[tuple[str, int], int]


class DataDirectory:
    """One entry of `log.dirs`."""

    def __init__(self, disk: Disk, path: str, node_id: int, logger: logging.Logger) -> None:
        self.path = path
        self._logger = logger
        self.clean = False
        self._disk = disk
        self._node_id = node_id

    def open(self, cluster_id: str) -> None:
        """Checks whose directory it is, and takes the clean-shutdown mark away until the next clean stop.

        Topics whose deletion was interrupted are removed for good.
        INCONSISTENT_CLUSTER_ID when it belongs to another cluster or broker.
        """
        self._disk.mkdir(self.path)
        self._check_identity(cluster_id)
        mark = self._file(CLEAN_SHUTDOWN)
        self.clean = self._disk.exists(mark)
        if self.clean:
            self._disk.remove(mark)
        for name in self._disk.listdir(self.path):
            if name.endswith(DELETE_SUFFIX):
                self._disk.remove_tree(self._file(name))

    def _check_identity(self, cluster_id: str) -> None:
        path = self._file(META_PROPERTIES)
        wanted = {"version": "1", "cluster.id": cluster_id, "node.id": str(self._node_id)}
        data = read_if_exists(self._disk, path)
        if data is None:
            self._disk.atomic_write(path, "".join(f"{k}={v}\n" for k, v in wanted.items()).encode(), sync=True)
            return
        lines = data.decode().splitlines()
        found = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        for key in ("cluster.id", "node.id"):
            if found.get(key) != wanted[key]:
                message = f"{path} says {key}={found.get(key)}, this broker has {wanted[key]}"
                raise ProtocolError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)

    def recovery_points(self) -> Offsets:
        """(topic, partition) -> offset up to which the log was flushed."""
        return self._read(RECOVERY_POINTS)

    def start_offsets(self) -> Offsets:
        """(topic, partition) -> first offset that was not deleted."""
        return self._read(START_OFFSETS)

    def _read(self, name: str) -> Offsets:
        """A damaged checkpoint costs a longer recovery, and no more: it is not worth a broker that does not start."""
        try:
            return read_offset_checkpoint(self._disk, self._file(name))
        except CorruptCheckpointError as error:
            self._logger.warning("%s is not used: %s", self._file(name), error)
            return {}

    def checkpoint(self, *, recovery_points: Offsets, start_offsets: Offsets, high_watermarks: Offsets) -> None:
        """Writes the three offset checkpoints."""
        write_offset_checkpoint(self._disk, self._file(RECOVERY_POINTS), recovery_points)
        write_offset_checkpoint(self._disk, self._file(START_OFFSETS), start_offsets)
        write_offset_checkpoint(self._disk, self._file(HIGH_WATERMARKS), high_watermarks)

    def mark_clean(self) -> None:
        """Says that every log was closed in order, so that the next start need not recover."""
        self._disk.atomic_write(self._file(CLEAN_SHUTDOWN), b'{"version":0,"brokerEpoch":-1}', sync=True)

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"
