"""The driver under both consumers: fetches ahead, keeps positions, and takes part in a group.

Runs on one event loop. `poll` gives what has been fetched; fetching goes on in the background (`fetching`). Group work
(join, assignment) happens inside `poll` and the calls that need it, heartbeats beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from oncelog import errors
from oncelog.client import offsets as offset_calls
from oncelog.client.batch import TopicPartition
from oncelog.client.cluster import ClusterClient
from oncelog.client.fetcher import READ_COMMITTED, READ_UNCOMMITTED, ConsumerRecord, Fetched, PartitionState
from oncelog.client.fetching import Fetching, damage
from oncelog.client.group import GroupMetadata
from oncelog.client.member import Member
from oncelog.client.options import cluster_options
from oncelog.client.watch import Watch
from oncelog.protocol.errors import ProtocolError

LEADERS_MS = 1_000
"""How long partitions whose offsets are known wait, before they are read, for others whose leaders do not answer."""

RESET = {"earliest": offset_calls.EARLIEST, "latest": offset_calls.LATEST}
Listener = Callable[[list[TopicPartition]], object]


class Raw(NamedTuple):
    """One partition's part of an answer as bytes, for `tables`."""

    fetched: Fetched
    start: int


class Reader:
    """Everything of a consumer but its face."""

    def __init__(self, options: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.loop = loop
        self.cluster = ClusterClient(options["bootstrap_servers"], **cluster_options(options))
        self.isolation = READ_COMMITTED if options["isolation_level"] == "read_committed" else READ_UNCOMMITTED
        self.states: dict[TopicPartition, PartitionState] = {}
        self.member: Member | None = None
        self._pattern: re.Pattern[str] | None = None
        self._subscribed: frozenset[str] = frozenset()
        self._on_assigned: Listener | None = None
        self._on_revoked: Listener | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._arrived: asyncio.Future[None] | None = None
        self._ready: dict[TopicPartition, None] = {}
        """Partitions with something fetched, in the order in which they get their turn."""
        self._next_commit = 0.0
        self._unsettled = False
        """Whether partitions were given up behind whose records neither a commit nor a transaction came."""
        self._next_look = 0.0
        self._search: asyncio.Task[None] | None = None
        """For the positions of partitions that have none; `poll` goes on meanwhile with those that have one."""
        self._fetching = Fetching(self)
        self._watch = Watch(self)
        self.closed = False

    # -- what to read ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
    ) -> None:
        """Read topics as a member of the group; a text that begins with ^ is a pattern for their names."""
        if self.options["group_id"] is None:
            raise errors.UsageError("subscribe() needs the option group_id; assign() does without")
        if self.states and self.member is None:
            raise errors.UsageError("this consumer has partitions by assign(): unsubscribe() first")
        if isinstance(topics, str):
            self._pattern = re.compile(topics) if topics.startswith("^") else None
            topics = [] if self._pattern else [topics]
        else:
            self._pattern = None
        self._subscribed = frozenset(topics)
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        if self.member is None:
            self.member = Member(self)
        self.member.membership.subscribe(sorted(self._subscribed))
        self._next_look = 0.0

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; positions of those that stay are kept."""
        if self.member is not None:
            raise errors.UsageError("this consumer is subscribed: unsubscribe() first")
        self.take_partitions(partitions, keep=True)

    def take_partitions(self, partitions: Iterable[TopicPartition], *, keep: bool) -> None:
        """From now on these partitions, with or without what is known of those that stay."""
        if self._search is not None:
            self._search.cancel()
            self._search = None
        old = self.states if keep else {}
        self.states = {tp: old.get(tp) or PartitionState() for tp in partitions}
        self._ready = {tp: None for tp in self._ready if tp in self.states and self.states[tp].buffered}

    async def unsubscribe(self) -> None:
        """Leave the group, read nothing."""
        if self.member is not None:
            await self._give_up_partitions()
            await self.member.leave()
            self.member = None
        self._subscribed, self._pattern = frozenset(), None
        self.take_partitions((), keep=False)

    def state(self, tp: TopicPartition) -> PartitionState:
        """Of an assigned partition; UsageError."""
        found = self.states.get(tp)
        if found is None:
            raise errors.UsageError(f"{tp[0]}-{tp[1]} is not assigned to this consumer")
        return found

    def group_metadata(self) -> GroupMetadata:
        """Who commits; UsageError without group_id."""
        if self.member is not None:
            return self.member.membership.metadata()
        if self.options["group_id"] is None:
            raise errors.UsageError("this consumer has no group_id")
        return GroupMetadata(self.options["group_id"], group_instance_id=self.options["group_instance_id"])

    # -- group ----------------------------------------------------------------------------------------------------

    async def _keep_membership(self, limit: float) -> bool:
        """Be a member with a current assignment; False when time is up before."""
        if self.member is None:
            return True
        self.member.polled()
        await self._look_for_topics(self.member)
        self.member.raise_failure()
        if not self.member.must_join:
            return True
        return await self.member.rejoin(limit, before=self._give_up_partitions, after=self._take_assignment)

    async def _look_for_topics(self, member: Member) -> None:
        """Now and then: topics that the pattern matches, and partitions that the group's leader has not divided."""
        if self.loop.time() < self._next_look or (self._pattern is None and not member.counted):
            return
        if self._pattern is not None:
            found = await self.cluster.topics(internal=not self.options["exclude_internal_topics"])
            member.membership.subscribe([name for name in found if self._pattern.search(name)])
        else:
            with contextlib.suppress(errors.ConnectionFailedError):  # looks again the next time
                await self.cluster.refresh(member.counted)
        member.compare_counts()
        soon = 0 in member.counted.values()  # a topic is to come yet
        wait_ms = self.options["retry_backoff_max_ms" if soon else "metadata_max_age_ms"]
        self._next_look = self.loop.time() + wait_ms / 1000

    async def _give_up_partitions(self) -> None:
        """Before a rebalance (eager protocol): commit what was consumed, tell the user."""
        member = self.member
        if member is None or not self.states:
            return
        if self.options["enable_auto_commit"] and not member.membership.lost:
            with contextlib.suppress(errors.KafkaError):
                await self.commit(timeout_ms=self.options["default_api_timeout_ms"] / 4)
        self._unsettled |= any(state.consumed != state.settled for state in self.states.values())
        gone = list(self.states)
        self.take_partitions((), keep=False)
        if self._on_revoked is not None:
            await _told(self._on_revoked, gone)

    async def _take_assignment(self, partitions: list[TopicPartition]) -> None:
        self.take_partitions(partitions, keep=False)
        self._watch.assigned(self._subscribed, (topic for topic, _ in partitions))
        if self._on_assigned is not None:
            await _told(self._on_assigned, list(partitions))

    async def _auto_commit(self) -> None:
        if not self.options["enable_auto_commit"] or self.loop.time() < self._next_commit:
            return
        self._next_commit = self.loop.time() + self.options["auto_commit_interval_ms"] / 1000
        offsets = self.consumed()
        if offsets:
            self.spawn(self._commit_quietly(offsets))

    async def _commit_quietly(self, offsets: dict[TopicPartition, int]) -> None:
        """Auto-commit: an error is made good by the next one."""
        with contextlib.suppress(errors.KafkaError):
            await offset_calls.commit(self.cluster, self.group_metadata(), offsets)

    # -- positions ------------------------------------------------------------------------------------------------

    def hand_over(self) -> dict[TopicPartition, int]:
        """As `consumed`, for a transaction that commits these offsets with what was made of the records.

        UsageError with auto-commit, which would commit them without it. AbortableError when a rebalance took partitions
        away whose records were given to the user and not settled: the transaction may hold what was made of them, but
        no longer their offsets, and whoever has the partitions now reads them again.
        """
        if self.options["enable_auto_commit"]:
            raise errors.UsageError("send_offsets needs a consumer without enable_auto_commit, which commits beside it")
        if self._unsettled:
            self._unsettled = False
            raise errors.AbortableError("a rebalance took partitions away whose records this transaction may hold")
        return self._mark_settled(self.consumed())

    def _mark_settled(self, offsets: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        for tp, offset in offsets.items():
            if tp in self.states:
                self.states[tp].settled = offset
        return offsets

    def consumed(self) -> dict[TopicPartition, int]:
        """Partition -> offset behind what the user was given, where that is known."""
        return {tp: state.consumed for tp, state in self.states.items() if state.consumed is not None}

    async def find_positions(self, timeout_ms: float | None = None, leaders_ms: float | None = None) -> None:
        """Give every assigned partition a position: what was sought, else committed, else auto.offset.reset.

        Those found stay, though others are not found in time; `leaders_ms`: in which the leaders have to answer.
        """
        unknown = {tp: state for tp, state in self.states.items() if state.position is None}
        if not unknown:
            return
        sought = {tp: state.reset for tp, state in unknown.items()}

        def settle(tp: TopicPartition, offset: int) -> None:
            """Unless it was given up, or something else was sought, meanwhile."""
            state = self.states.get(tp)
            if state is unknown[tp] and state.position is None and state.reset == sought[tp]:
                state.seek(offset)

        uncommitted = [tp for tp, timestamp in sought.items() if timestamp is None]
        committed: dict[TopicPartition, int] = {}
        if uncommitted and self.options["group_id"] is not None:
            committed = await offset_calls.fetch_committed(
                self.cluster, self.options["group_id"], uncommitted, timeout_ms=timeout_ms
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
        within_ms = timeout_ms if leaders_ms is None else leaders_ms
        found: dict[TopicPartition, offset_calls.Listed] = {}
        try:
            await offset_calls.list_offsets(
                self.cluster, wanted, isolation_level=self.isolation, timeout_ms=within_ms, into=found
            )
            missing = {tp: offset_calls.LATEST for tp, item in found.items() if item.offset < 0}
            if missing:  # no record at or after the time: the end
                found |= await offset_calls.list_offsets(self.cluster, missing, isolation_level=self.isolation)
        finally:
            for tp, item in found.items():
                if item.offset >= 0:
                    settle(tp, item.offset)

    def reset_policy(self, tp: TopicPartition, why: str) -> int:
        """Where to begin without a position: a timestamp for ListOffsets; OffsetOutOfRangeError."""
        policy = self.options["auto_offset_reset"]
        if policy == "none":
            raise errors.OffsetOutOfRangeError(f"no position for {tp[0]}-{tp[1]}: {why}, and auto_offset_reset is none")
        return RESET[policy]

    async def position(self, tp: TopicPartition, timeout_ms: float | None = None) -> int:
        """Offset behind what the user was given."""
        state = self.state(tp)
        while state.consumed is None:
            await self.find_positions(timeout_ms)
            state = self.state(tp)
        return state.consumed

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit what was consumed, or `offsets`."""
        group = self.group_metadata()
        committed = dict(self.consumed() if offsets is None else offsets)
        await offset_calls.commit(self.cluster, group, committed, timeout_ms=timeout_ms)
        self._mark_settled(committed)

    # -- polling --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records, as soon as there are some; an empty list when time is up."""
        count = self.options["max_poll_records"] if max_records is None else max_records
        found: list[ConsumerRecord] = []

        def take(tp: TopicPartition, state: PartitionState) -> bool:
            try:
                found.extend(self._take(tp, state, count - len(found)))
            except errors.KafkaError:
                if not found:
                    raise
                return True  # what the other partitions gave comes first: the damage is still there at the next poll
            return len(found) >= count

        await self._collect(timeout_ms, take, lambda: bool(found))
        return found

    async def poll_raw(self, timeout_ms: float) -> list[Raw]:
        """What has been fetched, undecoded and whole, as soon as there is some; positions are the caller's to move."""
        found: list[Raw] = []

        def take(tp: TopicPartition, state: PartitionState) -> bool:
            while state.buffered:
                fetched = state.buffered.popleft()
                found.append(Raw(fetched, max(fetched.position, state.consumed or 0)))
            return False

        await self._collect(timeout_ms, take, lambda: bool(found))
        return found

    async def _collect(
        self,
        timeout_ms: float,
        take: Callable[[TopicPartition, PartitionState], bool],
        enough: Callable[[], bool],
    ) -> None:
        if self.closed:
            raise errors.UsageError("the consumer is closed")
        if self.member is None and not self.states:
            raise errors.UsageError("subscribe() or assign() comes before poll()")
        limit = self.loop.time() + timeout_ms / 1000
        while True:
            if await self._keep_membership(limit):
                self._watch.polled()
                await self._auto_commit()
                await self._find_positions_until(limit)
                self._take_ready(take)
                self._fetching.go_on()
            if enough():
                return
            if self._fetching.failure is not None:
                failure, self._fetching.failure = self._fetching.failure, None
                raise failure
            left = limit - self.loop.time()
            if left <= 0:
                return
            await self._wait(min(left, 0.1 if self.member is not None else left))

    async def _find_positions_until(self, limit: float) -> None:
        """Waits for positions only while there is none at all: a partition without a leader holds up no other."""
        states = self.states.values()
        if self._search is None:
            if all(state.position is not None for state in states):
                return
            self._search = self.spawn(self.find_positions(leaders_ms=LEADERS_MS))
            self._search.add_done_callback(lambda _: self.notify())
        search = self._search
        if not any(state.position is not None for state in states):
            await asyncio.wait([search], timeout=max(limit - self.loop.time(), 1.0))
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

    def _take_ready(self, take: Callable[[TopicPartition, PartitionState], bool]) -> None:
        for tp in list(self._ready):
            state = self.states.get(tp)
            if state is None or not state.buffered:
                self._ready.pop(tp, None)
                continue
            if state.paused:
                continue
            full = take(tp, state)
            del self._ready[tp]
            if state.buffered:
                self._ready[tp] = None
            if full:
                return

    def _take(self, tp: TopicPartition, state: PartitionState, count: int) -> list[ConsumerRecord]:
        """Up to `count` records of one partition; the position moves on."""
        found: list[ConsumerRecord] = []
        while state.buffered and len(found) < count:
            fetched = state.buffered[0]
            try:
                found += fetched.take(count - len(found))
            except ProtocolError as error:
                if found:
                    break
                raise damage(tp, fetched.position, error) from error
            state.consumed = fetched.position
            if len(found) < count and not fetched.damaged:
                state.buffered.popleft()
        return found

    async def _wait(self, seconds: float) -> None:
        arrived = self._arrived
        if arrived is None or arrived.done():
            arrived = self._arrived = self.loop.create_future()
        await asyncio.wait([arrived], timeout=seconds)

    def notify(self) -> None:
        """Something arrived: let `poll` look."""
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def arrived(self, tp: TopicPartition) -> None:
        """Something of this partition is waiting for `poll`."""
        self._ready[tp] = None

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a task until it is done or this is closed."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- the end --------------------------------------------------------------------------------------------------

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Commit (where auto-commit is on), leave the group, hang up."""
        if self.closed:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if self.options["enable_auto_commit"] and (self.member is None or not self.member.must_join):
                    with contextlib.suppress(errors.KafkaError):
                        await self.commit(timeout_ms=timeout_ms / 2)
                if self.member is not None:
                    await self.member.leave()
        except TimeoutError:
            pass  # the group finds out by session.timeout.ms
        finally:
            self.closed = True
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if self.member is not None:
                await self.member.stop()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.cluster.close()


async def _told(listener: Listener, partitions: list[TopicPartition]) -> None:
    result = listener(partitions)
    if isinstance(result, Coroutine):
        await result
