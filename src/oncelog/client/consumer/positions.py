"""Where a consumer begins in each partition, and whether the log still has what it read (KIP-320)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client.consumer.fetcher import PartitionState
from oncelog.client.discovery.topology import LEADER_MOVED
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.client.records import milliseconds
from oncelog.client.requests import offsets as offset_calls
from oncelog.client.types import TopicPartition
from oncelog.net.connection import ConnectionLostError, NoCommonVersionError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader

log = logging.getLogger(__name__)

LEADERS_MS = 1_000
"""How long partitions whose offsets are known wait, before they are read, for others whose leaders do not answer."""

RESET = {"earliest": offset_calls.EARLIEST, "latest": offset_calls.LATEST}
BY_DURATION = "by_duration:"


class Positions:
    """Of one reader, on its loop."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._cluster = reader.cluster
        self._options = reader.options
        self._search: asyncio.Task[None] | None = None
        """For the positions of partitions that have none; `poll` goes on meanwhile with those that have one."""

    def forget_search(self) -> None:
        """The assignment has changed: what is being looked for is not wanted any more."""
        if self._search is not None:
            self._search.cancel()
            self._search = None

    @property
    def unsought(self) -> bool:
        """Whether partitions have no position, and nobody looks for it: leaders or coordinator were away."""
        return self._search is None and any(state.position is None for state in self._reader.states.values())

    async def find(self, timeout_ms: float | None = None, leaders_ms: float | None = None) -> None:
        """Give every assigned partition a position: what was sought, else committed, else auto.offset.reset.

        Those found stay, though others are not found in time; `leaders_ms`: in which the leaders have to answer.
        """
        states = self._reader.states
        unknown = {tp: state for tp, state in states.items() if state.position is None}
        if not unknown:
            return
        sought = {tp: state.reset for tp, state in unknown.items()}

        def settle(tp: TopicPartition, offset: int) -> None:
            """Unless it was given up, or something else was sought, meanwhile."""
            state = self._reader.states.get(tp)
            if state is unknown[tp] and state.position is None and state.reset == sought[tp]:
                state.seek(offset)

        limit = None if timeout_ms is None else self._reader.loop.time() + timeout_ms / 1000

        def left_ms() -> float | None:
            return None if limit is None else max(0.0, (limit - self._reader.loop.time()) * 1000)

        uncommitted = [tp for tp, timestamp in sought.items() if timestamp is None]
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if uncommitted and self._options["group_id"] is not None:
            committed = await offset_calls.fetch_committed(
                self._cluster, self._options["group_id"], uncommitted, timeout_ms=timeout_ms
            )
        wanted: dict[TopicPartition, int] = {}
        for tp, timestamp in sought.items():
            if tp in committed:
                settle(tp, committed[tp])
            elif timestamp is not None:
                wanted[tp] = timestamp
            else:
                wanted[tp] = self.reset_policy(tp, "it has no committed offset")
        if not wanted:
            return
        isolation = self._reader.isolation
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
            for tp, item in found.items():
                if item.offset >= 0:
                    settle(tp, item.offset)

    def reset_policy(self, tp: TopicPartition, why: str) -> int:
        """Where to begin without a position: a timestamp for ListOffsets; OffsetOutOfRangeError."""
        policy = self._options["auto_offset_reset"]
        if policy == "none":
            raise errors.OffsetOutOfRangeError(f"no position for {tp[0]}-{tp[1]}: {why}, and auto_offset_reset is none")
        if policy.startswith(BY_DURATION):  # KIP-1106
            return time.time_ns() // 1_000_000 - milliseconds(policy.removeprefix(BY_DURATION))
        return RESET[policy]

    async def position(self, tp: TopicPartition, timeout_ms: float | None = None) -> int:
        """Offset behind what the user was given."""
        state = self._reader.state(tp)
        while state.consumed is None:
            await self.find(timeout_ms)
            state = self._reader.state(tp)
        return state.consumed

    async def find_until(self, limit: float) -> None:
        """Waits for positions only while there is none at all: a partition without a leader holds up no other."""
        reader = self._reader
        states = reader.states.values()
        if self._search is None:
            if all(state.position is not None for state in states):
                return
            self._search = reader.spawn(self.find(leaders_ms=LEADERS_MS))
            self._search.add_done_callback(self._searched)
        search = self._search
        if not any(state.position is not None for state in states):
            await reader.wait(limit - reader.loop.time(), search)
        if not search.done():
            return
        failure = None if search.cancelled() else search.exception()
        if self._search is not search:
            return  # it was for a former assignment
        self._search = None
        if failure is not None and (
            isinstance(failure, errors.UnknownTopicError) or not isinstance(failure, errors.RetriableError)
        ):
            raise failure
        # Otherwise no leader, or a transaction holds the group's offsets: the next poll tries again.

    def _searched(self, search: asyncio.Task[None]) -> None:
        """Leave the result to the next poll. Retrieve the error, because asyncio logs it otherwise if none follows."""
        if not search.cancelled():
            search.exception()
        self._reader.notify()

    # -- what was cut off -----------------------------------------------------------------------------------------

    async def check(self, node: int, asked: Mapping[TopicPartition, tuple[PartitionState, int]]) -> None:
        """Ask a leader where the epochs ended that partitions were read in; `asked`: (state, the leader's epoch).

        KafkaError: LogTruncatedError without a reset policy, and what does not pass by itself.
        """
        topics: dict[str, OffsetForLeaderTopic] = {}
        for (name, partition), (state, leader_epoch) in asked.items():
            topic = topics.setdefault(name, OffsetForLeaderTopic(topic=name, partitions=[]))
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=partition, current_leader_epoch=leader_epoch, leader_epoch=state.epoch
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=offset_calls.CONSUMER, topics=list(topics.values()))
        positions = {tp: state.position for tp, (state, _) in asked.items()}
        try:
            connection = await self._cluster.connection(node)
            response = await connection.call(request)
        except NoCommonVersionError:  # a broker before Kafka 2.1 cannot tell
            for state, leader_epoch in asked.values():
                state.checked = leader_epoch
            return
        except (ConnectionLostError, errors.RetriableError):
            for topic_name in topics:
                self._cluster.topology.forget(topic_name)
            await asyncio.sleep(self._options["retry_backoff_ms"] / 1000)
            return
        retry = False
        for topic in response.topics:
            for item in topic.partitions:
                tp = (topic.topic, item.partition)
                if tp not in asked:
                    continue
                state, leader_epoch = asked[tp]
                if self._reader.states.get(tp) is state and state.position == positions[tp]:
                    retry |= self._take(tp, state, leader_epoch, item)
        if retry:
            await asyncio.sleep(self._options["retry_backoff_ms"] / 1000)

    def _take(self, tp: TopicPartition, state: PartitionState, leader_epoch: int, item: EpochEndOffset) -> bool:
        """One partition's answer; whether to ask again."""
        code = ErrorCode.of(item.error_code)
        if code is not ErrorCode.NONE:
            if code in LEADER_MOVED or code.retriable:
                self._cluster.topology.forget(tp[0])
                return True
            raise errors.error_for(code, f"leader epoch of {tp[0]}-{tp[1]}: {code.text}")
        assert state.position is not None
        if item.end_offset >= state.position:
            state.checked = leader_epoch
            return False
        consumed = state.consumed
        if consumed is not None and 0 <= consumed <= item.end_offset:
            state.go_back(consumed)  # only what was fetched ahead is gone
            return False
        name = f"{tp[0]}-{tp[1]}"
        about = f"{name} was cut: its leader epoch {state.epoch} ended at {item.end_offset}, before {consumed}"
        if self._options["auto_offset_reset"] == "none":
            raise errors.LogTruncatedError(f"{about}, and auto_offset_reset is none")
        log.warning("%s; going on from there", about)
        self._reader.sought(tp)  # what a loop still has was cut off as well
        if item.end_offset >= 0:
            state.seek(item.end_offset)
        else:
            state.seek_to_time(self.reset_policy(tp, "the log does not know the epoch it was read in"))
        return False
