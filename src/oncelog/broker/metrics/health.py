"""Whether a broker is ready for clients, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oncelog.broker.coordinators.coordinators import Coordinators
from oncelog.broker.membership import Membership
from oncelog.broker.storage.partitions import Partitions
from oncelog.cluster.image import MetadataCache
from oncelog.protocol.errors import ProtocolError

MOST_NAMED = 10
"""Logs that an answer names; the others are only counted."""


@dataclass(frozen=True, slots=True)
class Health:
    """Ready means: the broker is registered, the logs that it leads are open, its coordinators are loaded."""

    membership: Membership
    cache: MetadataCache
    partitions: Partitions
    coordinators: Coordinators

    def missing(self) -> list[str]:
        """Return what the broker lacks, a sentence for each; nothing if it is ready."""
        image = self.cache.image
        node = self.membership.node_id
        if node not in image.brokers:
            return [f"broker {node} is not registered"]
        found = list(self._logs())
        try:
            self.coordinators.check_loaded()
        except ProtocolError as error:
            found.append(str(error))
        return found

    def _logs(self) -> Iterator[str]:
        """Name the logs that this broker leads and has not opened."""
        closed = []
        for topic in self.cache.image.topics():
            for index, info in enumerate(topic.partitions):
                leads = info.leader == self.membership.node_id
                if leads and self.partitions.opened_replica(topic.name, index) is None:
                    closed.append(f"{topic.name}-{index}")
        if closed:
            more = f" and {len(closed) - MOST_NAMED} more" if len(closed) > MOST_NAMED else ""
            yield f"logs that are not open: {', '.join(closed[:MOST_NAMED])}{more}"
