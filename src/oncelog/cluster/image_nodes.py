"""Read the metadata image from the versioned tree, in full or only its changes. All functions block."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import msgspec

from oncelog.cluster import (
    acl_nodes,
    changes,
    configs,
    delegation_tokens,
    features,
    quota_nodes,
    users,
)
from oncelog.cluster.acls import NO_ACLS, AclSet
from oncelog.cluster.brokers import BOOTS, BROKER_EPOCHS, BROKERS, read_controller, read_registrations
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.image import MetadataDelta, MetadataImage, difference
from oncelog.cluster.named_configs import CLIENT_METRICS, GROUPS
from oncelog.cluster.quotas import QuotaSet
from oncelog.cluster.store import MetadataStore, NodeExistsError, NoNodeError, ensure
from oncelog.cluster.topic_nodes import (
    ADDED,
    TOPICS,
    complete_topic_ids,
    read_added_partitions,
    read_states,
    read_topic,
)
from oncelog.cluster.topics import TOPIC_IDS, TopicInfo

_CLUSTER_ID = "/cluster/id"
_WHOLE = "whole"
_SETTINGS = "settings"

_log = logging.getLogger("oncelog.cluster")


class _ClusterNode(msgspec.Struct, kw_only=True):
    """Kafka's node has only a version and an id. All values are strings."""

    version: str = "1"
    id: str
    created_ms: str = ""
    """When the tree was created, in ms since the epoch. Empty if an older version of oncelog has created it."""


def prepare(store: MetadataStore) -> None:
    """Create the fixed nodes of the tree, and those of topic ids, that are missing."""
    fixed = (BROKERS, TOPICS, TOPIC_IDS, "/config/topics", configs.BROKERS, users.USERS, "/cluster", acl_nodes.ACLS)
    ensure(
        store,
        *fixed,
        quota_nodes.CLIENTS,
        quota_nodes.IPS,
        CLIENT_METRICS.parent,
        GROUPS.parent,
        *delegation_tokens.PARENTS,
        changes.PATH,
        BROKER_EPOCHS,
        BOOTS,
    )
    complete_topic_ids(store)


def is_new(store: MetadataStore) -> bool:
    """Return whether no cluster has been created in this tree yet."""
    return not store.exists(_CLUSTER_ID)


def create_cluster(store: MetadataStore, cluster_id: str, now_ms: int) -> None:
    """Create the cluster's node, with its id and the present time, if it does not exist."""
    if is_new(store):
        with suppress(NodeExistsError):  # another broker has started meanwhile
            store.create(_CLUSTER_ID, msgspec.json.encode(_ClusterNode(id=cluster_id, created_ms=str(now_ms))))


def cluster_id(store: MetadataStore) -> str:
    """Return the id of the cluster."""
    return _cluster(store).id


def created_ms(store: MetadataStore) -> int | None:
    """Return when the tree was created, or None if an older version of oncelog has created it.

    The logs may be older, because their metadata was imported from Kafka or restored from the log directories.
    """
    found = _cluster(store).created_ms
    return int(found) if found else None


def _cluster(store: MetadataStore) -> _ClusterNode:
    return msgspec.json.decode(store.get(_CLUSTER_ID).data, type=_ClusterNode)


def read_image(store: MetadataStore) -> MetadataImage:
    """Read the whole image."""
    sequence = ChangeLog(store).since(-1).last  # read first, so that a later change is read twice, not missed
    topics = {name: _topic(store, name) for name in store.children(TOPICS)}
    levels, epoch = features.read(store)
    image = MetadataImage(
        sequence=sequence,
        broker_configs=configs.read_brokers(store),
        user_configs=users.read_users(store),
        client_metrics=CLIENT_METRICS.read_all(store),
        group_configs=GROUPS.read_all(store),
        feature_levels=levels,
        feature_epoch=epoch,
        acls=NO_ACLS.with_changes(acl_nodes.read_all(store)),
        quotas=QuotaSet(quota_nodes.read_all(store)),
        tokens=delegation_tokens.read_all(store),
    )
    return _with_brokers(store, image.with_topics(topics))


def read_changes(store: MetadataStore, image: MetadataImage, *, brokers: bool = True) -> MetadataDelta | None:
    """Read the changes since `image`. Return None if nothing has changed.

    The log of changes does not name brokers that have come or gone. With `brokers`, they are read in any case.
    """
    missed = ChangeLog(store).since(image.sequence)
    if missed.paths is None:
        return difference(image, read_image(store))
    touched = _touched(missed.paths)
    after = image
    if missed.last != image.sequence:
        changed = {name: _newest(store, image, name, parts) for name, parts in touched.items()}
        after = replace(image.with_topics(changed) if changed else image, sequence=missed.last)
    if brokers or any(path.startswith(f"{BROKERS}/") for path in missed.paths):
        after = _with_brokers(store, after)
    if after.sequence == image.sequence and not difference(image, after, ()).brokers_changed:
        return None
    if any(path.startswith(f"{configs.BROKERS}/") for path in missed.paths):
        after = replace(after, broker_configs=configs.read_brokers(store))
    if users.touched(missed.paths):
        after = replace(after, user_configs=users.read_users(store))
    if subscriptions := CLIENT_METRICS.touched(missed.paths):
        after = replace(after, client_metrics=CLIENT_METRICS.read_changed(store, image.client_metrics, subscriptions))
    if groups := GROUPS.touched(missed.paths):
        after = replace(after, group_configs=GROUPS.read_changed(store, image.group_configs, groups))
    quotas = quota_nodes.touched(missed.paths)
    if quotas is None:
        after = replace(after, quotas=QuotaSet(quota_nodes.read_all(store)))
    elif quotas:
        after = replace(after, quotas=after.quotas.with_changes(quota_nodes.read_changed(store, quotas)))
    if features.PATH in missed.paths:
        levels, epoch = features.read(store)
        after = replace(after, feature_levels=levels, feature_epoch=epoch)
    names = acl_nodes.touched(missed.paths)
    if names is None or names:
        after = replace(after, acls=_newest_acls(store, image.acls, names))
    if ids := delegation_tokens.touched(missed.paths):
        after = replace(after, tokens=delegation_tokens.read_changed(store, image.tokens, ids))
    return difference(image, after, touched)


def _newest_acls(store: MetadataStore, known: AclSet, names: list[str] | None) -> AclSet:
    """Return the ACLs after a change of these nodes, or of any nodes if `names` is None."""
    if names is None:
        return known.with_changes(acl_nodes.read_newest(store, known))
    return known.with_changes(acl_nodes.read_changed(store, names))


def _with_brokers(store: MetadataStore, image: MetadataImage) -> MetadataImage:
    """Return the image with the present brokers and controller."""
    return replace(image, brokers=read_registrations(store), controller=read_controller(store))


def _touched(paths: frozenset[str]) -> dict[str, set[str | int]]:
    """Return the topics that changes touched.

    The values say which parts: _WHOLE, ADDED, _SETTINGS, or the number of a partition whose state has changed.
    """
    found: dict[str, set[str | int]] = {}
    for path in sorted(paths):
        if path.startswith(f"{TOPICS}/"):
            name, *rest = path[len(TOPICS) + 1 :].split("/")
            parts: Iterable[str | int] = [_WHOLE]
            if rest == [ADDED]:
                parts = [ADDED]
            elif len(rest) == 3:
                parts = map(int, rest[1].split(","))
            found.setdefault(name, set()).update(parts)
        elif path.startswith(configs.topic_path("")):
            found.setdefault(path[len(configs.topic_path("")) :], set()).add(_SETTINGS)
    return found


def _newest(store: MetadataStore, image: MetadataImage, name: str, touched: set[str | int]) -> TopicInfo | None:
    """Read the touched parts of a topic. If they cannot be read, log it and return the topic of `image`."""
    known = image.topic(name)
    try:
        if known is None or _WHOLE in touched:
            return _topic(store, name)
        try:
            if ADDED in touched:
                known = read_added_partitions(store, known)
            known = read_states(store, known, [part for part in touched if isinstance(part, int)])
            if _SETTINGS in touched:
                known = replace(known, configs=configs.read(store, configs.topic_path(name)))
        except NoNodeError:
            return _topic(store, name)
    except (NoNodeError, msgspec.MsgspecError, ValueError) as error:
        _log.error("cannot read the metadata of topic %s; keeping its last state: %s", name, error)
        return image.topic(name)
    return known


def _topic(store: MetadataStore, name: str) -> TopicInfo | None:
    """Read a topic, or return None if it does not exist.

    If another writer changes the topic meanwhile, read it again. Raises NoNodeError if a part of the topic is missing.
    """
    path = f"{TOPICS}/{name}"
    while store.exists(path):
        before = None
        try:
            before = store.get(path)
            topic = read_topic(store, name)
        except NoNodeError:
            if store.exists(path) and store.get(path) == before:
                raise
            continue
        if store.exists(path) and store.get(path) == before:
            return topic
    return None
