"""The way back: what Apache Kafka needs to go on with oncelog's log directories.

The partitions' files are Kafka's already. What is missing is the metadata: it goes into a `bootstrap.checkpoint`, which
Kafka's first controller reads when it finds no `__cluster_metadata-0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from oncelog.broker.metadata.import_kafka import check_seen
from oncelog.broker.storage.data_directory import STRAY_SUFFIX, DataDirectory
from oncelog.cluster import kafka_metadata
from oncelog.cluster.image_nodes import cluster_id, is_new, prepare, read_image
from oncelog.cluster.kafka_metadata import BOOTSTRAP, FOLDER
from oncelog.cluster.store import MetadataStore, NoNodeError
from oncelog.cluster.topics import parse_topic_id
from oncelog.coordinator.producer_ids import BLOCK_PATH, parse_block
from oncelog.protocol.errors import ErrorCode, ProtocolError


class Exported(NamedTuple):
    """What was written, and where older metadata logs are now."""

    path: str
    topics: int
    settings: int
    """Dynamic ones, of brokers."""
    set_aside: tuple[str, ...]


def export(store: MetadataStore, directories: Sequence[DataDirectory], now_ms: int) -> Exported:
    """Writes the bootstrap file into the first directory; no broker may run on them. Blocks.

    Where it is interrupted it may be done again. As long as an older metadata log is in its place, Kafka looks at that,
    and not at the bootstrap file, which therefore comes first.

    Raises INCONSISTENT_CLUSTER_ID for directories that are not this cluster's, or where Kafka has run since they were
    taken over; KAFKA_STORAGE_ERROR, OSError.
    """
    prepare(store)
    if is_new(store):
        raise ProtocolError(ErrorCode.INCONSISTENT_CLUSTER_ID, "there is no cluster in this metadata")
    own_id = cluster_id(store, "")
    image = read_image(store)
    directory_ids: dict[tuple[str, int], UUID] = {}
    ids = []
    for directory in directories:
        directory.check(own_id)
        text = directory.identity().get("directory.id")
        if text is None:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path} was never used: start it once")
        ids.append(parse_topic_id(text))
        directory_ids |= dict.fromkeys(directory.list_partitions(), ids[-1])
        check_seen(directory, store)
    settings = {"" if key is None else str(key): dict(found) for key, found in image.broker_configs.items()}
    data = kafka_metadata.bootstrap(
        image.topics(),
        lambda topic, partition: directory_ids.get((topic, partition), ids[0]),
        next_producer_id=_next_producer_id(store),
        features={**image.feature_levels, "group.version": 1},
        broker_configs=settings,
        now_ms=now_ms,
    )
    path = f"{directories[0].path}/{BOOTSTRAP}"
    directories[0].disk.atomic_write(path, data, sync=True)
    aside = tuple(_set_aside(each, now_ms) for each in directories if each.disk.exists(f"{each.path}/{FOLDER}"))
    return Exported(path, len(image.topics_by_name), sum(map(len, settings.values())), aside)


def _set_aside(directory: DataDirectory, now_ms: int) -> str:
    """Moves a metadata log away: it would count, and not the bootstrap file; outside the first directory Kafka would
    not start.

    It stays in the directory, for that may be a mount point. Kafka's `LogManager` takes the name for a stray log of the
    metadata's topic, and leaves all of those alone.
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
