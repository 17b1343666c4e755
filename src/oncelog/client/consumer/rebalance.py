"""How a group changes a consumer's assignment: commits before, listeners of the user after (ConsumerCoordinator)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from oncelog.client.consumer.background import PollTimer
from oncelog.client.consumer.commits import Commits
from oncelog.client.consumer.metadata_watch import MetadataWatch
from oncelog.client.consumer.subscription_state import SubscriptionState
from oncelog.client.metrics.fetches import Fetches
from oncelog.protocol.topics import TopicPartition

Listener = Callable[[list[TopicPartition]], object]

CallListener = Callable[[Listener, list[TopicPartition]], Awaitable[None]]
"""Calls a listener in the thread or task in which the user expects it, and raises what it raises."""


class Listeners(NamedTuple):
    """What the user wants to be called, as Kafka's ConsumerRebalanceListener. Without `lost`, `revoked` is called."""

    assigned: Listener | None = None
    revoked: Listener | None = None
    lost: Listener | None = None


class Rebalancer:
    """Change the assignment of one subscribed consumer, on its loop."""

    def __init__(
        self,
        subscription: SubscriptionState,
        commits: Commits,
        metadata_watch: MetadataWatch,
        poll_timer: PollTimer,
        call_listener: CallListener,
        fetches: Fetches,
    ) -> None:
        self._subscription = subscription
        self._commits = commits
        self._metadata_watch = metadata_watch
        self._poll_timer = poll_timer
        self._call_listener = call_listener
        self._fetches = fetches
        self.listeners = Listeners()

    @property
    def assigned(self) -> list[TopicPartition]:
        """The current assignment."""
        return list(self._subscription.partitions)

    async def revoke(self, partitions: Iterable[TopicPartition], *, lost: bool = False) -> None:
        """Commit, call the listener, and remove partitions from the assignment.

        `lost`: another member may own the partitions already, so a commit would be rejected. While the listener runs,
        the partitions are still assigned, so that it can commit their positions. If it raises, the partitions are
        removed nevertheless.
        """
        states = self._subscription.partitions
        revoked = {tp: states[tp] for tp in sorted(partitions) if tp in states}
        if not revoked:
            return
        if not lost:
            await self._commits.before_rebalance()
        listener = self.listeners.revoked
        if lost and self.listeners.lost is not None:
            listener = self.listeners.lost
        try:
            if listener is not None:
                await self._call(listener, list(revoked))
                await self._commits.wait_for_started()  # what the listener has committed in the background
        finally:
            self._commits.revoked(revoked)
            self._subscription.assign([tp for tp in self.assigned if tp not in revoked])

    async def revoke_unsubscribed(self, topics: Collection[str]) -> None:
        """Commit, and revoke the partitions of all but these topics, before a cooperative rebalance."""
        await self._commits.before_rebalance()
        await self.revoke([tp for tp in self.assigned if tp[0] not in topics])

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Make this the assignment, and call the listener with the new partitions. The others keep their positions."""
        wanted = sorted(partitions)
        before = self._subscription.partitions
        added = [tp for tp in wanted if tp not in before]
        self._subscription.assign(wanted)
        self._fetches.rebalanced()
        self.report_missing_topics(topic for topic, _ in wanted)
        if self.listeners.assigned is not None:
            await self._call(self.listeners.assigned, added)

    def report_missing_topics(self, topics: Iterable[str]) -> None:
        """Warn of subscribed topics that do not exist. `topics` are those of which this consumer has partitions."""
        self._metadata_watch.assigned_by_group(topics)

    async def _call(self, listener: Listener, partitions: list[TopicPartition]) -> None:
        with self._poll_timer.listener():
            await self._call_listener(listener, partitions)
