"""What the group coordinators know of topics: the newest metadata, and the topics that regular expressions match."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from oncelog.broker.turns import ITEMS_A_TURN, Yielder
from oncelog.cluster.image import MetadataCache, MetadataImage
from oncelog.cluster.topics import TopicInfo
from oncelog.coordinator.groups.topics import Racks, Topic
from oncelog.coordinator.patterns import matching, subscription
from oncelog.protocol.errors import ProtocolError


class ImageTopics:
    """The topics in the newest metadata (`coordinator.groups.topics.Topics`)."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def by_name(self, name: str) -> TopicInfo | None:
        """Return the topic of this name."""
        return self._cache.image.topic(name)

    def by_id(self, topic_id: UUID) -> TopicInfo | None:
        """Return the topic of this id."""
        return self._cache.image.topic_by_id(topic_id)

    def racks(self, topic: Topic) -> Racks:
        """Return the racks of the brokers that have each partition and are running."""
        image = self._cache.image
        racks = {broker: info.rack for broker, info in image.brokers.items() if info.rack is not None}
        info = image.topic_by_id(topic.topic_id) if racks else None
        if info is None:
            return ()
        return [
            frozenset(racks[broker] for broker in partition.replicas if broker in racks)
            for partition in info.partitions
        ]


async def matching_topics(text: str, image: MetadataImage, may_describe: Callable[[str], bool]) -> frozenset[str]:
    """Return the topics whose whole names match a regular expression, if the client may describe them.

    As in Kafka, these may be internal topics.
    """
    try:
        pattern = subscription(text)
    except ProtocolError:  # a log of Kafka has it, and it exceeds our limits: it matches nothing
        return frozenset()
    names = list(image.topics_by_name)
    yielder = Yielder()
    matched = []
    for first in range(0, len(names), ITEMS_A_TURN):
        for name in matching(pattern, names[first : first + ITEMS_A_TURN], str):
            await yielder.next()
            if name is not None and may_describe(name):
                matched.append(name)
        await yielder.next(ITEMS_A_TURN)
    return frozenset(matched)
