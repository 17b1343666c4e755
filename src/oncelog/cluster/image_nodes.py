"""Read the metadata image from the versioned tree: all of it, or only what has changed. All functions block."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from oncelog.cluster import changes, configs, features
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.image import MetadataDelta, MetadataImage, difference
from oncelog.cluster.topic_nodes import TOPICS, read_topic
from oncelog.cluster.topics import TopicInfo
from oncelog.cluster.tree import NoNodeError, Tree, ensure

_CLUSTER_ID = "/cluster/id"


def prepare(tree: Tree) -> None:
    """Create the fixed nodes of the tree that are missing."""
    for path in ("/brokers/ids", TOPICS, "/config/topics", configs.BROKERS, "/cluster", changes.PATH):
        ensure(tree, path)


def is_new(tree: Tree) -> bool:
    """Return whether no cluster has been created in this tree yet."""
    return not tree.exists(_CLUSTER_ID)


def cluster_id(tree: Tree, proposal: str) -> str:
    """Return the id of the cluster. If the cluster is new, its id becomes `proposal`."""
    if is_new(tree):
        tree.create(_CLUSTER_ID, msgspec.json.encode({"version": "1", "id": proposal}))
    return str(msgspec.json.decode(tree.get(_CLUSTER_ID).data, type=dict[str, str])["id"])


def read_image(tree: Tree) -> MetadataImage:
    """Read the whole image."""
    sequence = ChangeLog(tree).since(-1).last  # read first: a later change is read twice rather than not at all
    topics = {name: _topic(tree, name) for name in tree.children(TOPICS)}
    levels, epoch = features.read(tree)
    image = MetadataImage(
        sequence=sequence, broker_configs=configs.read_brokers(tree), feature_levels=levels, feature_epoch=epoch
    )
    return image.with_topics(topics)


def read_changes(tree: Tree, image: MetadataImage) -> MetadataDelta | None:
    """Read what has changed since `image`, or return None if nothing has changed."""
    missed = ChangeLog(tree).since(image.sequence)
    if missed.last == image.sequence:
        return None
    if missed.paths is None:
        return difference(image, read_image(tree))
    names = {name for path in missed.paths if (name := _topic_name(path))}
    after = replace(image.with_topics({name: _topic(tree, name) for name in names}), sequence=missed.last)
    if any(path.startswith(f"{configs.BROKERS}/") for path in missed.paths):
        after = replace(after, broker_configs=configs.read_brokers(tree))
    if features.PATH in missed.paths:
        levels, epoch = features.read(tree)
        after = replace(after, feature_levels=levels, feature_epoch=epoch)
    return difference(image, after, names)


def _topic_name(path: str) -> str | None:
    """Return the name of the topic that a change touched, if any."""
    return next((path[len(root) :] for root in (f"{TOPICS}/", configs.topic_path("")) if path.startswith(root)), None)


def _topic(tree: Tree, name: str) -> TopicInfo | None:
    """Read a topic, or return None if it does not exist. Read it again if it was deleted and created meanwhile."""
    while tree.exists(f"{TOPICS}/{name}"):
        try:
            return read_topic(tree, name)
        except NoNodeError:
            continue
    return None
