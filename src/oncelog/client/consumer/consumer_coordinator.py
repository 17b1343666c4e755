"""Join and leave the group of one consumer, and know the member's identity (Kafka's ConsumerCoordinator)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any

from oncelog import errors
from oncelog.client.consumer.commits import Commits
from oncelog.client.consumer.member import Member
from oncelog.client.consumer.rebalance import Listeners, Rebalancer
from oncelog.client.consumer.subscription_state import SubscriptionState
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.records import check_topic

LEAVE_S = 0.5
"""How long leaving may take when no time is left. Otherwise other members would wait for a session timeout."""


class ConsumerCoordinator:
    """Keep one consumer in its group while it is subscribed.

    `identity`: the identity with which the consumer commits while it is not subscribed. None without group_id.
    """

    def __init__(
        self,
        identity: GroupMetadata | None,
        subscription: SubscriptionState,
        commits: Commits,
        rebalancer: Rebalancer,
        new_member: Callable[[], Member[Any]],
    ) -> None:
        self._identity = identity
        self._subscription = subscription
        self._commits = commits
        self._rebalancer = rebalancer
        self._new_member = new_member
        self.member: Member[Any] | None = None
        """None unless the consumer is subscribed."""

    def subscribe(self, topics: Iterable[str] | str | re.Pattern[str], listeners: Listeners) -> None:
        """Read topics as a member of the group. A string that begins with ^ is a pattern. Raises UsageError."""
        if self._identity is None:
            raise errors.UsageError("subscribe() needs the option group_id; without a group, use assign()")
        self._subscription.subscribe(*_topics_and_pattern(topics))
        self._rebalancer.listeners = listeners
        if self.member is None:
            self.member = self._new_member()
        self.member.subscribe(sorted(self._subscription.topics), self._subscription.pattern)

    async def leave(self) -> None:
        """Commit if auto-commit is on, revoke all partitions, leave the group, and end the subscription."""
        member = self.member
        if member is None:
            return
        limit = None
        try:
            await self._commits.wait_for_started()
            if not member.intact:  # as in Java: during a rebalance, other members may get the partitions at any time
                await self._commits.before_rebalance()
            await self._rebalancer.revoke(self._rebalancer.assigned, lost=not member.intact)
        except asyncio.CancelledError:  # the timeout of `close` has expired
            limit = LEAVE_S
            raise
        finally:
            with contextlib.suppress(TimeoutError):  # the coordinator removes the member after its session timeout
                async with asyncio.timeout(limit):
                    await member.leave()
        self.member = None
        self._subscription.unsubscribe()

    @property
    def joining(self) -> bool:
        """Whether the member joins the next generation now."""
        return self.member is not None and self.member.joining

    def group_metadata(self) -> GroupMetadata:
        """Return the identity with which the consumer commits. Raises UsageError without group_id."""
        if self.member is not None:
            return self.member.metadata()
        if self._identity is None:
            raise errors.UsageError("this call needs the option group_id, which the consumer does not have")
        return self._identity


def _topics_and_pattern(topics: Iterable[str] | str | re.Pattern[str]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Return topics or a pattern. Raises UsageError."""
    if isinstance(topics, str) and topics.startswith("^"):
        try:
            topics = re.compile(topics)
        except re.error as error:
            raise errors.UsageError(f"subscribe({topics!r}): it is not a regular expression: {error}") from None
    if isinstance(topics, re.Pattern):
        return frozenset(), topics
    if not isinstance(topics, Iterable):
        raise errors.UsageError(
            f"subscribe({topics!r}): it takes topic names or a pattern, not {type(topics).__name__}"
        )
    names = frozenset((topics,) if isinstance(topics, str) else topics)
    for name in names:
        check_topic(name)
    if not names:
        raise errors.UsageError("subscribe() needs at least one topic; to end a subscription, call unsubscribe()")
    return names, None
