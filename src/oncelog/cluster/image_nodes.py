"""Read the metadata image from the versioned tree: all of it, or only what has changed. All functions block."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from oncelog.cluster import changes, configs, features
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.image import MetadataDelta, MetadataImage, difference
from oncelog.cluster.store import MetadataStore, NoNodeError, ensure
from oncelog.cluster.topic_nodes import TOPICS, read_topic
from oncelog.cluster.topics import TopicInfo

_CLUSTER_ID = "/cluster/id"


def prepare(store: MetadataStore) -> None:
    """Create the fixed nodes of the tree that are missing."""
    for path in ("/brokers/ids", TOPICS, "/config/topics", configs.BROKERS, "/cluster", changes.PATH):
        ensure(store, path)


def is_new(store: MetadataStore) -> bool:
    """Return whether no cluster has been created in this tree yet."""
    return not store.exists(_CLUSTER_ID)


def cluster_id(store: MetadataStore, proposal: str) -> str:
    """Return the id of the cluster. If the cluster is new, its id becomes `proposal`."""
    if is_new(store):
        store.create(_CLUSTER_ID, msgspec.json.encode({"version": "1", "id": proposal}))
    return str(msgspec.json.decode(store.get(_CLUSTER_ID).data, type=dict[str, str])["id"])


def read_image(store: MetadataStore) -> MetadataImage:
    """Read the whole image."""
    sequence = ChangeLog(store).since(-1).last  # read first: a later change is read twice rather than not at all
    topics = {name: _topic(store, name) for name in store.children(TOPICS)}
    levels, epoch = features.read(store)
    image = MetadataImage(
        sequence=sequence, broker_configs=configs.read_brokers(store), feature_levels=levels, feature_epoch=epoch
    )
    return image.with_topics(topics)


def read_changes(store: MetadataStore, image: MetadataImage) -> MetadataDelta | None:
    """Read what has changed since `image`, or return None if nothing has changed."""
    missed = ChangeLog(store).since(image.sequence)
    if missed.last == image.sequence:
        return None
    if missed.paths is None:
        return difference(image, read_image(store))
    names = {name for path in missed.paths if (name := _topic_name(path))}
    after = replace(image.with_topics({name: _topic(store, name) for name in names}), sequence=missed.last)
    if any(path.startswith(f"{configs.BROKERS}/") for path in missed.paths):
        after = replace(after, broker_configs=configs.read_brokers(store))
    if features.PATH in missed.paths:
        levels, epoch = features.read(store)
        after = replace(after, feature_levels=levels, feature_epoch=epoch)
    return difference(image, after, names)


def _topic_name(path: str) -> str | None:
    """Return the name of the topic that a change touched, if any."""
    return next((path[len(root) :] for root in (f"{TOPICS}/", configs.topic_path("")) if path.startswith(root)), None)


def _topic(store: MetadataStore, name: str) -> TopicInfo | None:
    """Read a topic, or return None if it does not exist. Read it again if it was deleted and created meanwhile."""
    while store.exists(f"{TOPICS}/{name}"):
        try:
            return read_topic(store, name)
        except NoNodeError:
            continue
    return None
