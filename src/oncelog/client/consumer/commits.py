"""What a consumer's user was given, and its way into the group's offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from oncelog import errors
from oncelog.client.consumer.fetcher import PartitionState
from oncelog.client.group_offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.records import check_offsets
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.types import TopicPartition
from oncelog.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader

log = logging.getLogger(__name__)

STALE_MS = 100
"""How long a commit waits for the next heartbeat, which tells a new member epoch (KIP-848)."""


class Taken(NamedTuple):
    """What is to be committed, by whom, and from where: a partition that was given up since has another state."""

    offsets: dict[TopicPartition, int]
    group: GroupMetadata
    states: dict[TopicPartition, PartitionState | None]


class Commits:
    """Of one reader, on its loop."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._auto = reader.options["enable_auto_commit"]
        self._interval = reader.options["auto_commit_interval_ms"] / 1000
        self._next = 0.0
        self._turn = asyncio.Lock()
        """One commit at a time: one that is tried again must not come behind a later one."""
        self._under_way: set[asyncio.Task[None]] = set()
        """Those that nobody awaits, or somebody in another thread."""
        self._warned: set[ErrorCode] = set()
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

    def take(self, offsets: Mapping[TopicPartition, int] | None = None) -> Taken:
        """What was consumed, or `offsets`, to be committed as the member that this is now. UsageError."""
        reader = self._reader
        group = reader.group_metadata()
        taken = self.consumed() if offsets is None else check_offsets(offsets)
        return Taken(taken, group, {tp: reader.states.get(tp) for tp in taken})

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit what was consumed, or `offsets`; TimedOutError, GroupError."""
        await self._commit(self.take(offsets), timeout_ms)

    def start(self, taken: Taken) -> asyncio.Task[None]:
        """Commit in the background; `settled` waits for it."""
        task: asyncio.Task[None] = self._reader.spawn(self._commit(taken))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Remove a commit. Its error is in the caller's future; asyncio must not log it if that future was dropped."""
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()

    async def started(self, taken: Taken) -> None:
        """Start a commit and wait for its outcome. Raises ClientClosedError if the consumer is closed before."""
        task = self.start(taken)
        await asyncio.wait([task])
        if task.cancelled():
            raise errors.ClientClosedError("the consumer was closed before its commit was answered")
        task.result()

    async def settled(self) -> None:
        """Until the commits under way are done, or it takes too long."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self._patience_ms / 1000)

    @property
    def _patience_ms(self) -> float:
        patience: float = self._reader.options["default_api_timeout_ms"] / 4
        return patience

    async def _commit(self, taken: Taken, timeout_ms: float | None = None) -> None:
        reader = self._reader
        limit_ms = reader.cluster.api_timeout_ms if timeout_ms is None else timeout_ms
        limit = reader.loop.time() + limit_ms / 1000
        try:
            async with asyncio.timeout_at(limit):
                await self._turn.acquire()
        except TimeoutError:
            raise errors.TimedOutError(f"a commit waited {limit_ms:g} ms for the one before it") from None
        try:
            while True:
                group = self._committer(taken)
                try:
                    left_ms = max((limit - reader.loop.time()) * 1000, 1.0)
                    await offset_calls.commit(reader.cluster, group, taken.offsets, timeout_ms=left_ms)
                    break
                except errors.GroupError as error:
                    if error.code is not ErrorCode.STALE_MEMBER_EPOCH or reader.loop.time() >= limit:
                        raise
                    if reader.group_metadata() == group:
                        await asyncio.sleep(STALE_MS / 1000)
        finally:
            self._turn.release()
        for tp, state in taken.states.items():
            if state is not None:
                state.settled = taken.offsets[tp]

    def _committer(self, taken: Taken) -> GroupMetadata:
        """The member that this is by now. GroupError if the partitions were given up since: under a new generation the
        broker would take old offsets, and another member may have committed later ones.
        """
        group = self._reader.group_metadata()
        if group != taken.group:
            for (topic, partition), state in taken.states.items():
                if self._reader.states.get((topic, partition)) is not state:
                    what = f"{topic}-{partition} was given up before its offset was committed"
                    raise errors.error_for(ErrorCode.ILLEGAL_GENERATION, what)
        return group

    async def before_rebalance(self) -> None:
        """What is being committed, and with auto-commit what was consumed so far, while it still may be."""
        await self.settled()
        if self._auto:
            try:
                await self.commit(timeout_ms=self._patience_ms)
            except errors.KafkaError as error:
                self._warn(error)

    def auto_commit(self) -> None:
        """Commit in the background if that is asked for and due."""
        now = self._reader.loop.time()
        if not self._auto or now < self._next:
            return
        self._next = now + self._interval
        if not self._turn.locked() and (taken := self.take()).offsets:
            self.start(taken).add_done_callback(self._seen)

    def _seen(self, task: asyncio.Task[None]) -> None:
        """Auto-commit: an error of Kafka's may be made good by the next one."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, errors.KafkaError):
            self._warn(error)
        elif error is not None:
            task.get_loop().call_exception_handler({"message": "auto-commit failed", "exception": error, "task": task})

    def _warn(self, error: errors.KafkaError) -> None:
        """Once a code: what is not committed comes again, to this consumer or to another."""
        if error.code not in self._warned:
            self._warned.add(error.code)
            log.warning("offsets of group %r are not committed: %s", self._reader.group_metadata().group_id, error)
