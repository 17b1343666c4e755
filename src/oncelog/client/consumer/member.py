"""What the drivers of both group protocols share: requests to the coordinator, heartbeats, and leaving."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from oncelog import errors
from oncelog.client.consumer.background import Background, PollTimer, cancel
from oncelog.client.consumer.rebalance import Rebalancer
from oncelog.client.discovery.cluster import COORDINATOR_MOVED, ClusterClient
from oncelog.client.discovery.slow_answers import noticed
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.response_errors import first_error
from oncelog.net.connection import ClientConnection, NoCommonVersionError
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.schema import Message

log = logging.getLogger("oncelog.client.consumer")

SLOW = (
    "no poll for max_poll_interval_ms = %d; leaving group %r. Process fewer records per poll (max_poll_records), or "
    "increase max_poll_interval_ms"
)
NOT_LEFT = "group %r has not confirmed that this member leaves: %s. The group waits until its session times out"

NO_COORDINATOR = COORDINATOR_MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Errors of a broker that does not coordinate the group, or not yet."""

LEFT = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID})
"""Answers after which the group does not wait for this member."""


class Membership(Protocol):
    """The state of a membership in either protocol."""

    group_id: str
    lost: bool

    def metadata(self) -> GroupMetadata:
        """Return the identity of this member, for commits."""

    def leave_request(self) -> Message | None:
        """Return the request that leaves the group; None if the coordinator must not, or need not, get one."""

    def forget(self) -> None:
        """End the membership."""


M = TypeVar("M", bound=Membership)


class Member(Generic[M]):
    """Keep a consumer in its group: `membership` decides, and this object sends its requests."""

    def __init__(
        self,
        cluster: ClusterClient,
        options: Mapping[str, Any],
        membership: M,
        rebalancer: Rebalancer,
        background: Background,
        poll_timer: PollTimer,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self.membership = membership
        self._rebalancer = rebalancer
        self._background = background
        self._loop = background.loop
        self._poll_timer = poll_timer
        poll_timer.restart()
        self._heartbeats: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None
        """The connection of the last request."""
        self._failure: Exception | None = None
        self._troubles = cluster.troubles(log)
        self._backoff = cluster.backoff()

    def subscribe(self, topics: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Read these topics, or the topics that match the pattern."""
        raise NotImplementedError

    async def ensure_active(self, limit: float) -> bool:
        """Be a member with an assignment. Return False if time (of the loop) is up before there is one."""
        raise NotImplementedError

    def metadata(self) -> GroupMetadata:
        """Return the identity of this member, for commits."""
        return self.membership.metadata()

    @property
    def intact(self) -> bool:
        """Whether this member owns its partitions for sure: it is in the group, and no rebalance is in progress."""
        return not self.membership.lost and self._failure is None

    @property
    def joining(self) -> bool:
        """Whether this member joins the next generation of a classic group now."""
        return False

    async def leave(self) -> None:
        """Leave the group, so that other members get the partitions at once."""
        await self.stop()
        await self._send_leave()
        self.membership.forget()

    async def stop(self) -> None:
        """Send no more heartbeats. The coordinator removes this member after its session timeout."""
        heartbeats, self._heartbeats = self._heartbeats, None
        await cancel(heartbeats)

    # -- for the protocols ----------------------------------------------------------------------------------------

    async def _call(self, request: Message, timeout_ms: float | None = None) -> Any:
        """Return the coordinator's response on the group's own connection, after one attempt.

        Return None if the coordinator cannot be reached; the next call looks it up again. Raise NoCommonVersionError,
        and KafkaError if a retry would not help.
        """
        group = self.membership.group_id
        try:
            node = await self._cluster.coordinator("group", group)
            connection = self._connection = await self._cluster.connection(node, "group")
            if timeout_ms is not None:  # the coordinator may hold the response for so long
                response = await connection.call(request, timeout_ms=timeout_ms)
            else:
                with noticed(self._troubles, group, f"broker {connection.address}", type(request).__name__):
                    response = await connection.call(request)
        except (ConnectionLostError, errors.RetriableError) as error:
            self._waiting(str(error))
            self._forget_coordinator()
            return None
        code = first_error(response)
        if code in NO_COORDINATOR:
            self._waiting(str(errors.error_for(code, code.text)))
        else:
            self._troubles.over(group)
        return response

    def _waiting(self, why: str) -> None:
        group = self.membership.group_id
        self._troubles.waiting(group, f"group {group!r} waits for its coordinator: {why}".rstrip("."))

    def _forget_coordinator(self) -> None:
        self._cluster.forget_coordinator("group", self.membership.group_id)

    def _start_heartbeats(self) -> None:
        """Send heartbeats in the background, unless they are sent already."""
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = self._loop.create_task(self._send_heartbeats())
            self._heartbeats.add_done_callback(self._heartbeats_ended)

    async def _send_heartbeats(self) -> None:
        raise NotImplementedError

    def _heartbeats_ended(self, task: asyncio.Task[None]) -> None:
        """Let the next poll raise the error that has ended the heartbeats, because the session ends without them."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NoCommonVersionError):
            error = errors.UnsupportedError(str(error))
        if isinstance(error, Exception):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Let the next poll raise an error."""
        self._failure = error
        self._background.notify()

    def _raise_failure(self) -> None:
        """Raise the error of the heartbeats. The next poll tries again, unless another member has our instance id."""
        failure = self._failure
        if failure is None:
            return
        if not isinstance(failure, errors.FencedMemberError):
            self._failure = None
        raise failure

    async def _leave_until_next_poll(self) -> None:
        """Let other members have the partitions, because the user has not polled. The next poll joins again."""
        log.warning(SLOW, self._poll_timer.interval_ms, self.membership.group_id)
        with contextlib.suppress(errors.KafkaError, NoCommonVersionError):  # then the session times out
            await self._send_leave()
        self.membership.forget()
        self._background.notify()

    async def _send_leave(self) -> None:
        """Leave the group, and log if the coordinator does not confirm it."""
        request = self.membership.leave_request()
        if request is None or self._connection is None:  # the coordinator does not know this member
            return
        try:
            response = await self._call(request)
        except errors.KafkaError as error:  # such as a login that the broker rejects
            log.warning(NOT_LEFT, self.membership.group_id, error.message)
            return
        code = ErrorCode.NONE if response is None else first_error(response)
        if response is None or code not in LEFT:
            why = "the coordinator did not answer" if response is None else code.text
            log.warning(NOT_LEFT, self.membership.group_id, why)
