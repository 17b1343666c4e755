"""Commit a consumer's positions, or offsets from the user, on demand or automatically."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client.consumer.background import Background
from oncelog.client.consumer.subscription_state import PartitionState, SubscriptionState
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.records import check_offsets
from oncelog.client.requests import offsets as offset_calls
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.topics import TopicPartition

log = logging.getLogger("oncelog.client.consumer")

STALE_MS = 100
"""How long a commit waits for a newer identity: the next heartbeat has the new member epoch (KIP-848)."""


class PendingCommit(NamedTuple):
    """The offsets to commit, the member that commits them, and the partitions' states when it was created."""

    offsets: dict[TopicPartition, int]
    group: GroupMetadata
    states: dict[TopicPartition, PartitionState | None]
    chosen: bool
    """Whether the user has named the offsets. Then a deleted topic is an error."""


class Commits:
    """Commit the offsets of one consumer, on its loop.

    `group_metadata` returns its current membership, `joining` whether it joins the next generation.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: SubscriptionState,
        options: Mapping[str, Any],
        background: Background,
        group_metadata: Callable[[], GroupMetadata],
        joining: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._background = background
        self._group_metadata = group_metadata
        self._joining = joining
        self._auto = options["enable_auto_commit"]
        self._interval = options["auto_commit_interval_ms"] / 1000
        self._patience_ms = options["default_api_timeout_ms"] / 4
        self._next = 0.0
        self._turn = asyncio.Lock()
        """Taken by one commit at a time, so that a retry never follows a later commit."""
        self._in_progress: set[asyncio.Task[None]] = set()
        """Commits that run in the background."""
        self._warned: set[ErrorCode] = set()
        self._unsettled = False
        """Whether partitions were revoked after records that neither a commit nor a transaction has covered."""

    def _now(self) -> float:
        return self._background.loop.time()

    # -- transactions ---------------------------------------------------------------------------------------------

    def offsets_for_transaction(self) -> dict[TopicPartition, int]:
        """Return the consumed offsets, for a transaction that commits them with the results of the records.

        Raises UsageError with auto-commit, which would commit them outside the transaction. Raises AbortableError if a
        rebalance has revoked partitions whose records were neither committed nor added to a transaction. The
        transaction may contain results of these records, but the new owner of the partitions reads them again.
        """
        if self._auto:
            raise errors.UsageError(
                "send_offsets needs a consumer with enable_auto_commit = False, because auto-commit would commit the "
                "offsets outside the transaction"
            )
        if self._unsettled:
            self._unsettled = False
            raise errors.AbortableError(
                "a rebalance revoked partitions whose records may have results in this transaction"
            )
        consumed = self.consumed()
        for tp, offset in consumed.items():
            self._subscription.partitions[tp].settled = offset
        return consumed

    def rewound(self) -> None:
        """Forget revoked partitions, because the consumer reads everything again from its committed offsets."""
        self._unsettled = False

    def revoked(self, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Remember whether revoked partitions have records that no commit or transaction has covered.

        Records of deleted topics do not count: no member can read them again, so the transaction keeps their results.
        """
        self._unsettled |= any(
            state.consumed != state.settled for tp, state in states.items() if not self._is_gone(tp, state)
        )

    # -- deleted topics -------------------------------------------------------------------------------------------

    def consumed(self) -> dict[TopicPartition, int]:
        """Return the consumed offsets, without those of deleted topics, which the coordinator would reject."""
        partitions = self._subscription.partitions
        offsets = self._subscription.consumed()
        return {tp: offset for tp, offset in offsets.items() if not self._is_gone(tp, partitions[tp])}

    def _is_gone(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Return whether the topic that the position belongs to was deleted. Another one may have its name."""
        topology = self._cluster.topology
        return topology.lacks(*tp) or topology.is_other_topic(tp[0], state.topic_id)

    async def _without_gone(self, pending: PendingCommit) -> PendingCommit:
        """Look up the topics again, and return the commit without partitions that do not exist any more."""
        with contextlib.suppress(errors.ConnectionFailedError):  # the next attempt of the commit reports it
            await self._cluster.refresh({topic for topic, _ in pending.offsets})
        states = pending.states
        left = {
            tp: offset
            for tp, offset in pending.offsets.items()
            if (state := states[tp]) is None or not self._is_gone(tp, state)
        }
        return pending._replace(offsets=left)

    # -- commits --------------------------------------------------------------------------------------------------

    def prepare(self, offsets: Mapping[TopicPartition, int] | None = None) -> PendingCommit:
        """Return the commit of `offsets`, default: the consumed ones, by the current member. Raises UsageError."""
        group = self._group_metadata()
        wanted = self.consumed() if offsets is None else check_offsets(offsets)
        states = {tp: self._subscription.partitions.get(tp) for tp in wanted}
        return PendingCommit(wanted, group, states, offsets is not None)

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit `offsets`, default: the consumed ones of topics that exist. Raises TimedOutError and GroupError."""
        await self._commit(self.prepare(offsets), timeout_ms)

    def start(self, pending: PendingCommit) -> asyncio.Task[None]:
        """Commit in the background; `wait_for_started` waits for it."""
        task: asyncio.Task[None] = self._background.spawn(self._commit(pending))
        self._in_progress.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Remove a commit. Its error is in the caller's future; asyncio must not log it if that future was dropped."""
        self._in_progress.discard(task)
        if not task.cancelled():
            task.exception()

    async def run(self, pending: PendingCommit) -> None:
        """Start a commit and wait for its outcome. Raises ClientClosedError if the consumer is closed before."""
        task = self.start(pending)
        await asyncio.wait([task])
        if task.cancelled():
            raise errors.ClientClosedError(
                "the consumer was closed before the broker answered its commit; the offsets may or may not be committed"
            )
        task.result()

    async def wait_for_started(self) -> None:
        """Wait until the started commits have ended, for a quarter of default.api.timeout.ms at most.

        Each commit reports its outcome to the caller that started it.
        """
        if self._in_progress:
            await asyncio.wait(self._in_progress, timeout=self._patience_ms / 1000)

    async def _commit(self, pending: PendingCommit, timeout_ms: float | None = None) -> None:
        limit_ms = self._cluster.api_timeout_ms if timeout_ms is None else timeout_ms
        limit = self._now() + limit_ms / 1000
        try:
            async with asyncio.timeout_at(limit):
                await self._turn.acquire()
        except TimeoutError:
            raise errors.TimedOutError(
                f"the commit timed out after {limit_ms:g} ms, because an earlier one is in progress"
            ) from None
        try:
            pending = await self._send(pending, limit)
        finally:
            self._turn.release()
        for tp, offset in pending.offsets.items():
            state = pending.states[tp]
            if state is not None:
                state.settled = offset

    async def _send(self, pending: PendingCommit, limit: float) -> PendingCommit:
        """Commit within a limit (time of the loop). Return what was committed."""
        known_by = min(limit, self._now() + self._cluster.missing_topic_ms / 1000)
        while True:
            group = self._committer(pending)
            try:
                left_ms = max((limit - self._now()) * 1000, 1.0)
                await offset_calls.commit(self._cluster, group, pending.offsets, timeout_ms=left_ms)
                return pending
            except errors.GroupError as error:
                if not self._is_outdated(group, error.code) or self._now() >= limit:
                    raise
                if self._group_metadata() == group:
                    await asyncio.sleep(STALE_MS / 1000)
            except errors.UnknownTopicError:
                if pending.chosen:
                    raise
                rest = await self._without_gone(pending)
                if rest == pending:  # the coordinator may not know a new topic yet
                    if self._now() >= known_by:
                        raise
                    await asyncio.sleep(STALE_MS / 1000)
                pending = rest

    def _is_outdated(self, group: GroupMetadata, code: ErrorCode) -> bool:
        """Return whether the coordinator has rejected this identity because the member has a newer one, or soon will.

        A cooperative member commits while it joins. The coordinator begins the next generation with the answer to
        JoinGroup, and the member has that identity when SyncGroup is answered.
        """
        if code is ErrorCode.ILLEGAL_GENERATION:
            return self._joining() or self._group_metadata() != group
        return code is ErrorCode.STALE_MEMBER_EPOCH

    def _committer(self, pending: PendingCommit) -> GroupMetadata:
        """Return the current member. Raise GroupError if a partition was revoked since the commit was prepared.

        Under a new generation the broker would accept old offsets, and another member may have committed later ones.
        """
        group = self._group_metadata()
        if group != pending.group:
            for (topic, partition), state in pending.states.items():
                if self._subscription.partitions.get((topic, partition)) is not state:
                    what = f"{topic}-{partition} was revoked before its offset was committed"
                    raise errors.error_for(ErrorCode.ILLEGAL_GENERATION, what)
        return group

    # -- rebalances and auto-commit -------------------------------------------------------------------------------

    async def before_rebalance(self) -> None:
        """Wait for started commits; with auto-commit, also commit the consumed offsets, which is the last chance."""
        await self.wait_for_started()
        if self._auto:
            try:
                await self.commit(timeout_ms=self._patience_ms)
            except errors.KafkaError as error:
                self._warn(error)

    def auto_commit(self) -> None:
        """Start a commit in the background if auto-commit is on and due."""
        now = self._now()
        if not self._auto or now < self._next:
            return
        self._next = now + self._interval
        if not self._turn.locked() and (pending := self.prepare()).offsets:
            self.start(pending).add_done_callback(self._auto_committed)

    def _auto_committed(self, task: asyncio.Task[None]) -> None:
        """Warn of an error of Kafka's, because the next auto-commit may succeed."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, errors.KafkaError):
            self._warn(error)
        elif error is not None:
            task.get_loop().call_exception_handler(
                {"message": "auto-commit failed; the next one retries", "exception": error, "task": task}
            )

    def _warn(self, error: errors.KafkaError) -> None:
        """Warn once for each code: this consumer or another one reads the uncommitted records again."""
        if error.code not in self._warned:
            self._warned.add(error.code)
            log.warning("cannot commit offsets of group %r: %s", self._group_metadata().group_id, error)
