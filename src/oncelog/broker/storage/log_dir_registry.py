"""The log directories that a broker has had, in the versioned tree: one that is empty or left out is noticed.

Without this a disk that was not mounted, or a forgotten entry of `log.dirs`, would look like partitions without a
record: they would begin anew, and consumers with them. Kafka notices by `meta.properties`, and by the directory ids of
its metadata (KIP-858).
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from oncelog.cluster.store import MetadataStore, NoNodeError, ensure

PATH = "/oncelog/log_dirs"

Known = dict[UUID, str]
"""directory.id -> path, absolute."""


class _Node(msgspec.Struct):
    log_dirs: dict[str, str]
    version: int = 1


def read(store: MetadataStore, node_id: int) -> Known:
    """Those of a broker (blocking); none before its first start."""
    try:
        node = store.get(f"{PATH}/{node_id}")
    except NoNodeError:
        return {}
    found = msgspec.json.decode(node.data, type=_Node).log_dirs
    return {UUID(text): path for text, path in found.items()}


def write(store: MetadataStore, node_id: int, known: Mapping[UUID, str]) -> None:
    """Notes them (blocking): only this broker does."""
    path = f"{PATH}/{node_id}"
    ensure(store, path)
    store.set(path, msgspec.json.encode(_Node({str(key): value for key, value in known.items()})))
