"""The driver under both consumers: fetches ahead, keeps positions, and takes part in a group.

Runs on one event loop. `poll` gives what has been fetched; fetching goes on in the background (`fetch_loop`). Group
work (join, assignment, listeners) happens inside `poll` and the calls that need it, heartbeats beside it
(`subscription`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from oncelog import errors
from oncelog.client.calls import Calls
from oncelog.client.consumer.commits import Commits
from oncelog.client.consumer.fetch_loop import FetchLoop, damage
from oncelog.client.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, ConsumerRecord, Fetched, PartitionState
from oncelog.client.consumer.iteration import Iteration
from oncelog.client.consumer.metadata_watch import MetadataWatch
from oncelog.client.consumer.positions import Positions
from oncelog.client.consumer.subscription import Listener, Subscription
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.options import cluster_options
from oncelog.client.types import TopicPartition
from oncelog.protocol.errors import ProtocolError

LOOK_AGAIN_S = 0.1
"""How long a poll waits before it sees to its group again, or to positions that could not be found."""
FOR_EVER_MS = 1e12
"""Thirty years: what a poll without a time-out waits."""
FETCH_SESSIONS_S = 1.0
"""How long closing waits until brokers have forgotten what was fetched: they do by themselves, too."""


class Reader:
    """Everything of a consumer but its face."""

    def __init__(self, options: Mapping[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.loop = loop
        self.cluster = ClusterClient(options["bootstrap_servers"], what="consumer", **cluster_options(options))
        self.polls = Calls("consumer")
        """They end before the client closes, because both change the membership. Other calls may end after it."""
        self.isolation = READ_COMMITTED if options["isolation_level"] == "read_committed" else READ_UNCOMMITTED
        self.states: dict[TopicPartition, PartitionState] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._arrived: asyncio.Future[None] | None = None
        self._ready: dict[TopicPartition, None] = {}
        """Partitions with something fetched, in the order in which they get their turn."""
        self.subscription = Subscription(self)
        self.commits = Commits(self)
        self.positions = Positions(self)
        self.metadata_watch = MetadataWatch(self)
        self._fetch_loop = FetchLoop(self)
        self.tell: Callable[[Listener, list[TopicPartition]], Awaitable[None]] = _told
        """Calls a user's listener, where the user expects it."""
        self.iteration: Iteration | None = None
        """The loop over records that the user is in, or has left."""
        self._polling = False
        self._woken = False
        self.closed = False
        self._closed_by: object = None

    # -- what to read ---------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; positions of those that stay are kept."""
        if self.subscription.member is not None:
            raise errors.UsageError("this consumer is subscribed: unsubscribe() first")
        self.take_partitions(partitions)
        self.metadata_watch.chosen(topic for topic, _ in self.states)

    def take_partitions(self, partitions: Iterable[TopicPartition], *, keep: bool = True) -> None:
        """From now on these partitions, with or without what is known of those that stay."""
        self.positions.forget_search()
        old = self.states if keep else {}
        self.states = {tp: old.get(tp) or PartitionState() for tp in partitions}
        self._ready = {tp: None for tp in self._ready if tp in self.states and self.states[tp].buffered}

    async def unsubscribe(self) -> None:
        """Leave the group, read nothing."""
        try:
            await self.subscription.end()
        finally:
            self.take_partitions(())

    def state(self, tp: TopicPartition) -> PartitionState:
        """Of an assigned partition; UsageError."""
        found = self.states.get(tp)
        if found is None:
            raise errors.UsageError(f"{tp[0]}-{tp[1]} is not assigned to this consumer")
        return found

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on; UsageError."""
        self.state(tp).seek(offset)
        self.sought(tp)

    def seek_to_time(self, tp: TopicPartition, timestamp: int) -> None:
        """Read a partition from where ListOffsets says; UsageError."""
        self.state(tp).seek_to_time(timestamp)
        self.sought(tp)

    def sought(self, tp: TopicPartition) -> None:
        """A partition stands elsewhere now, whatever a loop over records still has of it."""
        if self.iteration is not None:
            self.iteration.sought(tp)

    def seek_to_committed(self) -> None:
        """Read on from what the group has committed, in all partitions: what came after it comes again."""
        self.group_metadata()  # UsageError without a group
        self.commits.rewound()
        for tp, state in self.states.items():
            state.seek_to_committed()
            self.sought(tp)

    def group_metadata(self) -> GroupMetadata:
        """Who commits; UsageError without group_id."""
        return self.subscription.group_metadata()

    def loop_continues(self, reader: object) -> bool:
        """Return whether a loop continues. It ends if its own thread or task (`reader`) closed the consumer.

        Raises ClientClosedError if another thread or task closed it, because the loop has not read all records.
        """
        if self._closed_by is not None and self._closed_by == reader:
            return False
        self.polls.check()
        return True

    # -- polling --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float | None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records, as soon as there are some; an empty list when time is up (None: never)."""
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

    async def poll_raw(self, timeout_ms: float | None) -> list[Fetched]:
        """What has been fetched, undecoded and whole, as soon as there is some; positions are the caller's to move."""
        found: list[Fetched] = []

        def take(tp: TopicPartition, state: PartitionState) -> bool:
            found.extend(state.buffered)
            state.buffered.clear()
            return False

        await self._collect(timeout_ms, take, lambda: bool(found))
        return found

    async def _collect(
        self,
        timeout_ms: float | None,
        take: Callable[[TopicPartition, PartitionState], bool],
        enough: Callable[[], bool],
    ) -> None:
        if self.subscription.telling:
            raise errors.UsageError("poll() was called from a listener, or while one runs")
        self.polls.check()
        if self.subscription.member is None and not self.states:
            raise errors.UsageError("subscribe() or assign() comes before poll()")
        if self._polling:
            raise errors.UsageError("another task or thread polls this consumer already")
        with self.polls.call():
            self._polling = True
            if self.iteration is not None:
                self.iteration.stop()
            try:
                within_ms = FOR_EVER_MS if timeout_ms is None else timeout_ms
                await self._collect_until(self.loop.time() + within_ms / 1000, take, enough)
            finally:
                self._polling = False
                if self.subscription.member is not None:
                    self.subscription.member.polled()

    @property
    def waiting(self) -> bool:
        """Whether a poll is under way, and not in the user's hands: in a listener."""
        return self._polling and not self.subscription.telling

    async def _collect_until(
        self, limit: float, take: Callable[[TopicPartition, PartitionState], bool], enough: Callable[[], bool]
    ) -> None:
        while True:
            member = self.subscription.member
            if member is None or await member.keep(limit):
                self.polls.check()  # a listener of oncelog.aio runs in this task and may have closed the consumer
                self.metadata_watch.polled()
                self.commits.auto_commit()
                await self.positions.find_until(limit)
                self._take_ready(take)
                self._fetch_loop.go_on()
            if enough():
                return
            if self._fetch_loop.failure is not None:
                failure, self._fetch_loop.failure = self._fetch_loop.failure, None
                raise failure
            if self._woken:
                self._woken = False
                raise errors.WakeupError("poll was ended by wakeup()")
            left = limit - self.loop.time()
            if left <= 0:
                return
            looks_again = member is not None or self.positions.unsought
            await self.wait(min(left, LOOK_AGAIN_S) if looks_again else left)

    def give_back(self, waiting: Iterable[Fetched]) -> None:
        """What was taken and not given to the user is there at the next poll; the last one is first."""
        for fetched in waiting:
            state = self.states.get(fetched.tp)
            if state is not None:
                state.buffered.appendleft(fetched)
                self.arrived(fetched.tp)

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
            state.consumed, state.consumed_epoch = fetched.position, fetched.epoch
            if len(found) < count and not fetched.damaged:
                state.buffered.popleft()
        return found

    async def wait(self, seconds: float, *tasks: asyncio.Task[Any]) -> None:
        """Until something arrives for `poll`, one of the tasks is done, or time is up."""
        if self._woken:
            seconds = 0
        arrived = self._arrived
        if arrived is None or arrived.done():
            arrived = self._arrived = self.loop.create_future()
        await asyncio.wait([arrived, *tasks], timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)

    def wakeup(self) -> None:
        """Let the poll that is under way, or else the next one, end with WakeupError."""
        self._woken = True
        self.notify()

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

    async def close(self, timeout_ms: float | None = 30_000, by: object = None) -> None:
        """End the poll in progress, commit if auto-commit is on, leave the group, and close the connections.

        `timeout_ms` None: without a time limit. `by`: the caller's thread or task; its own loop over records ends
        without an error.
        """
        if self.polls.closed:
            return
        self._closed_by = by
        self.polls.close()
        if self.iteration is not None:
            self.iteration.stop()
        orderly, seconds = False, (FOR_EVER_MS if timeout_ms is None else timeout_ms) / 1000
        try:
            async with asyncio.timeout(seconds):
                await self.polls.ended()
                if self.subscription.member is None:
                    if self.options["group_id"] is not None:
                        await self.commits.before_rebalance()
                else:
                    await self.subscription.end()
            orderly = True
        except TimeoutError:
            pass  # the group finds out by session.timeout.ms
        finally:
            self.closed = True
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if self.subscription.member is not None:
                await self.subscription.member.stop()
            await asyncio.gather(*tasks, return_exceptions=True)
            try:
                if orderly:  # a coroutine that is closed after its loop comes here, too, and must not wait
                    async with asyncio.timeout(min(seconds, FETCH_SESSIONS_S)):
                        await self._fetch_loop.close()
            except TimeoutError:
                pass
            finally:
                await self.cluster.close()


async def _told(listener: Listener, partitions: list[TopicPartition]) -> None:
    result = listener(partitions)
    if isinstance(result, Coroutine):
        await result
