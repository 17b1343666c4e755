"""The way back: what Apache Kafka needs to go on with oncelog's log directories.

The partitions' files are Kafka's already. What is missing is the metadata: it goes into a `bootstrap.checkpoint`, which
Kafka's first controller reads when it finds no `__cluster_metadata-0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from oncelog.broker.apis import SUPPORTED_FEATURES
from oncelog.broker.data_directory import DataDirectory
from oncelog.cluster import kafka_metadata
from oncelog.cluster.features import Features
from oncelog.cluster.kafka_metadata import BOOTSTRAP, FOLDER
from oncelog.cluster.metadata import Topics, parse_topic_id
from oncelog.cluster.tree import NoNodeError, Tree
from oncelog.coordinator.producer_ids import BLOCK_PATH, parse_block
from oncelog.protocol.errors import ErrorCode, ProtocolError


class Exported(NamedTuple):
    """What was written, and which folder of an older metadata log was set aside for it."""

    path: str
    topics: int
    set_aside: str | None


def export(tree: Tree, directories: Sequence[DataDirectory], now_ms: int) -> Exported:
    """Writes the bootstrap file into the first directory; no broker may run on them. Blocks.

    Raises INCONSISTENT_CLUSTER_ID for directories that are not this cluster's, KAFKA_STORAGE_ERROR, OSError.
    """
    topics = Topics(tree)
    topics.prepare()
    if topics.is_new():
        raise ProtocolError(ErrorCode.INCONSISTENT_CLUSTER_ID, "there is no cluster in this metadata")
    cluster_id = topics.cluster_id("")
    topics.load()
    features = Features(tree, SUPPORTED_FEATURES)
    features.load({})
    homes: dict[tuple[str, int], UUID] = {}
    ids = []
    for directory in directories:
        directory.check(cluster_id)
        text = directory.identity().get("directory.id")
        if text is None:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory.path} was never used: start it once")
        ids.append(parse_topic_id(text))
        homes |= dict.fromkeys(directory.list_partitions(), ids[-1])
    first = directories[0]
    data = kafka_metadata.bootstrap(
        topics.topics(),
        lambda topic, partition: homes.get((topic, partition), ids[0]),
        next_producer_id=_next_producer_id(tree),
        features={**features.levels, "group.version": 1},
        now_ms=now_ms,
    )
    aside = _set_aside(first, now_ms)
    path = f"{first.path}/{BOOTSTRAP}"
    first.disk.atomic_write(path, data, sync=True)
    return Exported(path, sum(1 for _ in topics.topics()), aside)


def _set_aside(directory: DataDirectory, now_ms: int) -> str | None:
    """A metadata log that is there would count, and not the bootstrap file."""
    folder = f"{directory.path}/{FOLDER}"
    if not directory.disk.exists(folder):
        return None
    aside = f"{directory.path}.{FOLDER}.{now_ms}"
    directory.disk.rename(folder, aside)
    return aside


def _next_producer_id(tree: Tree) -> int:
    try:
        data = tree.get(BLOCK_PATH).data
    except NoNodeError:
        return 0
    return parse_block(data).end + 1 if data else 0
