"""Export the metadata, so that Apache Kafka can continue with oncelog's log directories.

The partitions' files already have Kafka's formats. The metadata is written to a `bootstrap.checkpoint`, which Kafka's
first controller reads if it finds no `__cluster_metadata-0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from oncelog.broker.metadata.import_kafka import check_unchanged
from oncelog.broker.metadata.import_logins import credential_records
from oncelog.broker.storage.data_directory import STRAY_SUFFIX, DataDirectory
from oncelog.cluster import kafka_metadata
from oncelog.cluster.acl_nodes import ACLS
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.image_nodes import cluster_id, is_new, prepare, read_image
from oncelog.cluster.kafka_metadata import BOOTSTRAP, FOLDER
from oncelog.cluster.store import MetadataStore, NoNodeError
from oncelog.cluster.topics import parse_topic_id
from oncelog.coordinator.producer_ids import BLOCK_PATH, parse_block
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.topics import TopicPartition


class Exported(NamedTuple):
    """The path and content of the exported file, and the new paths of older metadata logs."""

    path: str
    topics: int
    settings: int
    """The number of dynamic settings of brokers."""
    acls: int
    users: int
    """The number of credentials of SCRAM users, without damaged ones, which are logged."""
    tokens: int
    """The number of delegation tokens."""
    set_aside: tuple[str, ...]


def export(store: MetadataStore, directories: Sequence[DataDirectory], now_ms: int) -> Exported:
    """Write the bootstrap file into the first directory, and set older metadata logs aside. Blocks.

    No broker may run on the directories. An interrupted export can be repeated, because the bootstrap file is written
    first: Kafka ignores it as long as an older metadata log is in its place.

    Raises INCONSISTENT_CLUSTER_ID if the metadata holds no cluster, if a directory belongs to another cluster or
    broker, or if Kafka has run on a directory since its import. Raises KAFKA_STORAGE_ERROR if a directory was never
    used, or if the node of an ACL is damaged. Raises OSError.
    """
    prepare(store)
    if is_new(store):
        raise ProtocolError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, "the metadata contains no cluster; start the broker once, then export"
        )
    own_id = cluster_id(store)
    image = _undamaged(store)
    directory_ids: dict[TopicPartition, UUID] = {}
    ids = []
    for directory in directories:
        directory.check(own_id)
        text = directory.identity().get("directory.id")
        if text is None:
            raise ProtocolError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"log directory {directory.path} was never used; start the broker with it once, then export",
            )
        ids.append(parse_topic_id(text))
        directory_ids |= dict.fromkeys(directory.list_partitions(), ids[-1])
        check_unchanged(directory, store)
    credentials = list(credential_records(image.user_configs))
    settings = {"" if key is None else str(key): dict(found) for key, found in image.broker_configs.items()}
    data = kafka_metadata.bootstrap(
        image.topics(),
        lambda topic, partition: directory_ids.get((topic, partition), ids[0]),
        next_producer_id=_next_producer_id(store),
        features=image.feature_levels,
        broker_configs=settings,
        group_configs=image.group_configs,
        acls=image.acls,
        quotas=image.quotas,
        tokens=image.tokens.values(),
        credentials=credentials,
        now_ms=now_ms,
    )
    path = f"{directories[0].path}/{BOOTSTRAP}"
    directories[0].disk.atomic_write(path, data, sync=True)
    aside = tuple(_set_aside(each, now_ms) for each in directories if each.disk.exists(f"{each.path}/{FOLDER}"))
    return Exported(
        path=path,
        topics=len(image.topics_by_name),
        settings=sum(map(len, settings.values())),
        acls=len(image.acls),
        users=len(credentials),
        tokens=len(image.tokens),
        set_aside=aside,
    )


def _undamaged(store: MetadataStore) -> MetadataImage:
    """Return the metadata. Raises KAFKA_STORAGE_ERROR if the node of an ACL is damaged."""
    image = read_image(store)
    if image.acls.unreadable:
        damaged = ", ".join(sorted(image.acls.unreadable))
        raise ProtocolError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"these nodes of ACLs in {ACLS} are damaged: {damaged}; repair them first"
        )
    return image


def _set_aside(directory: DataDirectory, now_ms: int) -> str:
    """Rename a metadata log, and return its new path.

    Kafka would read this log instead of the bootstrap file. Outside the first directory, it would keep Kafka from
    starting. The log stays in its log directory, which may be a mount point. Kafka's `LogManager` treats
    the new name as a stray log of the metadata topic, and ignores it.
    """
    folder = f"{directory.path}/{FOLDER}"
    aside = f"{folder}.{now_ms}{STRAY_SUFFIX}"
    directory.disk.rename(folder, aside)
    directory.disk.sync(directory.path)
    return aside


def _next_producer_id(store: MetadataStore) -> int:
    try:
        data = store.get(BLOCK_PATH).data
    except NoNodeError:
        return 0
    return parse_block(data).end + 1 if data else 0
