"""What a consumer looks after beside its fetches: old metadata, and topics that are not there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING

from oncelog import errors

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader

log = logging.getLogger(__name__)

ASSIGNED, SUBSCRIBED = "assigned", "subscribed to"


class MetadataWatch:
    """Of one reader, on its loop."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._age = max(reader.options["metadata_max_age_ms"], reader.options["retry_backoff_max_ms"]) / 1000
        self._next = reader.loop.time() + self._age
        self._said: set[str] = set()
        self._unlooked: set[str] = set()
        """Topics of an `assign` of which nobody has looked whether they exist."""

    def polled(self) -> None:
        """Ask for leaders again by age (metadata.max.age.ms), whatever the fetches say."""
        now = self._reader.loop.time()
        if now >= self._next:
            self._next = now + self._age
            self._reader.spawn(self._refresh({topic for topic, _ in self._reader.states}))
        if self._unlooked:
            self._look_for_assigned()

    def chosen(self, topics: Iterable[str]) -> None:
        """The user reads these, without a group: the next poll looks whether they exist."""
        self._unlooked = set(topics)

    def _look_for_assigned(self) -> None:
        known = self._reader.cluster.topology.topics.keys() | self._said
        missing = self._unlooked.intersection(topic for topic, _ in self._reader.states) - known
        self._unlooked = set()
        if missing:
            self._reader.spawn(self._say_missing(missing, ASSIGNED))

    def assigned(self, subscribed: frozenset[str], given: Iterable[str]) -> None:
        """Of these topics the group has divided the `given`: look whether the others exist."""
        missing = subscribed - frozenset(given) - self._said
        if missing:
            self._reader.spawn(self._say_missing(missing, SUBSCRIBED))

    async def _refresh(self, topics: Iterable[str]) -> bool:
        """Whether a broker has answered."""
        with contextlib.suppress(errors.KafkaError):  # no broker now: fetches say so, and the next round asks again
            await self._reader.cluster.refresh(topics, create=self._reader.options["allow_auto_create_topics"])
            return True
        return False

    async def _say_missing(self, topics: Set[str], how: str) -> None:
        """Warn, once a topic (Java does so at each look): a wrong name would be read in silence for ever."""
        if not await self._refresh(topics) and how == ASSIGNED:
            self._unlooked |= topics
            return  # no rebalance looks again: the next poll has to
        for topic in sorted(topics - self._said):
            code = self._reader.cluster.topology.failures.get(topic)
            if code is not None:
                self._said.add(topic)
                log.warning("%s topic %r: %s; its records are read once it is there", how, topic, code.text)
