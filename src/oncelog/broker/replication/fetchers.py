"""Fetch the records of the leaders that this broker follows, and append them to its own logs.

There is one fetcher for each leading broker. It sends one Fetch at a time for all partitions that follow this broker,
in a fetch session (KIP-227). `Following` (`cluster/follower.py`) decides what to do with the response for a partition.
Source: Kafka's `ReplicaFetcherThread` and `AbstractFetcherThread`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from uuid import UUID

from oncelog.broker.config.dynamic import DynamicConfig
from oncelog.broker.peers import Failure, Peers, Purpose
from oncelog.broker.replication.start_offsets import StartOffsets
from oncelog.broker.replication.truncations import Truncated, Truncations
from oncelog.broker.retrying import Backoff, Problem
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.workers import Runtime
from oncelog.cluster.follower import Action, Append, Fetch, Fetched, Following, Restart, Signal, Truncate
from oncelog.cluster.leader import DivergingEpoch
from oncelog.cluster.replica import Replica
from oncelog.log.steps import BATCHES_A_STEP, Pace
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from oncelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from oncelog.protocol.topics import TopicPartition

MIN_BACKOFF_MS = 20
"""The first pause after an error. The pause doubles up to `replica.fetch.backoff.ms`."""
WARN_AFTER_S = 1.0
"""How long fetches from a broker must fail before the follower logs it."""
SYNC_WAIT_MS = 20
"""How long a Fetch waits for partitions whose records are being synced. The leader does not count unsynced records."""
_LATEST, _EARLIEST = -1, -2
_ROLES_CHANGE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors that are expected after an election, until both brokers know the new leader."""
_FIRST = 0
"""The session epoch of a Fetch that names all partitions and begins a session."""

Id = tuple[UUID, int]
"""The id of a topic, and a partition."""


class _Followed:
    """One partition that follows the broker of a fetcher."""

    __slots__ = ("backoff", "changed", "fetch", "following", "id", "problem", "replica", "retry_at")

    def __init__(
        self, replica: Replica, changed: Callable[[_Followed], None], backoff: Backoff, problem: Problem
    ) -> None:
        """`changed` is called after each change of the log."""
        self.id: Id = replica.topic_id, replica.partition
        self.changed = partial(changed, self)
        self.replica = replica
        self.following = Following(replica.leader, replica.leader_epoch, replica.log)
        self.fetch: Fetch | None = None
        """The part of the Fetch in flight."""
        self.retry_at = 0.0
        """The loop's time before which the partition is not fetched."""
        self.backoff = backoff
        self.problem = problem

    @property
    def is_current(self) -> bool:
        """Return whether the replica still follows the same leader in the same epoch."""
        replica, following = self.replica, self.following
        usable = replica.term is None and not (replica.offline or replica.log.closed)
        return usable and (replica.leader, replica.leader_epoch) == (following.leader, following.leader_epoch)

    @property
    def is_unsynced(self) -> bool:
        """Return whether the log has records that must be synced before the leader may count them."""
        return self.replica.stored_end < self.replica.log.log_end_offset

    @property
    def has_new_start(self) -> bool:
        """Return whether the leader does not know the log start yet, because it is not in a checkpoint."""
        return self.replica.stored_start < self.replica.log.log_start_offset


class _Session:
    """A fetch session with the leader: what it knows already."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = _FIRST
        self.sent: dict[Id, Fetch] = {}

    def request(
        self, wanted: Mapping[Id, _Followed], changed: Iterable[Id], max_bytes: int
    ) -> tuple[list[FetchTopic], list[ForgottenTopic]]:
        """Return the partitions that the leader does not know yet, and those that it must forget.

        Only those in `changed` differ from the last request.
        """
        if self.epoch == _FIRST:
            self.sent.clear()
            changed = wanted
        topics: dict[UUID, FetchTopic] = {}
        forgotten: dict[UUID, ForgottenTopic] = {}
        for key in changed:
            topic_id, partition = key
            if key not in wanted:
                if self.sent.pop(key, None) is not None:
                    gone = forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id, partitions=[]))
                    gone.partitions.append(partition)
                continue
            fetch = wanted[key].fetch
            assert fetch is not None
            if self.sent.get(key) == fetch:
                continue
            self.sent[key] = fetch
            topic = topics.setdefault(topic_id, FetchTopic(topic_id=topic_id, partitions=[]))
            topic.partitions.append(
                FetchPartition(
                    partition=partition,
                    current_leader_epoch=fetch.leader_epoch,
                    fetch_offset=fetch.offset,
                    last_fetched_epoch=fetch.last_fetched_epoch,
                    log_start_offset=fetch.log_start,
                    partition_max_bytes=max_bytes,
                )
            )
        return list(topics.values()), list(forgotten.values())

    def begin_again(self) -> None:
        """Name all partitions in the next Fetch. The leader then closes the present session, if it has it."""
        self.epoch = _FIRST

    def answered(self, session_id: int) -> None:
        """Record the session of a response."""
        self.id = session_id
        self.epoch = self.epoch % (2**31 - 1) + 1 if session_id else _FIRST


class Replication:
    """All fetchers of this broker."""

    def __init__(
        self,
        partitions: Partitions,
        peers: Peers,
        config: DynamicConfig,
        starts: StartOffsets,
        abort_connections: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        """For `abort_connections`, see `Truncations`."""
        self.partitions = partitions
        self.peers = peers
        self.config = config
        self.workers = runtime.workers
        self.starts = starts
        self.truncations = Truncations(partitions, abort_connections, runtime)
        self.now_ms = runtime.now_ms
        self.logger = runtime.logger
        self._fetchers: dict[int, _Fetcher] = {}

    def role_changed(self, replica: Replica) -> None:
        """Fetch the replica only from the leader that it follows now, and from no former leader."""
        for fetcher in self._fetchers.values():
            fetcher.remove(replica)
        if replica.leader >= 0:
            if replica.leader not in self._fetchers:
                fetcher = self._fetchers[replica.leader] = _Fetcher(self, replica.leader)
                self.workers.spawn(fetcher.run(), f"fetch from broker {replica.leader}")
            self._fetchers[replica.leader].add(replica)


class _Fetcher:
    """Fetch from one broker. The work for a Fetch grows with the partitions that have changed, not with all."""

    def __init__(self, parts: Replication, leader: int) -> None:
        self._parts = parts
        self._leader = leader
        self._followed: dict[TopicPartition, _Followed] = {}
        self._due: dict[_Followed, None] = {}
        """The partitions to look at before the next Fetch: changed ones, and those that cannot be fetched yet."""
        self._wanted: dict[Id, _Followed] = {}
        """The partitions that the next Fetch asks for. Those that got records last are at the end, so that without
        a session, the partitions that are named first do not fill all responses."""
        self._changed: dict[Id, None] = {}
        """The partitions that the next Fetch may ask for in another way than the last one, or not any more."""
        self._session = _Session()
        self._wake = asyncio.Event()
        self._failing_since: float | None = None
        """The loop's time of the first of the failed fetches, or None."""
        self._warned = False

    def add(self, replica: Replica) -> None:
        """Fetch for this replica."""
        key = replica.topic, replica.partition
        if key in self._followed:  # the replica of a deleted topic
            self.remove(self._followed[key].replica)
        backoff = Backoff(MIN_BACKOFF_MS, self._parts.config.static.replica_fetch_backoff_ms)
        followed = self._followed[key] = _Followed(replica, self._look, backoff, Problem(self._parts.logger))
        replica.watch(followed.changed)
        self._look(followed)

    def remove(self, replica: Replica) -> None:
        """Do not fetch for this replica."""
        known = self._followed.get((replica.topic, replica.partition))
        if known is not None and known.replica is replica:
            del self._followed[replica.topic, replica.partition]
            replica.unwatch(known.changed)
            self._due.pop(known, None)
            self._wanted.pop(known.id, None)
            self._changed[known.id] = None

    def _look(self, followed: _Followed) -> None:
        """Look at the partition before the next Fetch."""
        if self._followed.get((followed.replica.topic, followed.replica.partition)) is followed:
            self._due[followed] = None
            self._wake.set()

    async def run(self) -> None:
        """Fetch until the broker stops."""
        while True:
            try:
                answered = await self._turn()
            except Exception:
                self._parts.logger.exception("the fetch from broker %d failed", self._leader)
                self._session.begin_again()
                answered = False
                await asyncio.sleep(self._parts.config.static.replica_fetch_backoff_ms / 1000)
            if not answered:
                self._delay(self._wanted.values())

    async def _turn(self) -> bool:
        """Send the next Fetch, or wait for a partition to fetch. Return False if the leader has not answered."""
        self._wake.clear()
        unsynced, retry_s = self._update()
        if unsynced:
            await self._sync(unsynced)
            unsynced, retry_s = self._update()
        if not self._wanted:
            await self._pause(retry_s)
            return True
        return await self._fetch(min(retry_s, SYNC_WAIT_MS / 1000) if unsynced else retry_s)

    def _update(self) -> tuple[list[_Followed], float]:
        """Find out what to fetch now. Return the partitions whose records must be synced first (`flush.messages`).

        The second result is the number of seconds after which a back-off ends, or a checkpoint may have been written.
        """
        now = asyncio.get_running_loop().time()
        unsynced = []
        retry_at = math.inf
        for followed in tuple(self._due):
            self._changed[followed.id] = None
            last = followed.fetch if self._wanted.get(followed.id) is followed else None
            followed.fetch = None
            if not followed.is_current:
                self.remove(followed.replica)
            elif followed.replica.truncating:
                pass
            elif followed.retry_at > now:
                retry_at = min(retry_at, followed.retry_at)
            elif followed.is_unsynced:
                unsynced.append(followed)
            else:
                del self._due[followed]
                followed.fetch = self._next_fetch(followed)
                if followed in self._due:  # after an error
                    retry_at = min(retry_at, followed.retry_at)
                elif followed.has_new_start:
                    self._parts.starts.store(followed.replica)
            if followed.fetch is None or followed.fetch != last:
                self._wanted.pop(followed.id, None)  # a partition that has got records moves to the end
                if followed.fetch is not None:
                    self._wanted[followed.id] = followed
        if self._parts.starts.is_writing:  # the next Fetch must report the new log starts soon
            retry_at = min(retry_at, now + SYNC_WAIT_MS / 1000)
        return unsynced, retry_at - now

    def _next_fetch(self, followed: _Followed) -> Fetch | None:
        """Return what the next Fetch asks of a partition, or None if it asks nothing. After an error, retry later."""
        try:
            return followed.following.next_fetch(followed.replica.stored_start)
        except Exception as error:  # noqa: BLE001 - the leader's other partitions do not depend on this one
            followed.problem.failed(
                "cannot prepare the fetch of %s", followed.replica.name, kind=repr(error), exc_info=True
            )
            self._delay([followed])
            return None

    async def _sync(self, unsynced: list[_Followed]) -> None:
        """Wait until these partitions are synced, but not long, because other partitions wait for the next Fetch."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SYNC_WAIT_MS / 1000):
                while any(followed.is_current and followed.is_unsynced for followed in unsynced):
                    self._wake.clear()
                    await self._wake.wait()

    async def _pause(self, longest_s: float) -> None:
        """Wait for a partition that can be fetched."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if longest_s == math.inf else longest_s):  # wait_for can swallow a cancel
                await self._wake.wait()

    def _delay(self, partitions: Iterable[_Followed]) -> None:
        now = asyncio.get_running_loop().time()
        for followed in partitions:
            followed.retry_at = now + followed.backoff.next_s()
            self._look(followed)

    async def _fetch(self, longest_s: float) -> bool:
        """Send one Fetch, and process the response. Return False if the leader has not answered.

        The leader waits at most `longest_s` for new records, because then other partitions must be fetched.
        """
        parts, session = self._parts, self._session
        config, roles = parts.config.static, parts.partitions.roles
        wait_ms = math.ceil(min(config.replica_fetch_wait_max_ms, longest_s * 1000))
        topics, forgotten = session.request(self._wanted, self._changed, config.replica_fetch_max_bytes)
        self._changed.clear()
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=roles.node_id, replica_epoch=roles.membership.epoch),
            max_wait_ms=wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        timeout_ms = config.replica_fetch_wait_max_ms + config.replica_socket_timeout_ms
        response = await parts.peers.request(self._leader, Purpose.FETCH, request, FetchResponse, timeout_ms)
        problem = response.reason if isinstance(response, Failure) else ErrorCode.of(response.error_code).name
        if isinstance(response, Failure) or response.error_code:
            self._session.begin_again()
            self._report(problem)
            return False
        self._failing_since, self._warned = None, False
        session.answered(response.session_id)
        pace = Pace(BATCHES_A_STEP)
        for topic in response.responses:
            for data in topic.partitions:
                followed = self._wanted.get((topic.topic_id, data.partition_index))
                if followed is None:
                    continue
                self._look(followed)
                if followed.is_current:
                    await self._received(followed, data, pace)
                    if pace.is_due(1):
                        await asyncio.sleep(0)
        return True

    def _report(self, problem: str) -> None:
        """Log a problem that continues for WARN_AFTER_S. If the leader has stopped, another one is elected sooner."""
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        if not self._warned and now >= self._failing_since + WARN_AFTER_S:
            self._warned = True
            self._parts.logger.warning(
                "cannot fetch from broker %d for %.0f s: %s. Check that it runs and is not overloaded",
                self._leader,
                now - self._failing_since,
                problem,
            )

    async def _received(self, followed: _Followed, data: PartitionData, pace: Pace) -> None:
        """Process the response for one partition."""
        assert followed.fetch is not None
        diverging = data.diverging_epoch
        fetched = Fetched(
            ErrorCode.of(data.error_code),
            memoryview(data.records or b""),
            data.high_watermark,
            data.log_start_offset,
            DivergingEpoch(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        )
        replica = followed.replica
        action: Action = Signal.RETRY
        try:
            action = followed.following.received(followed.fetch, fetched)
            if action is Signal.ASK_RANGE:
                bounds = await self._bounds(followed)
                action = Signal.RETRY if bounds is None else followed.following.range_known(*bounds)
                if not followed.is_current:
                    return
            if isinstance(action, Append):
                await self._append(followed, action, pace)
                followed.backoff.reset()
                followed.problem.over()
            elif isinstance(action, Truncate | Restart):
                self._parts.truncations.diverged(replica, self._leader, action)
        except Exception as error:  # noqa: BLE001 - the leader's other partitions do not depend on this one
            trace = not isinstance(error, ProtocolError)
            text, problem = "cannot replicate %s: %s", followed.problem
            problem.failed(text, replica.name, error, kind=repr(error), exc_info=trace)
            action = Signal.IGNORE
        if isinstance(action, Signal):
            if action is not Signal.IGNORE:
                level = logging.DEBUG if fetched.error in _ROLES_CHANGE else logging.INFO
                text, name = "cannot fetch %s from broker %d: %s", fetched.error.name
                followed.problem.failed(text, replica.name, self._leader, name, kind=name, level=level)
            self._delay([followed])

    async def _append(self, followed: _Followed, action: Append, pace: Pace) -> None:
        """Append the leader's records, and apply its high watermark and log start offset. Raises ProtocolError.

        Other requests have their turn in between. If the role of the replica changes then, the rest is dropped.
        """
        replica = followed.replica
        log = replica.log
        if action.records:
            truncations, before = log.truncations, Truncated(log.recovery_point, log.high_watermark)
            epoch, now_ms = followed.following.leader_epoch, self._parts.now_ms()
            steps = log.appending_as_follower(action.records, leader_epoch=epoch, now_ms=now_ms, pace=pace)
            try:
                for _ in steps:
                    if truncations != log.truncations:  # no new role may begin with the truncated log
                        replica.truncating = True
                    await asyncio.sleep(0)
                    if not followed.is_current:
                        return
            finally:
                steps.close()
                if replica.offline or log.closed:
                    pass
                elif truncations != log.truncations:  # the log had only a part of the leader's first batch
                    self._parts.truncations.start(replica, before)
                else:
                    replica.appended()  # after an error, the log may have a part of the records
            replica.bytes_appended += len(action.records)
            replica.traffic.replication_bytes_in += len(action.records)
        committed = log.high_watermark
        log.advance_high_watermark(action.high_watermark)
        log.advance_log_start(min(action.log_start, log.high_watermark))
        if log.high_watermark > committed:
            replica.wake()  # consumers of this replica wait for it

    async def _bounds(self, followed: _Followed) -> tuple[int, int] | None:
        """Return the leader's log start and log end offsets, or None if it does not answer."""
        parts, found = self._parts, []
        for timestamp in (_EARLIEST, _LATEST):
            asked = ListOffsetsPartition(
                partition_index=followed.replica.partition,
                current_leader_epoch=followed.following.leader_epoch,
                timestamp=timestamp,
            )
            request = ListOffsetsRequest(
                replica_id=parts.partitions.roles.node_id,
                topics=[ListOffsetsTopic(name=followed.replica.topic, partitions=[asked])],
            )
            timeout_ms = parts.config.static.replica_socket_timeout_ms
            response = await parts.peers.request(self._leader, Purpose.FETCH, request, ListOffsetsResponse, timeout_ms)
            if isinstance(response, Failure):
                return None
            answer = response.topics[0].partitions[0]
            if answer.error_code:
                return None
            found.append(answer.offset)
        return found[0], found[1]
