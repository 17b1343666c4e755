"""The requests that find a consumer's fetch positions and validate them (KIP-320; Kafka's OffsetFetcher)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from oncelog import errors
from oncelog.client.consumer.background import Background
from oncelog.client.consumer.options import isolation_level
from oncelog.client.consumer.subscription_state import PartitionState, SubscriptionState
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import LEADER_MOVED
from oncelog.client.records import milliseconds
from oncelog.client.requests import offsets as offset_calls
from oncelog.net.connection import NoCommonVersionError
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from oncelog.protocol.topics import TopicPartition

log = logging.getLogger("oncelog.client.consumer")

LEADERS_MS = 1_000
"""How long partitions with known offsets wait for other partitions whose leaders do not answer."""

RESET = {"earliest": offset_calls.EARLIEST, "latest": offset_calls.LATEST}
BY_DURATION = "by_duration:"
POSITIONS = "positions"
"""The subject of `Troubles`: there is at most one search."""

Validations = Mapping[TopicPartition, tuple[PartitionState, int]]
"""By partition, its state and the leader's epoch."""


class OffsetFetcher:
    """Find the fetch positions of one consumer, on its loop."""

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: SubscriptionState,
        options: Mapping[str, Any],
        background: Background,
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._options = options
        self._background = background
        self._troubles = cluster.troubles(log)
        self._validation_backoff = cluster.backoff()
        self._search: asyncio.Task[None] | None = None
        """Finds the unknown positions. Meanwhile `poll` reads the partitions whose position is known."""
        subscription.assignment_listeners.append(self._cancel_search)

    def _cancel_search(self) -> None:
        if self._search is not None:
            self._search.cancel()
            self._search = None

    @property
    def needs_search(self) -> bool:
        """Whether positions are unknown and no search is in progress, because leaders or the coordinator were down."""
        return self._search is None and self._subscription.lacks_positions

    async def update_positions(self, timeout_ms: float | None = None, leaders_ms: float | None = None) -> None:
        """Find the unknown positions: by the last seek, else the committed offset, else auto.offset.reset.

        The positions that are found are kept if others are not found in time. `leaders_ms`: the time that leaders have
        to answer.
        """
        unknown = {tp: state for tp, state in self._subscription.partitions.items() if state.position is None}
        if not unknown:
            return
        resets = {tp: state.reset for tp, state in unknown.items()}

        def settle(found: Mapping[TopicPartition, int]) -> None:
            """Set positions, except of partitions that were revoked or sought meanwhile."""
            for tp, offset in found.items():
                state = unknown[tp]
                current = self._subscription.is_current(tp, state) and state.reset == resets[tp]
                if current and state.position is None and offset >= 0:
                    self._log_replaced(state, offset)
                    state.seek(offset)

        now = self._background.loop.time
        limit = None if timeout_ms is None else now() + timeout_ms / 1000

        def left_ms() -> float | None:
            return None if limit is None else max(0.0, (limit - now()) * 1000)

        uncommitted = [tp for tp, timestamp in resets.items() if timestamp is None]
        committed: Mapping[TopicPartition, int] = {}
        if uncommitted and self._options["group_id"] is not None:
            committed = await offset_calls.fetch_committed(
                self._cluster, self._options["group_id"], uncommitted, timeout_ms=timeout_ms
            )
            settle(committed)
        wanted = {
            tp: self.reset_timestamp(tp, "the group has no committed offset") if timestamp is None else timestamp
            for tp, timestamp in resets.items()
            if tp not in committed
        }
        if not wanted:
            return
        isolation = isolation_level(self._options)
        found: dict[TopicPartition, offset_calls.Listed] = {}
        try:
            await offset_calls.list_offsets(
                self._cluster,
                wanted,
                isolation_level=isolation,
                timeout_ms=left_ms(),
                patience_ms=leaders_ms,
                into=found,
            )
            missing = {tp: offset_calls.LATEST for tp, item in found.items() if item.offset < 0}
            if missing:  # no record at or after the time: the end
                found |= await offset_calls.list_offsets(
                    self._cluster, missing, isolation_level=isolation, timeout_ms=left_ms(), patience_ms=leaders_ms
                )
        finally:
            settle({tp: item.offset for tp, item in found.items()})

    def _log_replaced(self, state: PartitionState, offset: int) -> None:
        """Warn that a position was not in the log: the consumer skips records, or reads some again."""
        if state.invalid is None:
            return
        old, why = state.invalid
        policy = self._options["auto_offset_reset"]
        what = f"offsets {old} to {offset - 1} are not read" if offset > old else "records may be read again"
        log.warning("%s; continuing at offset %d (auto_offset_reset = %s): %s", why, offset, policy, what)

    def reset_timestamp(self, tp: TopicPartition, why: str) -> int:
        """Return the timestamp for ListOffsets by which auto.offset.reset sets a position.

        Raise OffsetOutOfRangeError if there is no such policy; `why` says why a position is needed.
        """
        policy = self._options["auto_offset_reset"]
        if policy == "none":
            raise errors.OffsetOutOfRangeError(f"{tp[0]}-{tp[1]} has no position: {why}, and auto_offset_reset is none")
        if policy.startswith(BY_DURATION):  # KIP-1106
            return time.time_ns() // 1_000_000 - milliseconds(policy.removeprefix(BY_DURATION))
        return RESET[policy]

    async def position(self, tp: TopicPartition, timeout_ms: float | None = None) -> int:
        """Return the offset after the last record that the user received. Raises UsageError and KafkaError."""
        state = self._subscription.assigned_state(tp)
        while state.consumed is None:
            await self.update_positions(timeout_ms)
            state = self._subscription.assigned_state(tp)
        return state.consumed

    async def update_positions_until(self, limit: float) -> None:
        """Search for unknown positions in the background. Wait (time of the loop) only while none is known.

        So a partition without a leader does not delay the others. Raise KafkaError if the search has failed and a
        retry would not help.
        """
        partitions = self._subscription.partitions
        if self._search is None:
            if not self._subscription.lacks_positions:
                return
            self._search = self._background.spawn(self.update_positions(leaders_ms=LEADERS_MS))
            self._search.add_done_callback(self._searched)
        search = self._search
        if all(state.position is None for state in partitions.values()):
            await self._background.wait(limit - self._background.loop.time(), search)
        if not search.done():
            return
        failure = None if search.cancelled() else search.exception()
        if self._search is not search:
            return  # it was for a former assignment
        self._search = None
        if failure is not None and not isinstance(failure, errors.RetriableError):
            raise failure
        # Otherwise the next poll tries again: no leader, or a broker that does not know a new topic yet, or a
        # transaction that holds the group's offsets.
        if failure is None:
            self._troubles.over(POSITIONS)
        elif all(topic not in self._cluster.topology.failures for topic, _ in partitions):  # those are logged already
            self._troubles.waiting(POSITIONS, f"cannot find where to read: {failure}".rstrip("."))

    def _searched(self, search: asyncio.Task[None]) -> None:
        """Leave the result to the next poll. Retrieve the error, because asyncio logs it otherwise if none follows."""
        if not search.cancelled():
            search.exception()
        self._background.notify()

    # -- validation -----------------------------------------------------------------------------------------------

    async def validate_positions(self, node: int, asked: Validations) -> None:
        """Check positions against the end offsets of the leader epochs in which the partitions were read.

        If the log was truncated, go back to its new end. Raise LogTruncatedError without a reset policy, and KafkaError
        if a retry would not help.
        """
        positions = {tp: state.position for tp, (state, _) in asked.items()}
        try:
            response = await self._end_offsets(node, asked)
        except NoCommonVersionError:  # a broker before Kafka 2.1 does not know
            for state, leader_epoch in asked.values():
                state.validated_epoch = leader_epoch
            return
        except (ConnectionLostError, errors.RetriableError):
            response = None
        retry = dict.fromkeys(asked)
        for topic in () if response is None else response.topics:
            for item in topic.partitions:
                tp = (topic.topic, item.partition)
                if tp not in retry:
                    continue
                state, leader_epoch = asked[tp]
                unchanged = self._subscription.is_current(tp, state) and state.position == positions[tp]
                if not unchanged or self._validated(tp, state, leader_epoch, item):
                    del retry[tp]
        for topic_name, _ in retry:
            self._cluster.topology.forget(topic_name)
        if retry:
            await asyncio.sleep(self._validation_backoff.next_s())
        else:
            self._validation_backoff.reset()

    async def _end_offsets(self, node: int, asked: Validations) -> OffsetForLeaderEpochResponse:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for (name, partition), (state, leader_epoch) in asked.items():
            topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name, partitions=[]))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=partition, current_leader_epoch=leader_epoch, leader_epoch=state.epoch
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=offset_calls.CONSUMER, topics=list(topics.values()))
        connection = await self._cluster.connection(node)
        response: OffsetForLeaderEpochResponse = await connection.call(request)
        return response

    def _validated(self, tp: TopicPartition, state: PartitionState, leader_epoch: int, item: EpochEndOffset) -> bool:
        """Apply the result for one partition. Return False if the request must be repeated."""
        code = ErrorCode.of(item.error_code)
        if code is not ErrorCode.NONE:
            if code in LEADER_MOVED or code.retriable:
                return False
            raise errors.error_for(code, f"leader epoch of {tp[0]}-{tp[1]}: {code.text}")
        assert state.position is not None
        if item.end_offset >= state.position:
            state.validated_epoch = leader_epoch
            return True
        consumed = state.consumed
        if consumed is not None and 0 <= consumed <= item.end_offset:
            state.go_back(consumed)  # the user has not received the removed records
            return True
        name = f"{tp[0]}-{tp[1]}"
        about = f"{name} was truncated: its leader epoch {state.epoch} ended at {item.end_offset}, before {consumed}"
        if self._options["auto_offset_reset"] == "none":
            raise errors.LogTruncatedError(f"{about}, and auto_offset_reset is none")
        log.warning("%s; continuing at that offset", about)
        if item.end_offset >= 0:
            self._subscription.seek(tp, item.end_offset)
        else:
            why = "its log does not contain the leader epoch of the last record"
            self._subscription.seek_to_time(tp, self.reset_timestamp(tp, why))
        return True
