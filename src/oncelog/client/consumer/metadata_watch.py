"""A consumer's metadata beside its fetches: refresh by age, and a warning for each topic that does not exist."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Set
from typing import Any

from oncelog import errors
from oncelog.client.consumer.background import Background
from oncelog.client.consumer.subscription_state import SubscriptionState
from oncelog.client.discovery.cluster import ClusterClient

log = logging.getLogger("oncelog.client.consumer")

ASSIGNED, SUBSCRIBED = "assigned", "subscribed to"


class MetadataWatch:
    """Watch the topics of one consumer, on its loop."""

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: SubscriptionState,
        options: Mapping[str, Any],
        background: Background,
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._create = options["allow_auto_create_topics"]
        self._background = background
        self._age = max(options["metadata_max_age_ms"], options["retry_backoff_max_ms"]) / 1000
        self._next = background.loop.time() + self._age
        self.warned: set[str] = set()
        """Topics that did not exist when they were checked."""
        self._unchecked: set[str] = set()
        """Topics that the user has assigned, and the next poll checks."""

    def polled(self) -> None:
        """Refresh metadata by age (metadata.max.age.ms), and check topics that the user has assigned."""
        now = self._background.loop.time()
        if now >= self._next:
            self._next = now + self._age
            self._background.run(self._refresh_assigned())
        if self._unchecked:
            self._check_assigned()

    def assigned_by_user(self) -> None:
        """Let the next poll check whether the assigned topics exist."""
        self._unchecked = {topic for topic, _ in self._subscription.partitions}

    def _check_assigned(self) -> None:
        known = self._cluster.topology.topics.keys() | self.warned
        missing = self._unchecked.intersection(topic for topic, _ in self._subscription.partitions) - known
        self._unchecked = set()
        if missing:
            self._background.run(self._warn_of_missing(missing, ASSIGNED))

    def assigned_by_group(self, topics: Iterable[str]) -> None:
        """Check whether the subscribed topics exist of which this consumer has no partition.

        `topics` are the topics of which it has partitions.
        """
        missing = self._subscription.topics - frozenset(topics) - self.warned
        if missing:
            self._background.run(self._warn_of_missing(missing, SUBSCRIBED))

    async def _refresh_assigned(self) -> None:
        await self._refresh({topic for topic, _ in self._subscription.partitions})

    async def _refresh(self, topics: Iterable[str]) -> bool:
        """Return whether a broker has answered. If none has, fetches report it, and a later round tries again."""
        with contextlib.suppress(errors.KafkaError):
            await self._cluster.refresh(topics, create=self._create)
            return True
        return False

    async def _warn_of_missing(self, topics: Set[str], how: str) -> None:
        """Warn once for each topic (Java warns at each check), because a wrong name never has records."""
        if not await self._refresh(topics):
            if how == ASSIGNED:  # the next rebalance checks subscribed topics again
                self._unchecked |= topics
            return
        for topic in sorted(topics - self.warned):
            code = self._cluster.topology.failures.get(topic)
            if code is not None:
                self.warned.add(topic)
                why = str(errors.error_for(code, code.text)).rstrip(".")
                log.warning("%s topic %r: %s; reading it as soon as it is available", how, topic, why)
