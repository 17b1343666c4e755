"""What a consumer looks after beside its fetches: old metadata, and topics that are not there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncelog import errors

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader

log = logging.getLogger(__name__)


class MetadataWatch:
    """Of one reader, on its loop."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._age = max(reader.options["metadata_max_age_ms"], reader.options["retry_backoff_max_ms"]) / 1000
        self._next = reader.loop.time() + self._age
        self._said: set[str] = set()

    def polled(self) -> None:
        """Ask for leaders again by age (metadata.max.age.ms), whatever the fetches say."""
        now = self._reader.loop.time()
        if now >= self._next:
            self._next = now + self._age
            self._reader.spawn(self._refresh({topic for topic, _ in self._reader.states}))

    def assigned(self, subscribed: frozenset[str], given: Iterable[str]) -> None:
        """Of these topics the group has divided the `given`: look whether the others exist."""
        missing = subscribed - frozenset(given) - self._said
        if missing:
            self._reader.spawn(self._say_missing(missing))

    async def _refresh(self, topics: Iterable[str]) -> None:
        with contextlib.suppress(errors.KafkaError):  # no broker now: fetches say so, and the next round asks again
            await self._reader.cluster.refresh(
                topics, create=self._reader.options["allow_auto_create_topics"]
            )

    async def _say_missing(self, topics: frozenset[str]) -> None:
        """Warn, once a topic (Java does so at each look): a wrong name would be read in silence for ever."""
        await self._refresh(topics)
        for topic in sorted(topics - self._said):
            code = self._reader.cluster.topology.failures.get(topic)
            if code is not None:
                self._said.add(topic)
                log.warning("subscribed to topic %r: %s; its records are read once it is there", topic, code.text)
