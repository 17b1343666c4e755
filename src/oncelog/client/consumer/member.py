"""What the drivers of both group protocols have alike: a place in a group, kept by heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from oncelog import errors
from oncelog.client.connections.backoff import Backoff
from oncelog.client.group_offsets import GroupMetadata
from oncelog.net.connection import ClientConnection, ConnectionLostError, NoCommonVersionError
from oncelog.protocol.schema import Message

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader
    from oncelog.client.consumer.subscription import Subscription

log = logging.getLogger(__name__)

SLOW = "no poll for max_poll_interval_ms = %d: leaving group %r; process fewer records a poll, or allow more"


class AnyMembership(Protocol):
    """The state of a membership in either protocol."""

    group_id: str
    lost: bool

    def metadata(self) -> GroupMetadata:
        """Who commits."""

    def leave_request(self) -> Message | None:
        """To the coordinator; None where it is not to know."""

    def forget(self) -> None:
        """The membership has ended."""


M = TypeVar("M", bound=AnyMembership)


class Member(Generic[M]):
    """A reader's place in its group: `membership` decides, this asks the coordinator."""

    def __init__(self, reader: Reader, subscription: Subscription, membership: M) -> None:
        options = reader.options
        self._reader = reader
        self._subscription = subscription
        self._cluster = reader.cluster
        self._loop = reader.loop
        self.membership = membership
        self._poll_interval: float = options["max_poll_interval_ms"] / 1000
        self._last_poll = reader.loop.time()
        self._beating: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None
        """What the last request went over."""
        self._failure: errors.KafkaError | None = None
        self._backoff = Backoff(options["retry_backoff_ms"], options["retry_backoff_max_ms"])

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Read these topics, or those that match."""
        raise NotImplementedError

    async def keep(self, limit: float) -> bool:
        """Be a member with an assignment; False when time (of the loop) is up before there is anything to read."""
        raise NotImplementedError

    def polled(self) -> None:
        """The user has polled, and has max.poll.interval.ms from now on to do so again."""
        self._last_poll = self._loop.time()

    def metadata(self) -> GroupMetadata:
        """Who commits."""
        return self.membership.metadata()

    @property
    def intact(self) -> bool:
        """Whether the partitions are ours for sure: the membership has not ended, and no rebalance is under way."""
        return not self.membership.lost and self._failure is None

    async def leave(self) -> None:
        """Go; the others get our partitions at once."""
        await self.stop()
        await self._send_leave()
        self.membership.forget()

    async def stop(self) -> None:
        """No heartbeat any more; the group finds out by its session time-out."""
        beating, self._beating = self._beating, None
        await cancel(beating)

    # -- for the protocols ----------------------------------------------------------------------------------------

    async def _call(self, request: Message, timeout_ms: float | None = None) -> Any:
        """The coordinator's answer on the group's own connection; None where there is none, and it is looked for anew.

        One attempt. NoCommonVersionError; KafkaError for what does not pass by itself.
        """
        group = self.membership.group_id
        try:
            node = await self._cluster.coordinator("group", group)
            connection = self._connection = await self._cluster.connection(node, "group")
            return await connection.call(request, timeout_ms=timeout_ms)
        except (ConnectionLostError, errors.RetriableError):
            self._forget_coordinator()
            return None

    def _forget_coordinator(self) -> None:
        self._cluster.forget_coordinator("group", self.membership.group_id)

    def _pause(self) -> float:
        """Seconds until the next attempt."""
        return self._backoff.next_ms(random.random()) / 1000

    def _fail(self, error: errors.KafkaError) -> None:
        """Raised by the next poll."""
        self._failure = error
        self._reader.notify()

    def _raise_failure(self) -> None:
        """What heartbeats have met. The next poll tries again, unless somebody else has our place for good."""
        failure = self._failure
        if failure is None:
            return
        if not isinstance(failure, errors.FencedMemberError):
            self._failure = None
        raise failure

    @property
    def _overdue(self) -> bool:
        """Whether the user has not polled for max.poll.interval.ms; a poll that waits does poll."""
        return not self._reader.waiting and self._loop.time() - self._last_poll > self._poll_interval

    async def _make_room(self) -> None:
        """Let the others have the partitions of a user who is overdue; the next poll joins anew."""
        log.warning(SLOW, self._poll_interval * 1000, self.membership.group_id)
        with contextlib.suppress(errors.KafkaError, NoCommonVersionError):  # the group finds out by itself, too
            await self._send_leave()
        self.membership.forget()
        self._reader.notify()

    async def _send_leave(self) -> None:
        request = self.membership.leave_request()
        if request is not None and self._connection is not None:  # else the coordinator has not heard of us at all
            await self._call(request)


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """End tasks, and wait until they have ended."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)
