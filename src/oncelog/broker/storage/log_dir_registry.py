"""Store the log directories of each broker in the versioned tree, to detect empty and missing ones.

Without this registry, a disk that is not mounted, or a forgotten entry of `log.dirs`, would look like empty partitions.
Their offsets would start at 0 again, and consumers would be reset. Kafka detects this with `meta.properties`, and with
the directory ids in its metadata (KIP-858).
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from oncelog.cluster.image import MetadataImage
from oncelog.cluster.store import MetadataStore, NoNodeError, ensure
from oncelog.protocol.errors import ErrorCode, ProtocolError

PATH = "/oncelog/log_dirs"

Known = dict[UUID, str]
"""directory.id -> absolute path."""


class _Node(msgspec.Struct):
    log_dirs: dict[str, str]
    version: int = 1


def read(store: MetadataStore, node_id: int) -> Known:
    """Return the log directories of a broker, or an empty dict before its first start. Blocks."""
    try:
        node = store.get(f"{PATH}/{node_id}")
    except NoNodeError:
        return {}
    found = msgspec.json.decode(node.data, type=_Node).log_dirs
    return {UUID(text): path for text, path in found.items()}


def write(store: MetadataStore, node_id: int, known: Mapping[UUID, str]) -> None:
    """Store the log directories of a broker. Only that broker may call this. Blocks."""
    path = f"{PATH}/{node_id}"
    ensure(store, path)
    store.set(path, msgspec.json.encode(_Node({str(key): value for key, value in known.items()})))


def check_no_copies(image: MetadataImage, node_id: int) -> None:
    """Raise INVALID_CONFIG if other brokers have copies of a broker's partitions.

    After the loss of a disk, the broker might be elected with an empty log, and the others would truncate theirs.
    """
    for topic, index in image.replicated(node_id):
        message = f"lost.log.dirs is not supported yet if partitions have several replicas, as {topic}-{index} has"
        raise ProtocolError(ErrorCode.INVALID_CONFIG, message)
