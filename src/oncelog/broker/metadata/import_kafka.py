"""Create a new cluster on existing log directories: adopt the topics, ids, settings and producer ids found in them.

The source is Apache Kafka's `__cluster_metadata-0` if it exists, otherwise the partition directories. If oncelog has
written the log directories, its own metadata is missing. In this case, the broker uses the partition directories only
if `restore.metadata` is set. The same applies to Kafka's metadata that oncelog has imported before, because topics may
have changed since. All of this happens before the tree contains a cluster id, and starts again after an interruption.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.metadata.import_logins import take_tokens, take_users
from oncelog.broker.storage.data_directory import FORMAT_KEY, DataDirectory
from oncelog.broker.storage.log_directories import LogDirectories
from oncelog.cluster import acl_nodes, configs, kafka_metadata, quota_nodes, topic_nodes
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.features import GROUP_VERSION, SUPPORTED, TRANSACTION_VERSION
from oncelog.cluster.kafka_metadata import FOLDER, KafkaMetadata
from oncelog.cluster.named_configs import GROUPS
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.quotas import QuotaEntity, check_entity, check_value, entity_of
from oncelog.cluster.store import MetadataStore, NodeExistsError, NoNodeError, ensure
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.coordinator.producer_ids import BLOCK_PATH, BLOCK_SIZE, ProducerIdBlock, encode_block
from oncelog.coordinator.transactions.records import decode_record
from oncelog.log.checkpoint import CorruptCheckpointError, decode_checkpoint
from oncelog.log.disk import read_if_exists
from oncelog.log.snapshot import CorruptSnapshotError, decode_snapshot
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.kinds import ResourceType
from oncelog.protocol.messages.transaction_log import TransactionLogValue
from oncelog.protocol.records import HEADER, HEADER_SIZE, BatchHeader, decode_records, iter_batches
from oncelog.protocol.texts import first_named
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition

IMPORTED_PATH = "/oncelog/kafka_metadata"
"""The node with the position in `__cluster_metadata-0` at the import (`kafka_metadata.position`)."""
_IMPORTED_FILE = "oncelog.imported"
"""The file in a log directory with the same position. It outlives the tree."""
PRODUCER_ID_GAP = 1000 * BLOCK_SIZE
"""The number of producer ids to skip if only the logs show which ids were allocated."""
_EPOCHS = "leader-epoch-checkpoint"
_RESOURCES: dict[int, str] = {
    ResourceType.BROKER: "broker",
    ResourceType.CLIENT_METRICS: "client metrics",
}
"""The kinds of resources in Kafka's `ConfigResource`, for messages."""


def initial_levels(config: BrokerConfig) -> dict[str, int]:
    """Return the levels of features in a new cluster."""
    return {
        GROUP_VERSION: config.initial_group_version,
        TRANSACTION_VERSION: config.initial_transaction_version,
    }


class LogDirectoryImport:
    """Create a cluster from the content of log directories. All methods block."""

    def __init__(
        self,
        directories: LogDirectories,
        store: MetadataStore,
        config: BrokerConfig,
        new_topic_id: Callable[[], UUID],
        logger: logging.Logger,
    ) -> None:
        self._directories = directories
        self._store = store
        self._changes = ChangeLog(store)
        self._config = config
        self._new_topic_id = new_topic_id
        self._logger = logger

    def run(self) -> dict[str, int]:
        """Fill the tree of a new cluster, and return the feature levels to set.

        Raises INCONSISTENT_CLUSTER_ID if the broker cannot adopt the directories. Raises CORRUPT_MESSAGE or
        UNSUPPORTED_VERSION if it cannot read Kafka's metadata. Raises OSError.
        """
        initial = initial_levels(self._config)
        cluster_id = self._directories.cluster_id()
        if cluster_id is None:
            return initial
        for directory in self._directories:
            directory.check(cluster_id)
        self._start_over()
        imported = [directory for directory in self._directories if _is_imported(directory)]
        for directory in self._directories:
            folder = f"{directory.path}/{FOLDER}"
            if directory not in imported and directory.disk.listdir(folder):
                found = kafka_metadata.read(directory.disk, folder)
                self._take(self._from_kafka(found), found.next_producer_id)
                self._take_settings(found)
                self._take_acls(found)
                self._take_quotas(found)
                take_users(self._changes, found, self._logger)
                enabled = bool(self._config.delegation_token_secret_key)
                take_tokens(self._changes, found, self._logger, enabled=enabled)
                note_imported(self._store, directory)
                self._logger.info("imported %d topics of Apache Kafka from %s", len(found.topics), folder)
                return {name: min(found.features.get(name, 0), most) for name, (_, most) in SUPPORTED.items()}
        topics = self._from_folders()
        if not topics and not imported:
            return initial
        lost = any(FORMAT_KEY in directory.identity() for directory in self._directories)
        if lost:
            self._check_may_restore(topics)
            topics = self._without_retention(topics)
        for directory in imported:
            note_imported(self._store, directory)
        self._take(topics, self._next_producer_id())
        names = ", ".join(topic.name for topic in topics)
        self._logger.warning("created new metadata, and added these topics from the log directories: %s", names)
        if lost:
            self._logger.warning(
                "Settings of topics and brokers, ACLs, quotas, and topics without a directory, are lost. Records of "
                "restored topics do not expire (retention.ms=-1). Set the settings again with `oncelog topic alter`, "
                "and the ACLs with `oncelog acl add`; the decision topic PREFIX-commits of each Spark sink needs "
                "`--config cleanup.policy=compact`"
            )
        return initial

    def _check_may_restore(self, topics: list[TopicInfo]) -> None:
        """Raise INCONSISTENT_CLUSTER_ID if the metadata is missing and `restore.metadata` is not set."""
        if self._config.restore_metadata:
            return
        paths = ", ".join(directory.path for directory in self._directories)
        users = [topic.name for topic in topics if not topic.internal]
        names = first_named(users, len(users))
        raise ProtocolError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"the metadata is missing, but {paths} has the logs of {len(topics)} topics ({len(users)} of users: "
            f"{names}). Restore metadata.sqlite from a backup, or rebuild it from the log directories with "
            "`--set restore.metadata=true`. This restores the records of these topics, committed offsets and "
            "transactions, but not the settings of topics and brokers, ACLs, quotas, nor topics without a directory",
        )

    def _without_retention(self, topics: list[TopicInfo]) -> list[TopicInfo]:
        """Return the topics with settings by which no record expires. Compacted topics stay compacted."""
        compacted: set[str] = set()
        for directory in self._directories:
            compacted |= directory.compacted_topics()
        kept = []
        for topic in topics:
            overrides = dict(topic.configs)
            if topic.name in compacted:
                overrides["cleanup.policy"] = "compact"
            elif not topic.internal:
                overrides |= {"retention.ms": "-1", "retention.bytes": "-1"}
            kept.append(replace(topic, configs=overrides))
        return kept

    def _start_over(self) -> None:
        """Delete the topics that an interrupted import has written, because Kafka may have changed them since."""
        for name in self._store.children(topic_nodes.TOPICS):
            topic_nodes.erase_topic(self._changes, topic_nodes.read_topic(self._store, name))

    def _take(self, topics: list[TopicInfo], next_producer_id: int) -> None:
        for topic in topics:
            topic_nodes.write_topic(self._changes, topic)
        if next_producer_id > 0:
            block = encode_block(ProducerIdBlock(self._config.node_id, 0, next_producer_id - 1))
            with suppress(NodeExistsError):
                self._store.create(BLOCK_PATH)
            self._store.set(BLOCK_PATH, block)

    # -- Apache Kafka -----------------------------------------------------------------------------------------------

    def _from_kafka(self, found: KafkaMetadata) -> list[TopicInfo]:
        node_id = self._config.node_id
        topics = []
        for topic in found.topics.values():
            foreign = [index for index, info in enumerate(topic.partitions) if info.replicas != (node_id,)]
            if foreign:
                raise ProtocolError(
                    ErrorCode.INCONSISTENT_CLUSTER_ID,
                    f"cannot import {topic.name}-{foreign[0]}, because its replicas are on nodes "
                    f"{list(topic.partitions[foreign[0]].replicas)}; all partitions must be on node {node_id} only",
                )
            partitions = tuple(_led_by(node_id, info.leader_epoch + 1) for info in topic.partitions)
            overrides = found.configs.get((ResourceType.TOPIC, topic.name), {})
            topics.append(TopicInfo(topic.name, topic.topic_id, partitions, overrides))
        return sorted(topics, key=lambda topic: topic.name)

    def _take_settings(self, found: KafkaMetadata) -> None:
        """Import the dynamic settings of this broker, of all brokers and of groups, and log what is not imported.

        Settings that oncelog does not use are imported too, so that an export can return them to Kafka.
        """
        ours = {"": None, str(self._config.node_id): self._config.node_id}
        for name, node_id in ours.items():
            configs.update_broker(self._changes, node_id, _set_to(found.configs.get((ResourceType.BROKER, name), {})))
        groups = {name: settings for (kind, name), settings in found.configs.items() if kind == ResourceType.GROUP}
        for name in sorted({*groups, *GROUPS.read_all(self._store)}):  # also those of an interrupted import
            GROUPS.update(self._changes, name, _set_to(groups.get(name, {})))
        for (kind, name), settings in sorted(found.configs.items()):
            imported = kind in (ResourceType.TOPIC, ResourceType.GROUP) or (
                kind == ResourceType.BROKER and name in ours
            )
            if settings and not imported:
                what = f"{_RESOURCES.get(kind, f'resource {kind}')} {name}"
                self._logger.warning("not importing these settings of %s: %s", what, ", ".join(sorted(settings)))

    def _take_acls(self, found: KafkaMetadata) -> None:
        acl_nodes.delete(self._changes, acl_nodes.read_all(self._store))  # those of an interrupted import
        acls = {acl_nodes.node_name(acl): acl for acl in found.acls.values()}
        acl_nodes.create(self._changes, acls)
        if acls and not self._config.authorizer_class_name:
            self._logger.warning(
                "imported %d ACLs, which have no effect without authorizer.class.name: all clients have all "
                "permissions",
                len(acls),
            )

    def _take_quotas(self, found: KafkaMetadata) -> None:
        wanted: dict[QuotaEntity, dict[str, float | None]] = {  # those of an interrupted import
            entity: dict.fromkeys(values) for entity, values in quota_nodes.read_all(self._store).items()
        }
        for parts, values in found.quotas.items():
            try:
                entity = entity_of(dict(parts))
                check_entity(entity)
                for key, value in values.items():
                    check_value(entity, key, value)
            except ProtocolError as error:
                shown = ", ".join(f"{kind} {name or 'default'!r}" for kind, name in sorted(parts, key=str))
                self._logger.warning("not importing the quotas of %s: %s", shown, error)
            else:
                wanted[entity] = {**wanted.get(entity, {}), **values}
        quota_nodes.update(self._changes, wanted)

    # -- partition directories --------------------------------------------------------------------------------------

    def _from_folders(self) -> list[TopicInfo]:
        """Return the topics that the names of partition directories and their `partition.metadata` files describe.

        A partition that was never written to has no directory. It is added if a later partition has one, or if the
        settings require it for an internal topic. Raises INCONSISTENT_CLUSTER_ID if the directories of one topic name
        have different topic ids. Raises OSError.
        """
        counts = {
            CONSUMER_OFFSETS: self._config.offsets_topic_num_partitions,
            TRANSACTION_STATE: self._config.transaction_state_log_num_partitions,
        }
        ids: dict[str, UUID] = {}
        epochs: dict[TopicPartition, int] = {}
        for directory in self._directories:
            for topic, partition in directory.list_partitions():
                topic_id = directory.topic_id(topic, partition)
                if topic_id is not None and ids.setdefault(topic, topic_id) != topic_id:
                    raise ProtocolError(
                        ErrorCode.INCONSISTENT_CLUSTER_ID,
                        f"the partition directories of topic {topic} have different topic ids. Keep those of one id, "
                        "and move the others out of the log directories",
                    )
                epochs[topic, partition] = _latest_epoch(directory, topic, partition) + 1
        topics = []
        for topic in sorted({topic for topic, _ in epochs}):
            most = max(partition for name, partition in epochs if name == topic) + 1
            infos = (
                _led_by(self._config.node_id, epochs.get((topic, index), 0))
                for index in range(max(most, counts.get(topic, 0)))
            )
            overrides = {"cleanup.policy": "compact"} if topic in counts else {}
            topics.append(TopicInfo(topic, ids.get(topic) or self._new_topic_id(), tuple(infos), overrides))
        return topics

    def _next_producer_id(self) -> int:
        """Return an id above all allocated ids. The logs show only the ids of producers that have written."""
        return max(self._producer_ids(), default=0) // BLOCK_SIZE * BLOCK_SIZE + PRODUCER_ID_GAP

    def _producer_ids(self) -> Iterator[int]:
        for directory in self._directories:
            for topic, partition in directory.list_partitions():
                folder = directory.folder(topic, partition)
                for name in directory.disk.listdir(folder):
                    path = f"{folder}/{name}"
                    if name.endswith(".log"):
                        yield from _ids_of_batches(directory, path)
                        if topic == TRANSACTION_STATE:
                            yield from _ids_of_transactions(directory, path)
                    elif name.endswith(".snapshot"):
                        with suppress(CorruptSnapshotError):  # the log itself has these ids too
                            entries = decode_snapshot(directory.disk.read_file(path))
                            yield from (entry.producer_id for entry in entries)


def _set_to(settings: dict[str, str]) -> configs.Change:
    return lambda _: dict(settings)


def note_imported(store: MetadataStore, directory: DataDirectory) -> None:
    """Record that the `__cluster_metadata-0` of a directory is imported up to its end. Raises OSError."""
    ensure(store, IMPORTED_PATH)
    store.set(IMPORTED_PATH, json.dumps(kafka_metadata.position(directory.disk, f"{directory.path}/{FOLDER}")).encode())


def mark_imported(store: MetadataStore, directories: Iterable[DataDirectory]) -> None:
    """Record the import in the directories with Kafka's metadata, in case oncelog's metadata is lost.

    Call this when the tree is complete. A directory that cannot be written goes offline.
    """
    try:
        data = store.get(IMPORTED_PATH).data
    except NoNodeError:
        return
    for directory in directories:
        with suppress(OSError):
            if directory.disk.listdir(f"{directory.path}/{FOLDER}"):
                path = f"{directory.path}/{_IMPORTED_FILE}"
                if read_if_exists(directory.disk, path) != data:
                    directory.disk.atomic_write(path, data, sync=True)


def _is_imported(directory: DataDirectory) -> bool:
    """Return whether oncelog has imported this `__cluster_metadata-0`, and Kafka has not run since. Raises OSError."""
    found = kafka_metadata.position(directory.disk, f"{directory.path}/{FOLDER}")
    mark = read_if_exists(directory.disk, f"{directory.path}/{_IMPORTED_FILE}")
    return found is not None and mark == json.dumps(found).encode()


def check_all_unchanged(directories: Iterable[DataDirectory], store: MetadataStore) -> None:
    """Call `check_unchanged` for each directory that can be read. Raises INCONSISTENT_CLUSTER_ID."""
    for directory in directories:
        with suppress(OSError):  # the directory is offline
            check_unchanged(directory, store)


def check_unchanged(directory: DataDirectory, store: MetadataStore) -> None:
    """Raise INCONSISTENT_CLUSTER_ID if Apache Kafka has run on a directory since the import. Raises OSError."""
    found = kafka_metadata.position(directory.disk, f"{directory.path}/{FOLDER}")
    if found is None:
        return
    try:
        seen = json.loads(store.get(IMPORTED_PATH).data)
    except NoNodeError:
        seen = None
    if seen != found:
        raise ProtocolError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Apache Kafka has run on {directory.path} and may have changed its topics. To import them again, move "
            f"oncelog's metadata.sqlite away. To continue without them, move {directory.path}/{FOLDER} away",
        )


def _led_by(node_id: int, epoch: int) -> PartitionInfo:
    return PartitionInfo((node_id,), PartitionState(node_id, epoch, (node_id,)))


def _latest_epoch(directory: DataDirectory, topic: str, partition: int) -> int:
    data = read_if_exists(directory.disk, f"{directory.folder(topic, partition)}/{_EPOCHS}")
    try:
        rows = decode_checkpoint(data or b"")
        return int(rows[-1][0]) if rows else -1
    except (CorruptCheckpointError, ValueError):
        return -1


def _ids_of_batches(directory: DataDirectory, path: str) -> Iterator[int]:
    file = directory.disk.open(path)
    try:
        size, position = file.size(), 0
        while position + HEADER_SIZE <= size:
            header = BatchHeader._make(HEADER.unpack(file.pread(HEADER_SIZE, position)))
            if header.batch_length <= 0:
                return  # the rest is damaged, and recovery will truncate it
            yield header.producer_id
            position += header.size
    finally:
        file.close()


def _ids_of_transactions(directory: DataDirectory, path: str) -> Iterator[int]:
    try:
        for header, view in iter_batches(memoryview(directory.disk.read_file(path)), partial_ok=True):
            for entry in () if header.is_control else decode_records(view):
                record = decode_record(entry.key or b"", entry.value)
                if record is not None and isinstance(record.value, TransactionLogValue):
                    yield max(record.value.producer_id, record.value.next_producer_id)
    except (ProtocolError, ValueError):
        return  # the rest is damaged, and recovery will truncate it
