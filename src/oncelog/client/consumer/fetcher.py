"""A consumer's Fetch requests, sent in the background: one at a time to each broker (Kafka's Fetcher).

A request covers the partitions without fetched records. The records are added to the `SubscriptionState`. If a retry
would not help after an error, the next poll raises it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.consumer.background import Background
from oncelog.client.consumer.completed_fetch import CompletedFetch, unreadable_batch
from oncelog.client.consumer.fetch_session import (
    FINAL_EPOCH,
    LAST_WITH_NAMES,
    FetchSession,
    FetchTarget,
    topic_ids_usable,
)
from oncelog.client.consumer.offset_fetcher import OffsetFetcher, Validations
from oncelog.client.consumer.options import READ_COMMITTED, isolation_level
from oncelog.client.consumer.subscription_state import PartitionState, SubscriptionState
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.reasons import unavailable_topic, unreachable_broker, without_leader
from oncelog.client.discovery.slow_answers import noticed
from oncelog.client.discovery.topology import LEADER_MOVED, Topic
from oncelog.client.metrics.fetches import Fetches
from oncelog.net.connection import NoCommonVersionError
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from oncelog.protocol.topics import TopicPartition

SESSION_LOST = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

log = logging.getLogger("oncelog.client.consumer")

Targets = dict[TopicPartition, FetchTarget]


class _Plan(NamedTuple):
    """The requests that the partitions need now, by node."""

    fetches: dict[int, Targets]
    validations: dict[int, dict[TopicPartition, tuple[PartitionState, int]]]
    unread: set[int]
    """Nodes whose fetched records wait for the user."""
    leaderless: bool
    """Whether a partition has no known leader."""


class Fetcher:
    """Fetch for one consumer, on its loop. `warned` has the topics whose absence is logged."""

    def __init__(
        self,
        cluster: ClusterClient,
        subscription: SubscriptionState,
        options: Mapping[str, Any],
        offsets: OffsetFetcher,
        background: Background,
        *,
        fetches: Fetches,
        warned: Set[str],
    ) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._options = options
        self._offsets = offsets
        self._background = background
        self._fetches = fetches
        self._warned = warned
        self._isolation = isolation_level(options)
        self._sessions: dict[int, FetchSession] = {}
        self._pending_nodes: set[int] = set()
        self._empty_until: dict[TopicPartition, tuple[int, FetchTarget, float]] = {}
        """Partitions for which a node returned no records while other records of it waited for the user.

        Until this time (of the loop), no request is sent for these partitions alone. It would wait for their records,
        and delay the node's other partitions after the user has taken theirs. A request for others includes them. A
        seek or a new leader makes the entry invalid.
        """
        self._refreshing = False
        self._failures: dict[int, Backoff] = {}
        """Back-off of nodes that closed the connection, or answered a whole request with an error, the last time."""
        self._new_backoff = cluster.backoff
        self._refresh_backoff = self._new_backoff()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._troubles = cluster.troubles(log)

    def _now(self) -> float:
        return self._background.loop.time()

    # -- what to fetch --------------------------------------------------------------------------------------------

    def send_fetches(self) -> None:
        """Send each node without a pending request one for the partitions that have no fetched records."""
        plan = self._plan()
        if plan.leaderless and not self._refreshing:
            self._refreshing = True
            self._background.run(self._refresh())
        for node, targets in plan.fetches.items():
            if node not in plan.unread:
                self._forget_empty(targets)
            if node not in plan.unread or any(not self._is_empty(node, tp, item) for tp, item in targets.items()):
                self._pending_nodes.add(node)
                self._background.run(self._fetch_from(node, targets, wait=node not in plan.unread))
        for node, asked in plan.validations.items():
            for state, _ in asked.values():
                state.validating = True
            self._background.run(self._validate(node, asked))

    def _plan(self) -> _Plan:
        topology = self._cluster.topology
        fetches: dict[int, Targets] = {}
        validations: dict[int, dict[TopicPartition, tuple[PartitionState, int]]] = {}
        unread: set[int] = set()
        leaderless = False
        limit = self._options["max_partition_fetch_bytes"]
        for tp, state in self._subscription.partitions.items():
            if state.position is None or state.paused or state.buffered:
                if state.buffered and not state.paused:
                    unread.add(topology.leader(*tp) if state.preferred is None else state.preferred[0])
                continue
            topic = topology.topics.get(tp[0])
            partition = None if topic is None else topic.partitions.get(tp[1])
            if topic is None or partition is None or partition.leader < 0:
                leaderless = True
                continue
            if state.topic_id is not topic.topic_id and not self._is_same_topic(tp, state, topic):
                continue
            if -1 < state.epoch < partition.leader_epoch > state.validated_epoch:  # KIP-320
                if not state.validating:
                    validations.setdefault(partition.leader, {})[tp] = (state, partition.leader_epoch)
                continue
            node = partition.leader if state.preferred is None else self._nearest(state, partition.leader)
            target = FetchTarget(state.position, partition.leader_epoch, limit, topic.topic_id)
            if node not in self._pending_nodes and not self._is_refused(state, node, target):
                fetches.setdefault(node, {})[tp] = target
        return _Plan(fetches, validations, unread, leaderless)

    def _is_same_topic(self, tp: TopicPartition, state: PartitionState, topic: Topic) -> bool:
        """Return whether the position belongs to this topic. If the topic was created again, apply auto.offset.reset.

        The new log may contain the old position. The committed offset may also belong to the old topic.
        """
        if not self._cluster.topology.is_other_topic(tp[0], state.topic_id):
            state.topic_id = topic.topic_id
            return True
        why = (
            f"{tp[0]}-{tp[1]}: the topic was deleted and created again, so position {state.position} does not belong "
            "to the new topic"
        )
        try:
            timestamp = self._offsets.reset_timestamp(tp, why)
        except errors.OffsetOutOfRangeError as error:
            self._background.fail(error)
            return False
        log.warning("%s; continuing as auto_offset_reset = %s", why, self._options["auto_offset_reset"])
        state.seek_to_time(timestamp)  # records of the old topic are not skipped, but gone
        self._background.notify()
        return False

    def _nearest(self, state: PartitionState, leader: int) -> int:
        """Return the follower that the leader has named, until that expires (KIP-392)."""
        assert state.preferred is not None
        node, until = state.preferred
        if self._now() < until and node in self._cluster.topology.brokers:
            return node
        state.preferred = None
        return leader

    def _is_refused(self, state: PartitionState, node: int, target: FetchTarget) -> bool:
        """Return whether the pause after an error has not ended. If so, arm a timer for its end."""
        of_node, of_target, until = state.refused or (-1, None, 0.0)
        now = self._now()
        if of_node != node or of_target != target or until <= now:
            return False
        if self._timer is None or self._timer.when() > until:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._background.loop.call_later(until - now, self._timer_due)
        return True

    def _timer_due(self) -> None:
        self._timer = None
        self._continue()

    def _continue(self) -> None:
        """Send more requests, unless the next poll has to raise an error first."""
        if not self._stopped and self._background.failure is None:
            self.send_fetches()

    def _refuse(self, tp: TopicPartition, node: int, target: FetchTarget) -> None:
        """Delay the next attempt of this fetch by retry.backoff.ms, which grows. Another leader gets it at once."""
        state = self._subscription.partitions[tp]
        state.refused = node, target, self._now() + self._new_backoff(state.refusals).next_s()
        state.refusals += 1

    def _is_empty(self, node: int, tp: TopicPartition, target: FetchTarget) -> bool:
        of_node, of_target, until = self._empty_until.get(tp, (-1, None, 0.0))
        return of_node == node and of_target == target and self._now() < until

    def _forget_empty(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._empty_until.pop(tp, None)

    def _remember_empty(self, node: int, targets: Mapping[TopicPartition, FetchTarget]) -> None:
        """Record the partitions without records, for as long as a request could have waited for some."""
        until = self._now() + max(self._options["fetch_max_wait_ms"], 1) / 1000
        for tp, target in targets.items():
            state = self._subscription.partitions.get(tp)
            if state is not None and not state.buffered:
                self._empty_until[tp] = node, target, until
            else:
                self._empty_until.pop(tp, None)

    # -- requests -------------------------------------------------------------------------------------------------

    async def _validate(self, node: int, asked: Validations) -> None:
        try:
            await self._offsets.validate_positions(node, asked)
        finally:
            for state, _ in asked.values():
                state.validating = False
            self._background.notify()

    async def _refresh(self) -> None:
        """Request the leaders. Pause before the next time, unless each partition has one by then."""
        try:
            try:
                await self._cluster.refresh({topic for topic, _ in self._subscription.partitions})
            except errors.AuthenticationError:
                raise
            except errors.KafkaError:
                pass
            if self._all_led():
                self._refresh_backoff.reset()
            else:
                await asyncio.sleep(self._refresh_backoff.next_s())
        finally:
            self._refreshing = False
            self._background.notify()
        self._continue()

    def _all_led(self) -> bool:
        """Return whether each partition has a known leader. Log the topics that wait for one."""
        topology = self._cluster.topology
        waiting: dict[str, list[int]] = {}
        for topic, partition in self._subscription.partitions:
            if topology.leader(topic, partition) < 0:
                waiting.setdefault(topic, []).append(partition)
        for topic in {topic for topic, _ in self._subscription.partitions}:
            if topic not in waiting:
                self._troubles.over(topic)
                continue
            known = topic in topology.topics
            if known or topic not in self._warned:  # otherwise it is logged already
                failure = topology.failures.get(topic)
                why = without_leader(topic, waiting[topic]) if known else unavailable_topic(topic, failure)
                self._troubles.waiting(topic, f"cannot read: {why}")
        return not waiting

    async def _pause_node(self, node: int) -> None:
        await asyncio.sleep(self._failures.setdefault(node, self._new_backoff()).next_s())

    async def _fetch_from(self, node: int, targets: Targets, *, wait: bool) -> None:
        session = self._sessions.setdefault(node, FetchSession())
        try:
            response = await self._fetch(node, session, targets, wait=wait)
        except (ConnectionLostError, errors.RetriableError) as error:
            message = error.message if isinstance(error, errors.RetriableError) else str(error)
            self._troubles.waiting(node, unreachable_broker("read from", message))
            session.reset()
            self._forget_empty(targets)
            for tp in targets:
                self._cluster.topology.forget(tp[0])
                self._back_to_leader(tp)
            await self._pause_node(node)
        else:
            self._troubles.over(node)
            failed = self._take_response(node, session, response, targets)
            code = ErrorCode.of(response.error_code)
            if code is ErrorCode.NONE:
                self._failures.pop(node, None)
            elif node in self._failures or code not in SESSION_LOST:
                await self._pause_node(node)
            else:  # a new session can begin at once, but only the first time
                self._failures[node] = self._new_backoff()
            if not wait:
                self._remember_empty(node, {tp: item for tp, item in targets.items() if tp not in failed})
        finally:
            self._pending_nodes.discard(node)
            self._background.notify()
        self._continue()

    async def _fetch(self, node: int, session: FetchSession, targets: Targets, *, wait: bool) -> FetchResponse:
        connection = await self._cluster.connection(node, "fetch")
        try:
            version = connection.version_for(FetchRequest)
        except NoCommonVersionError as error:
            raise errors.UnsupportedError(str(error)) from error
        if not topic_ids_usable(targets):
            version = min(version, LAST_WITH_NAMES)
        options = {
            "max_wait_ms": self._options["fetch_max_wait_ms"] if wait else 0,
            "min_bytes": self._options["fetch_min_bytes"],
            "max_bytes": self._options["fetch_max_bytes"],
            "isolation_level": self._isolation,
        }
        request = session.build(targets, options, self._options["client_rack"])
        may_take_s = request.max_wait_ms / 1000
        with noticed(self._troubles, ("answer", node), f"broker {node}", "FetchRequest", may_take_s=may_take_s):
            response: FetchResponse = await connection.call(request, version)
        return response

    # -- responses ------------------------------------------------------------------------------------------------

    def _take_response(
        self, node: int, session: FetchSession, response: FetchResponse, targets: Targets
    ) -> Collection[TopicPartition]:
        """Return the partitions that have to be fetched again."""
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            session.reset()
            if code not in SESSION_LOST and not code.retriable:
                self._background.fail(errors.error_for(code, f"Fetch: {code.text}"))
            self._forget_empty(targets)
            return targets
        failed: set[TopicPartition] = set()
        sizes: dict[str, int] = {}
        session.succeeded(response.session_id)
        names = self._cluster.topology.names
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for item in topic.partitions:
                tp = (name, item.partition_index)
                state = self._subscription.partitions.get(tp)
                target = targets.get(tp)
                if state is not None and target is not None and state.position == target.offset:
                    self._take_partition(node, session, tp, state, item)
                    if item.records:
                        sizes[name] = sizes.get(name, 0) + len(item.records)
                    if not item.error_code:
                        state.validated_epoch = max(state.validated_epoch, target.leader_epoch)
                        state.refusals, state.refused = 0, None
                    else:
                        failed.add(tp)
                        if item.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
                            self._refuse(tp, node, target)
        self._fetches.fetched(sizes, response.throttle_time_ms)
        self._forget_empty(failed)
        return failed

    def _take_partition(
        self, node: int, session: FetchSession, tp: TopicPartition, state: PartitionState, item: PartitionData
    ) -> None:
        code = ErrorCode.of(item.error_code)
        if code is ErrorCode.NONE:
            if item.preferred_read_replica >= 0 and item.preferred_read_replica != node:
                age = self._options["metadata_max_age_ms"] / 1000
                state.preferred = (item.preferred_read_replica, self._now() + age)
            self._take_records(tp, state, item)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._back_to_leader(tp):
                return  # a follower may lag behind: only the leader's response counts
            try:
                why = (
                    f"offset {state.position} is not in the log of {tp[0]}-{tp[1]} (the records were deleted by "
                    "retention or DeleteRecords, or the log was truncated)"
                )
                # Not `subscription.seek_to_time`: records that a loop still has were in the log when they were read.
                state.replace_position(self._offsets.reset_timestamp(tp, why), why)
            except errors.OffsetOutOfRangeError as error:
                self._background.fail(error)
        elif code in LEADER_MOVED:
            session.reset()
            self._cluster.topology.forget(tp[0])
            self._back_to_leader(tp)
        elif code is ErrorCode.UNKNOWN_SERVER_ERROR:  # Kafka's consumer retries, too
            log.warning(
                "the broker reported an unexpected error for the Fetch of %s-%d at offset %s; retrying",
                *tp,
                state.position,
            )
        elif code is ErrorCode.CORRUPT_MESSAGE:
            self._background.fail(unreadable_batch(tp, state.position, ProtocolError(code, code.text)))
        elif not code.retriable:
            self._background.fail(errors.error_for(code, f"Fetch of {tp[0]}-{tp[1]}: {code.text}"))

    def _take_records(self, tp: TopicPartition, state: PartitionState, item: PartitionData) -> None:
        state.high_watermark = item.high_watermark
        state.last_stable_offset = item.last_stable_offset
        if item.records is None or not len(item.records):
            return
        assert state.position is not None
        try:
            fetch = CompletedFetch(
                tp,
                item,
                state.position,
                committed_only=self._isolation == READ_COMMITTED,
                check_crcs=self._options["check_crcs"],
            )
        except ProtocolError as error:
            self._background.fail(unreadable_batch(tp, state.position, error))
            return
        if fetch.end > state.position:
            self._subscription.add_fetch(fetch)

    def _back_to_leader(self, tp: TopicPartition) -> bool:
        """Fetch from the leader again; return whether a follower was used before."""
        state = self._subscription.partitions.get(tp)
        followed = state is not None and state.preferred is not None
        if state is not None:
            state.preferred = None
        return followed

    # -- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Send no more requests."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def end_sessions(self) -> None:
        """Let the brokers drop their fetch sessions at once, as Kafka's consumer does (the final epoch of KIP-227)."""
        known = [(node, session.session_id) for node, session in self._sessions.items() if session.session_id]
        await asyncio.gather(*(self._end_session(node, session_id) for node, session_id in known))

    async def _end_session(self, node: int, session_id: int) -> None:
        connection = self._cluster.open_connection(node, "fetch")
        if connection is None:
            return  # the broker is unavailable, or this consumer has not fetched from it for long
        with contextlib.suppress(ConnectionLostError, errors.KafkaError):  # brokers also drop unused sessions
            if connection.in_flight:  # this request would wait until a pending fetch is answered
                connection = await self._cluster.connection(node)
            await connection.call(FetchRequest(session_id=session_id, session_epoch=FINAL_EPOCH, topics=[]))
