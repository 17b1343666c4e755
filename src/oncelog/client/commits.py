"""What a consumer's user was given, and its way into the group's offsets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client import offsets as offset_calls
from oncelog.client.batch import TopicPartition
from oncelog.client.committed import OffsetAndMetadata
from oncelog.client.fetcher import PartitionState
from oncelog.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from oncelog.client.reader import Reader

STALE_MS = 100
"""How long a commit waits for the next heartbeat, which tells a new member epoch (KIP-848)."""


class Commits:
    """Of one reader, on its loop."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._auto = reader.options["enable_auto_commit"]
        self._interval = reader.options["auto_commit_interval_ms"] / 1000
        self._next = 0.0
        self._turn = asyncio.Lock()
        """One commit at a time: one that is tried again must not come behind a later one."""
        self._unsettled = False
        """Whether partitions were given up behind whose records neither a commit nor a transaction came."""

    def consumed(self) -> dict[TopicPartition, int]:
        """Partition -> offset behind what the user was given, where that is known."""
        return {
            tp: OffsetAndMetadata(state.consumed, state.consumed_epoch)
            for tp, state in self._reader.states.items()
            if state.consumed is not None
        }

    def hand_over(self) -> dict[TopicPartition, int]:
        """As `consumed`, for a transaction that commits these offsets with what was made of the records.

        UsageError with auto-commit, which would commit them without it. AbortableError when a rebalance took partitions
        away whose records were given to the user and not settled: the transaction may hold what was made of them, but
        no longer their offsets, and whoever has the partitions now reads them again.
        """
        if self._auto:
            raise errors.UsageError("send_offsets needs a consumer without enable_auto_commit, which commits beside it")
        if self._unsettled:
            self._unsettled = False
            raise errors.AbortableError("a rebalance took partitions away whose records this transaction may hold")
        return self._mark_settled(self.consumed())

    def rewound(self) -> None:
        """All is read again from what was committed."""
        self._unsettled = False

    def gave_up(self, states: Iterable[PartitionState]) -> None:
        """These are not this consumer's any more."""
        self._unsettled |= any(state.consumed != state.settled for state in states)

    def _mark_settled(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        for tp, offset in offsets.items():
            state = self._reader.states.get(tp)
            if state is not None:
                state.settled = offset
        return offsets

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit what was consumed, or `offsets`."""
        reader = self._reader
        reader.group_metadata()  # UsageError without a group, before anything is waited for
        committed = dict(self.consumed() if offsets is None else offsets)
        for (topic, partition), offset in committed.items():
            if offset < 0:
                raise errors.UsageError(f"offset {offset} of {topic}-{partition} cannot be committed")
        limit_ms = reader.cluster.api_timeout_ms if timeout_ms is None else timeout_ms
        limit = reader.loop.time() + limit_ms / 1000
        async with asyncio.timeout(limit_ms / 1000) if timeout_ms is not None else contextlib.nullcontext():
            await self._turn.acquire()
        try:
            while True:
                group = reader.group_metadata()
                try:
                    left_ms = max((limit - reader.loop.time()) * 1000, 1.0)
                    await offset_calls.commit(reader.cluster, group, committed, timeout_ms=left_ms)
                    break
                except errors.GroupError as error:
                    if error.code is not ErrorCode.STALE_MEMBER_EPOCH or reader.loop.time() >= limit:
                        raise
                    if reader.group_metadata() == group:
                        await asyncio.sleep(STALE_MS / 1000)
        finally:
            self._turn.release()
        self._mark_settled(committed)

    async def before_rebalance(self) -> None:
        """With auto-commit: what was consumed so far, while it still may be committed."""
        if self._auto:
            with contextlib.suppress(errors.KafkaError, TimeoutError):
                await self.commit(timeout_ms=self._reader.options["default_api_timeout_ms"] / 4)

    def auto_commit(self) -> None:
        """Commit in the background if that is asked for and due."""
        now = self._reader.loop.time()
        if not self._auto or now < self._next:
            return
        self._next = now + self._interval
        offsets = self.consumed()
        if offsets and not self._turn.locked():
            self._reader.spawn(self._commit_quietly(offsets))

    async def _commit_quietly(self, offsets: dict[TopicPartition, int]) -> None:
        """Auto-commit: an error is made good by the next one."""
        with contextlib.suppress(errors.KafkaError):
            await self.commit(offsets)
