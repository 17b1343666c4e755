"""The metadata of the cluster at one moment, and the difference between two moments (Kafka's `MetadataImage`).

An image never changes. Code that holds one may use it after a newer one has been published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from oncelog.cluster.acls import NO_ACLS, AclSet
from oncelog.cluster.brokers import BrokerInfo
from oncelog.cluster.delegation_tokens import DelegationToken
from oncelog.cluster.quotas import NO_QUOTAS, QuotaSet
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from oncelog.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The topics, settings, features, ACLs, quotas and tokens that the tree held after change number `sequence`.

    `brokers` and `controller` may be newer: the store changes them when a session ends, and logs no change.
    """

    sequence: int = -1
    topics_by_name: Mapping[str, TopicInfo] = field(default_factory=dict)
    topics_by_id: Mapping[int, TopicInfo] = field(default_factory=dict)
    """The key is `UUID.int`: hashing and comparing UUIDs runs Python code for each Produce and Fetch."""
    broker_configs: Mapping[int | None, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic settings by broker id. None is the key of the settings of all brokers."""
    user_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """The SCRAM credentials of each user by name, and then by mechanism."""
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings of each client metrics subscription by name (KIP-714). The same object until one changes."""
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings that groups have of their own, by the group's id (KIP-848)."""
    feature_levels: Mapping[str, int] = field(default_factory=dict)
    feature_epoch: int = -1
    acls: AclSet = NO_ACLS
    quotas: QuotaSet = NO_QUOTAS
    tokens: Mapping[str, DelegationToken] = field(default_factory=dict, repr=False)
    """The delegation tokens by id, also those that have expired but are not removed yet."""
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    """The registered brokers by id."""
    controller: int = -1
    """The id of the broker that is the controller, or -1."""
    _by_folded_name: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def topic(self, name: str) -> TopicInfo | None:
        """Return the topic of that name, or None if it does not exist."""
        return self.topics_by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        """Return the topic of that id, or None if it does not exist."""
        return self.topics_by_id.get(topic_id.int)

    def partition(self, name: str, index: int) -> PartitionInfo | None:
        """Return a partition of a topic, or None if it does not exist."""
        topic = self.topics_by_name.get(name)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None

    def topics(self) -> Iterator[TopicInfo]:
        """Yield all topics, sorted by name."""
        for name in sorted(self.topics_by_name):
            yield self.topics_by_name[name]

    def replicated(self, broker: int) -> Iterator[TopicPartition]:
        """Yield each partition of which the broker and at least one other broker have replicas."""
        for topic in self.topics():
            for index, info in enumerate(topic.partitions):
                if broker in info.replicas and len(info.replicas) > 1:
                    yield topic.name, index

    def colliding(self, name: str) -> str | None:
        """Return an existing topic whose name differs from `name` only in '.' and '_', or None.

        The metrics of the two topics would have the same names.
        """
        return next((other for other in sorted(self._by_folded_name.get(_folded(name), ())) if other != name), None)

    def feature_level(self, name: str) -> int:
        """Return the finalized level of a feature, or 0 if it has none."""
        return self.feature_levels.get(name, 0)

    def with_topics(self, changes: Mapping[str, TopicInfo | None]) -> MetadataImage:
        """Return an image with these topics changed. The value None marks a deleted topic."""
        by_name, by_id, by_folded = dict(self.topics_by_name), dict(self.topics_by_id), dict(self._by_folded_name)
        for name, topic in changes.items():
            before = by_name.pop(name, None)
            if before is not None:
                del by_id[before.topic_id.int]
            if topic is not None:
                by_name[name] = by_id[topic.topic_id.int] = topic
            if (before is None) != (topic is None):
                key = _folded(name)
                names = by_folded.pop(key, frozenset()) ^ {name}
                if names:
                    by_folded[key] = names
        return replace(self, topics_by_name=by_name, topics_by_id=by_id, _by_folded_name=by_folded)


class MetadataCache:
    """The newest image that this broker has."""

    __slots__ = ("image",)

    def __init__(self) -> None:
        self.image = MetadataImage()


@dataclass(frozen=True, slots=True)
class MetadataDelta:
    """The difference between two images. A topic that was deleted and created again is in both lists."""

    before: MetadataImage
    after: MetadataImage
    deleted_topics: tuple[TopicInfo, ...]
    created_topics: tuple[TopicInfo, ...]
    changed_topics: tuple[TopicInfo, ...]
    """Topics with other settings, partitions or leaders than before, as they are now."""
    changed_partitions: Mapping[str, Sequence[int]]
    """The partitions, by topic, that are new, or that have other replicas or another state than before."""

    def settings_changed(self, topic: TopicInfo) -> bool:
        """Return whether a changed topic has other settings than before."""
        before = self.before.topic(topic.name)
        return before is not None and before.configs != topic.configs

    def broker_configs_changed(self, broker: int) -> bool:
        """Return whether a dynamic setting of this broker, or one of all brokers, has changed."""
        before, after = self.before.broker_configs, self.after.broker_configs
        return any(before.get(key, {}) != after.get(key, {}) for key in (None, broker))

    @property
    def brokers_changed(self) -> bool:
        """Return whether a broker, or the choice of the controller, has changed."""
        before, after = self.before, self.after
        return before.brokers != after.brokers or before.controller != after.controller


def difference(before: MetadataImage, after: MetadataImage, names: Iterable[str] | None = None) -> MetadataDelta:
    """Compare two images. `names` are the topics that may differ, or None for all topics."""
    deleted, created, changed = [], [], []
    partitions: dict[str, Sequence[int]] = {}
    if names is None:
        names = {*before.topics_by_name, *after.topics_by_name}
    for name in sorted(names):
        old, new = before.topic(name), after.topic(name)
        if old is not None and new is not None and old.topic_id == new.topic_id:
            if old != new:
                changed.append(new)
                partitions[name] = _changed(old, new)
            continue
        if old is not None:
            deleted.append(old)
        if new is not None:
            created.append(new)
            partitions[name] = range(new.partition_count)
    return MetadataDelta(before, after, tuple(deleted), tuple(created), tuple(changed), partitions)


def _changed(old: TopicInfo, new: TopicInfo) -> list[int]:
    pairs = zip(old.partitions, new.partitions, strict=False)
    changed = [index for index, (was, now) in enumerate(pairs) if was is not now and was != now]
    return [*changed, *range(old.partition_count, new.partition_count)]


def _folded(name: str) -> str:
    """Return the common name of all topics whose metrics would collide."""
    return name.replace(".", "_")
