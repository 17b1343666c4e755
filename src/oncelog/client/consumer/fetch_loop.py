"""A consumer's fetching, beside its polls: one request a broker at a time, for partitions of which nothing is waiting.

What comes is left in the partitions' states, and the reader is told; what goes wrong for good is kept until the next
poll raises it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from oncelog import errors
from oncelog.client.connections.backoff import Backoff
from oncelog.client.consumer.fetcher import (
    FINAL_EPOCH,
    LAST_WITH_NAMES,
    READ_COMMITTED,
    Fetched,
    FetchSession,
    PartitionState,
    Wanted,
    topic_ids_usable,
)
from oncelog.client.discovery.topology import LEADER_MOVED
from oncelog.client.types import TopicPartition
from oncelog.net.connection import ConnectionLostError, NoCommonVersionError
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader

SESSION_LOST = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

log = logging.getLogger(__name__)


class FetchLoop:
    """Of one reader, on its loop. `failure`: what the next poll has to raise."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._cluster = reader.cluster
        self._options = reader.options
        self._sessions: dict[int, FetchSession] = {}
        self._asked: set[int] = set()
        self._dry: dict[TopicPartition, tuple[int, Wanted, float]] = {}
        """Those that had nothing when this node was asked for this while others of it waited here, and until when (the
        loop's time) they give no reason for a request: with one for others they are asked for as well. One that waits
        for them would hold up the others, once the user has taken what is here. A seek or a new leader voids it.
        """
        self._refreshing = False
        self._lost: dict[int, Backoff] = {}
        """Of brokers that hung up, or refused a whole request, the last time they were asked."""
        self._refresh_backoff = self._new_backoff()
        self._timer: asyncio.TimerHandle | None = None
        self.failure: Exception | None = None

    def _new_backoff(self) -> Backoff:
        return Backoff(self._options["retry_backoff_ms"], self._options["retry_backoff_max_ms"])

    def go_on(self) -> None:
        """Ask every leader that is not being asked for what is wanted and not waiting here."""
        topology = self._cluster.topology
        by_node: dict[int, dict[TopicPartition, Wanted]] = {}
        holding: set[int] = set()
        unchecked: dict[int, dict[TopicPartition, tuple[PartitionState, int]]] = {}
        limit = self._options["max_partition_fetch_bytes"]
        unknown = False
        for tp, state in self._reader.states.items():
            if state.position is None or state.paused or state.buffered:
                if state.buffered and not state.paused:
                    holding.add(topology.leader(*tp) if state.preferred is None else state.preferred[0])
                continue
            topic = topology.topics.get(tp[0])
            partition = None if topic is None else topic.partitions.get(tp[1])
            if topic is None or partition is None or partition.leader < 0:
                unknown = True
                continue
            if -1 < state.epoch < partition.leader_epoch > state.checked:  # is what we read there still? (KIP-320)
                if not state.checking:
                    unchecked.setdefault(partition.leader, {})[tp] = (state, partition.leader_epoch)
                continue
            node = partition.leader if state.preferred is None else self._nearest(state, partition.leader)
            wanted = Wanted(state.position, partition.leader_epoch, limit, topic.topic_id)
            if node not in self._asked and not self._is_refused(state, node, wanted):
                by_node.setdefault(node, {})[tp] = wanted
        if unknown and not self._refreshing:
            self._refreshing = True
            self._reader.spawn(self._refresh())
        for node, wanted_there in by_node.items():
            if node not in holding:
                self._forget_dry(wanted_there)
            if node not in holding or any(not self._is_dry(node, tp, item) for tp, item in wanted_there.items()):
                self._asked.add(node)
                self._reader.spawn(self._fetch_from(node, wanted_there, wait=node not in holding))
        for node, asked in unchecked.items():
            for state, _ in asked.values():
                state.checking = True
            self._reader.spawn(self._check(node, asked))

    def _is_refused(self, state: PartitionState, node: int, item: Wanted) -> bool:
        """Whether this is not to be asked for yet; somebody looks again in time."""
        of_node, of_item, until = state.refused or (-1, None, 0.0)
        now = self._reader.loop.time()
        if of_node != node or of_item != item or until <= now:
            return False
        if self._timer is None or self._timer.when() > until:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._reader.loop.call_later(until - now, self._timer_due)
        return True

    def _timer_due(self) -> None:
        self._timer = None
        if not self._reader.closed and self.failure is None:
            self.go_on()

    def _refuse(self, tp: TopicPartition, node: int, item: Wanted) -> None:
        """Not to be asked for again before a pause (retry.backoff.ms, with growth), unless from another leader."""
        state = self._reader.states[tp]
        backoff = self._new_backoff()
        backoff.failures = state.refusals
        state.refusals += 1
        state.refused = node, item, self._reader.loop.time() + backoff.next_ms(random.random()) / 1000

    def _is_dry(self, node: int, tp: TopicPartition, item: Wanted) -> bool:
        of_node, of_item, until = self._dry.get(tp, (-1, None, 0.0))
        return of_node == node and of_item == item and self._reader.loop.time() < until

    def _forget_dry(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._dry.pop(tp, None)

    def _found_dry(self, node: int, wanted: Mapping[TopicPartition, Wanted]) -> None:
        """An answer that did not wait is in: those without records are dry for as long as one could have waited."""
        until = self._reader.loop.time() + max(self._options["fetch_max_wait_ms"], 1) / 1000
        for tp, item in wanted.items():
            state = self._reader.states.get(tp)
            if state is not None and not state.buffered:
                self._dry[tp] = node, item, until
            else:
                self._dry.pop(tp, None)

    def _nearest(self, state: PartitionState, leader: int) -> int:
        """The follower that the leader has named, as long as that counts (KIP-392)."""
        assert state.preferred is not None
        node, until = state.preferred
        if self._reader.loop.time() < until and node in self._cluster.topology.brokers:
            return node
        state.preferred = None
        return leader

    async def _check(self, node: int, asked: dict[TopicPartition, tuple[PartitionState, int]]) -> None:
        try:
            await self._reader.positions.check(node, asked)
        except errors.KafkaError as error:
            self.failure = error
        finally:
            for state, _ in asked.values():
                state.checking = False
            self._reader.notify()

    async def _refresh(self) -> None:
        """Learn of leaders; the next time not before a pause, unless each partition has one by then."""
        try:
            with contextlib.suppress(errors.KafkaError):
                await self._cluster.refresh({topic for topic, _ in self._reader.states})
            if all(self._cluster.topology.leader(*tp) >= 0 for tp in self._reader.states):
                self._refresh_backoff.reset()
            else:
                await self._pause(self._refresh_backoff)
        finally:
            self._refreshing = False
            self._reader.notify()
        if not self._reader.closed and self.failure is None:
            self.go_on()

    async def _pause(self, backoff: Backoff) -> None:
        await asyncio.sleep(backoff.next_ms(random.random()) / 1000)

    async def _fetch_from(self, node: int, wanted: dict[TopicPartition, Wanted], *, wait: bool) -> None:
        session = self._sessions.setdefault(node, FetchSession())
        try:
            connection = await self._cluster.connection(node, "fetch")
            version = connection.version_for(FetchRequest)
            if not topic_ids_usable(wanted):
                version = min(version, LAST_WITH_NAMES)
            options = {
                "max_wait_ms": self._options["fetch_max_wait_ms"] if wait else 0,
                "min_bytes": self._options["fetch_min_bytes"],
                "max_bytes": self._options["fetch_max_bytes"],
                "isolation_level": self._reader.isolation,
            }
            response = await connection.call(session.build(wanted, options, self._options["client_rack"]), version)
        except (ConnectionLostError, errors.RetriableError):
            session.reset()
            self._forget_dry(wanted)
            for tp in wanted:
                self._cluster.topology.forget(tp[0])
                self._back_to_leader(tp)
            await self._pause(self._lost.setdefault(node, self._new_backoff()))
        except (errors.KafkaError, NoCommonVersionError) as error:
            self.failure = error
        else:
            failed = self._take_response(node, session, response, wanted)
            code = ErrorCode.of(response.error_code)
            if code is ErrorCode.NONE:
                self._lost.pop(node, None)
            elif node in self._lost or code not in SESSION_LOST:  # a new session can be had at once, but not for ever
                await self._pause(self._lost.setdefault(node, self._new_backoff()))
            else:
                self._lost[node] = self._new_backoff()
            if not wait:
                self._found_dry(node, {tp: item for tp, item in wanted.items() if tp not in failed})
        finally:
            self._asked.discard(node)
            self._reader.notify()
        if not self._reader.closed and self.failure is None:  # an error is raised by the next poll, which fetches again
            self.go_on()

    async def close(self) -> None:
        """Let the brokers forget their sessions at once, as Kafka's consumer does (the final epoch of KIP-227)."""
        known = [(node, session.session_id) for node, session in self._sessions.items() if session.session_id]
        await asyncio.gather(*(self._end_session(node, session_id) for node, session_id in known))

    async def _end_session(self, node: int, session_id: int) -> None:
        connection = self._cluster.open_connection(node, "fetch")
        if connection is None:
            return  # the broker is away, or has not been asked for long
        with contextlib.suppress(ConnectionLostError, errors.KafkaError):  # it forgets sessions by itself as well
            if connection.in_flight:  # behind a waiting fetch it would wait, too
                connection = await self._cluster.connection(node)
            await connection.call(FetchRequest(session_id=session_id, session_epoch=FINAL_EPOCH, topics=[]))

    def _take_response(
        self, node: int, session: FetchSession, response: FetchResponse, wanted: Mapping[TopicPartition, Wanted]
    ) -> Collection[TopicPartition]:
        """Of which of them nothing was learned."""
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            session.reset()
            if code not in SESSION_LOST and not code.retriable:
                self.failure = errors.error_for(code, f"Fetch: {code.text}")
            self._forget_dry(wanted)
            return wanted
        failed: set[TopicPartition] = set()
        session.succeeded(response.session_id)
        names = self._cluster.topology.names
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for item in topic.partitions:
                tp = (name, item.partition_index)
                state = self._reader.states.get(tp)
                asked = wanted.get(tp)
                if state is not None and asked is not None and state.position == asked.offset:
                    self._take_partition(node, session, tp, state, item)
                    if not item.error_code:
                        state.checked = max(state.checked, asked.leader_epoch)
                        state.refusals, state.refused = 0, None
                    else:
                        failed.add(tp)
                        if item.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                            self._refuse(tp, node, asked)
        self._forget_dry(failed)
        return failed

    def _back_to_leader(self, tp: TopicPartition) -> bool:
        """Whether a follower was asked; it is not from now on."""
        state = self._reader.states.get(tp)
        followed = state is not None and state.preferred is not None
        if state is not None:
            state.preferred = None
        return followed

    def _take_partition(
        self, node: int, session: FetchSession, tp: TopicPartition, state: PartitionState, item: PartitionData
    ) -> None:
        code = ErrorCode.of(item.error_code)
        if code is ErrorCode.NONE and item.preferred_read_replica >= 0 and item.preferred_read_replica != node:
            age = self._options["metadata_max_age_ms"] / 1000
            state.preferred = (item.preferred_read_replica, self._reader.loop.time() + age)
        if code is ErrorCode.NONE:
            state.high_watermark = item.high_watermark
            state.last_stable_offset = item.last_stable_offset
            if item.records is None or not len(item.records):
                return
            assert state.position is not None
            try:
                fetched = Fetched(
                    tp,
                    item,
                    state.position,
                    committed_only=self._reader.isolation == READ_COMMITTED,
                    check_crcs=self._options["check_crcs"],
                )
            except ProtocolError as error:
                self.failure = damage(tp, state.position, error)
                return
            after = fetched.end
            if after > state.position:
                state.position, state.epoch = after, fetched.last_epoch
                state.buffered.append(fetched)
                self._reader.arrived(tp)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._back_to_leader(tp):
                return  # a follower may lag behind: the leader has the last word
            try:
                why = f"offset {state.position} is not in the log"
                state.seek_to_time(self._reader.positions.reset_policy(tp, why))
            except errors.OffsetOutOfRangeError as error:
                self.failure = error
        elif code in LEADER_MOVED:
            session.reset()
            self._cluster.topology.forget(tp[0])
            self._back_to_leader(tp)
        elif code is ErrorCode.UNKNOWN_SERVER_ERROR:  # may pass, as Kafka's consumer has it
            log.warning("%s-%d at offset %s: the broker has an unexpected error", *tp, state.position)
        elif code is ErrorCode.CORRUPT_MESSAGE:
            self.failure = damage(tp, state.position, ProtocolError(code, code.text))
        elif not code.retriable:
            self.failure = errors.error_for(code, f"Fetch of {tp[0]}-{tp[1]}: {code.text}")


def damage(tp: TopicPartition, offset: int | None, error: ProtocolError) -> errors.KafkaError:
    """Return the error for an unreadable batch: CorruptRecordError, or UnsupportedError for its codec."""
    about = f"{tp[0]}-{tp[1]} at offset {offset}: {error}"
    if error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD):
        return errors.CorruptRecordError(about, error.code)
    return errors.error_for(error.code, f"{about}; seek past it to continue")
