"""A consumer's subscription: what it reads as a member of its group, and who is told when that changes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from oncelog import errors
from oncelog.client.consumer.classic_member import ClassicMember
from oncelog.client.consumer.consumer_member import ConsumerMember
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.records import check_topic
from oncelog.client.types import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader

LEAVE_S = 0.5
"""How long leaving may take when there is no time left: the others need not wait for a session time-out."""

Listener = Callable[[list[TopicPartition]], object]


class Listeners(NamedTuple):
    """What the user wants to be told, as Kafka's ConsumerRebalanceListener; without `lost`, `revoked` is told so."""

    assigned: Listener | None = None
    revoked: Listener | None = None
    lost: Listener | None = None


class Subscription:
    """Of one reader, on its loop. `member` is None while it reads by `assign`, or not at all."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.member: ClassicMember | ConsumerMember | None = None
        self._listeners = Listeners()
        self.telling = False
        """Whether a listener is being told: nobody may poll then."""

    def begin(self, topics: Iterable[str] | str | re.Pattern[str], listeners: Listeners) -> None:
        """Read topics as a member of the group; a text that begins with ^ is a pattern for their names. UsageError."""
        if self._reader.options["group_id"] is None:
            raise errors.UsageError("subscribe() needs the option group_id; assign() does without")
        if self._reader.states and self.member is None:
            raise errors.UsageError("this consumer has partitions by assign(): unsubscribe() first")
        self.topics, self.pattern = _topics_and_pattern(topics)
        self._listeners = listeners
        if self.member is None:
            modern = self._reader.options["group_protocol"] == "consumer"
            self.member = ConsumerMember(self._reader, self) if modern else ClassicMember(self._reader, self)
        self.member.subscribe(sorted(self.topics), self.pattern)

    async def end(self) -> None:
        """Commit where auto-commit is on, tell the user, leave the group."""
        member = self.member
        if member is not None:
            limit = None
            try:
                await self._reader.commits.settled()
                if not member.intact:  # during a rebalance the others may be given them at any time, as Java has it
                    await self._reader.commits.before_rebalance()
                await self.revoke(list(self._reader.states), lost=not member.intact)
            except asyncio.CancelledError:  # the time of `close` is up
                limit = LEAVE_S
                raise
            finally:
                with contextlib.suppress(TimeoutError):  # the group finds out by its session time-out
                    async with asyncio.timeout(limit):
                        await member.leave()
        self.member = None
        self.topics, self.pattern = frozenset(), None

    def group_metadata(self) -> GroupMetadata:
        """Who commits; UsageError without group_id."""
        options = self._reader.options
        if self.member is not None:
            return self.member.metadata()
        if options["group_id"] is None:
            raise errors.UsageError("this consumer has no group_id")
        return GroupMetadata(options["group_id"], group_instance_id=options["group_instance_id"])

    # -- for the member -------------------------------------------------------------------------------------------

    async def revoke(self, partitions: Iterable[TopicPartition], *, lost: bool = False) -> None:
        """These go, or (`lost`) may be somebody else's already: then nothing can be committed any more.

        The listener sees them assigned still, with their positions, so that it can commit. What it raises goes on to
        whoever polls, and changes nothing about the partitions.
        """
        states = self._reader.states
        gone = {tp: states[tp] for tp in sorted(partitions) if tp in states}
        if not gone:
            return
        if not lost:
            await self._reader.commits.before_rebalance()
        listener = self._listeners.revoked
        if lost and self._listeners.lost is not None:
            listener = self._listeners.lost
        try:
            if listener is not None:
                await self._tell(listener, list(gone))
                await self._reader.commits.settled()  # what the listener has committed in the background
        finally:
            self._reader.commits.gave_up(gone.values())
            self._reader.take_partitions([tp for tp in self._reader.states if tp not in gone])

    async def take(self, partitions: Iterable[TopicPartition]) -> None:
        """These are ours from now on; those that were already go on where they are."""
        wanted = sorted(partitions)
        added = [tp for tp in wanted if tp not in self._reader.states]
        self._reader.take_partitions(wanted)
        self._reader.metadata_watch.assigned(self.topics, (topic for topic, _ in wanted))
        if self._listeners.assigned is not None:
            await self._tell(self._listeners.assigned, added)

    async def _tell(self, listener: Listener, partitions: list[TopicPartition]) -> None:
        if self.member is not None:
            self.member.polled()  # the listener has max.poll.interval.ms, too
        self.telling = True
        try:
            await self._reader.tell(listener, partitions)
        finally:
            self.telling = False


def _topics_and_pattern(topics: Iterable[str] | str | re.Pattern[str]) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """One of the two; UsageError."""
    if isinstance(topics, str) and topics.startswith("^"):
        try:
            topics = re.compile(topics)
        except re.error as error:
            raise errors.UsageError(f"subscribe({topics!r}): no regular expression: {error}") from None
    if isinstance(topics, re.Pattern):
        return frozenset(), topics
    if not isinstance(topics, Iterable):
        raise errors.UsageError(f"subscribe({topics!r}): it takes topics, or a pattern")
    names = frozenset((topics,) if isinstance(topics, str) else topics)
    for name in names:
        check_topic(name)
    if not names:
        raise errors.UsageError("subscribe() needs a topic; unsubscribe() ends a subscription")
    return names, None
