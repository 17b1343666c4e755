"""What a broker can notice about its log directory: which losses show at its next start."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.broker.storage.data_directory import GENERATION, generation_in
from oncelog.broker.storage.losses import decode
from oncelog.cluster.brokers import BOOTS
from oncelog.cluster.store import MetadataStore
from oncelog.sim.disk import Content
from support.cluster_plans import DATA


def generation_of(copied: Mapping[str, bytes]) -> int:
    """Return the generation of a copied directory. Without a copy, return a generation that is never too old."""
    return generation_in(copied.get(f"{DATA}/{GENERATION}")) if copied else 1 << 62


def noted_generation(store: MetadataStore, broker: int) -> int:
    """Return the generation of a broker's directory that the store has."""
    return max(decode(store.get(f"{BOOTS}/{broker}").data, ()).generations.values(), default=0)


def has_committed(files: Mapping[str, Content], folder: str) -> bool:
    """Return whether the checkpoints name committed records of the partition in this folder."""
    key = folder.rpartition("/")[2].rpartition("-")
    mark, start = (_offset(files, name, key[0], key[2]) for name in ("replication", "log-start"))
    return mark > start


def _offset(files: Mapping[str, Content], kind: str, topic: str, partition: str) -> int:
    """Return the offset of a partition in one of Kafka's checkpoints, or 0."""
    content = files.get(f"{DATA}/{kind}-offset-checkpoint")
    lines = bytes(content.data).decode().splitlines()[2:] if content is not None else []
    return next((int(line.split()[2]) for line in lines if line.split()[:2] == [topic, partition]), 0)
