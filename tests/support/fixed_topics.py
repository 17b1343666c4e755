"""Topics for tests of the group coordinator, by name and number of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID, uuid5

from oncelog.coordinator.groups.topics import Racks, Topic

_NAMES = UUID(int=1)


@dataclass(frozen=True)
class FixedTopic:
    """A topic whose id follows from its name."""

    name: str
    partition_count: int

    @property
    def topic_id(self) -> UUID:
        """Return the id."""
        return topic_id(self.name)


class FixedTopics:
    """`coordinator.groups.topics.Topics` that a test changes by `counts`."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts = dict(counts or {})

    def by_name(self, name: str) -> Topic | None:
        """Return the topic of this name."""
        count = self.counts.get(name)
        return None if count is None else FixedTopic(name, count)

    def by_id(self, wanted: UUID) -> Topic | None:
        """Return the topic of this id."""
        return next((FixedTopic(name, count) for name, count in self.counts.items() if topic_id(name) == wanted), None)

    def racks(self, _: Topic) -> Racks:
        """Return no racks."""
        return ()


def topic_id(name: str) -> UUID:
    """Return the id of a topic."""
    return uuid5(_NAMES, name)
