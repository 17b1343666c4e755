"""Open the log of one partition, in the log directory that holds it.

Opening is a generator of short steps, because recovery may have to read the whole log. The caller spreads the steps
over turns of the event loop (`Partitions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.config.topics import log_config
from oncelog.broker.storage.data_directory import STRAY_SUFFIX, DataDirectory
from oncelog.broker.storage.flusher import Flusher
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.broker.storage.unlinker import Unlinker
from oncelog.broker.turns import soon
from oncelog.broker.workers import Runtime
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.replica import Replica
from oncelog.cluster.topic_traffic import Traffic
from oncelog.cluster.topics import TopicInfo, topic_id_text
from oncelog.log.config import LogConfig
from oncelog.log.log import Log
from oncelog.log.recovery import Holes
from oncelog.log.steps import Steps
from oncelog.protocol.errors import ErrorCode, ProtocolError

MOST_SHARED = 100
"""The maximum number of different settings that are kept for sharing."""


class _SharedSettings:
    """Share equal settings between logs. They take about 1 KB, a fifth of an empty log's memory."""

    def __init__(self) -> None:
        self._broker: BrokerConfig | None = None
        self._known: dict[frozenset[tuple[str, str]], LogConfig] = {}

    def of(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> LogConfig:
        """Return the settings of a topic's logs."""
        if broker is not self._broker or len(self._known) >= MOST_SHARED:
            self._broker, self._known = broker, {}
        key = frozenset(overrides.items())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = log_config(broker, overrides)
        return found


class LogOpener:
    """Open logs with the newest settings of their topics."""

    def __init__(
        self,
        cache: MetadataCache,
        config: DynamicConfig,
        directories: LogDirectories,
        flusher: Flusher,
        unlinker: Unlinker,
        traffic: Traffic,
        runtime: Runtime,
    ) -> None:
        self._cache = cache
        self._config = config
        self._directories = directories
        self._flusher = flusher
        self._unlinker = unlinker
        self._traffic = traffic
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger
        self._settings = _SharedSettings()

    def open(self, topic: str, partition: int, holes: Holes) -> Steps[tuple[Replica, bool]]:
        """Return the steps that open a log. Their result is its replica, which neither leads nor follows yet.

        The second result is True if the offsets of a former log were forgotten. Then the caller must write the
        checkpoints. Raises KAFKA_STORAGE_ERROR, and LostRecordsError if `holes` says so.
        """
        info = self._cache.image.topic(topic)
        assert info is not None
        log_dir = self._directories.place(topic, partition)
        stopped = log_dir.at_stop.get((topic, partition))
        forgotten = not self._is_own_folder(log_dir, info, partition) and log_dir.forget_offsets(topic, partition)
        if stopped is not None and stopped.topic_id == info.topic_id:
            log_dir.at_stop[topic, partition] = stopped  # also if the directory is gone: it was there at the stop
        else:
            stopped = None
        log = yield from Log.opening(
            log_dir.disk,
            log_dir.folder(topic, partition),
            topic,
            partition,
            self._settings.of(self._config.current, info.configs),
            self._now_ms(),
            topic_id=info.topic_id,
            recovery_point=log_dir.recovery_points.get((topic, partition), 0),
            clean=log_dir.clean,
            log_start_offset=log_dir.start_offsets.get((topic, partition), 0),
            high_watermark=(
                log_dir.high_watermarks.get((topic, partition), 0)
                if len(info.partitions[partition].replicas) > 1
                else None
            ),
            holes=holes,
            at_stop=stopped.files if stopped is not None else None,
            unlink=partial(self._unlinker.files, log_dir.disk),
        )
        if stopped is not None and log.log_end_offset < stopped.files.end:
            text = (
                "%s has lost the records from offset %d to %d, which it had at the last clean stop. Its files have "
                "been changed or removed since. If no other replica has these records, restore it from a backup"
            )
            self._logger.error(text, log.directory, log.log_end_offset, stopped.files.end - 1)
        info = self._cache.image.topic(topic) or info
        config = self._settings.of(self._config.current, info.configs)
        if config != log.config:  # settings of the topic or the broker have changed in the meantime
            log.reconfigure(config)
        traffic = self._traffic.of(topic)
        replica = Replica(topic, partition, info.topic_id, log, flush=self._flusher, later=soon, traffic=traffic)
        return replica, forgotten

    def _is_own_folder(self, log_dir: DataDirectory, topic: TopicInfo, partition: int) -> bool:
        """Return whether the directory holds this topic's log. Set aside the log of a former topic of the same name.

        An interrupted deletion leaves such a log. It is kept, as in Kafka: if the metadata was lost, it may be the only
        copy of the records. A log without a topic id belongs to this topic: no append waits until `partition.metadata`
        is synced, so a power failure may lose the file, but not the records. Raises KAFKA_STORAGE_ERROR.
        """
        folder = log_dir.folder(topic.name, partition)
        try:
            if not log_dir.disk.exists(folder):
                return False
            found = log_dir.topic_id(topic.name, partition)
            if found is None:  # lost in a power failure, or an older Kafka has never written it
                log_dir.write_topic_id(topic.name, partition, topic.topic_id)
                text = "%s has no topic id. Using it for topic %s, id %s"
                self._logger.info(text, folder, topic.name, topic_id_text(topic.topic_id))
            if found in (None, topic.topic_id):
                return True
            aside = self._directories.set_aside(log_dir, topic.name, partition, topic.topic_id, STRAY_SUFFIX)
        except OSError as error:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot open {folder}: {error}") from error
        self._logger.warning("moved the log of another topic of the same name from %s to %s", folder, aside)
        return False
