"""What the coordinators of groups know of topics. The broker looks them up in its newest metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID


class Topic(Protocol):
    """A topic that exists."""

    @property
    def name(self) -> str:
        """Return its name."""

    @property
    def topic_id(self) -> UUID:
        """Return its id."""

    @property
    def partition_count(self) -> int:
        """Return the number of its partitions."""


Racks = Sequence[frozenset[str]]
"""The racks of each partition's replicas. It is empty if no broker has a rack."""


class Topics(Protocol):
    """All topics."""

    def by_name(self, name: str) -> Topic | None:
        """Return the topic of this name, None if there is none."""

    def by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic of this id, None if there is none."""

    def racks(self, topic: Topic) -> Racks:
        """Return the racks of the topic's partitions."""
