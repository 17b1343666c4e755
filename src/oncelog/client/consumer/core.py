"""The parts of a consumer, and the loop that drives them.

`poll` returns records that the `Fetcher` has fetched in the background. Group work (joining, assignment, listeners)
happens inside `poll` and the calls that need it; heartbeats are sent in the background. All runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from operator import itemgetter
from typing import Any, TypeVar

from oncelog import errors
from oncelog.client.calls import Calls
from oncelog.client.consumer.background import Background, PollTimer
from oncelog.client.consumer.classic_member import ClassicMember
from oncelog.client.consumer.commits import Commits
from oncelog.client.consumer.completed_fetch import CompletedFetch
from oncelog.client.consumer.consumer_coordinator import ConsumerCoordinator
from oncelog.client.consumer.consumer_member import ConsumerMember
from oncelog.client.consumer.fetch_collector import Iteration, collect_fetches, collect_records
from oncelog.client.consumer.fetcher import Fetcher
from oncelog.client.consumer.member import Member
from oncelog.client.consumer.metadata_watch import MetadataWatch
from oncelog.client.consumer.offset_fetcher import OffsetFetcher
from oncelog.client.consumer.options import READ_COMMITTED, isolation_level
from oncelog.client.consumer.rebalance import CallListener, Listener, Rebalancer
from oncelog.client.consumer.subscription_state import SubscriptionState
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.guards import INTERRUPTS
from oncelog.client.metrics.fetches import Fetches
from oncelog.client.metrics.results import ConsumerMetrics
from oncelog.client.notebooks import Rows
from oncelog.client.options import cluster_options
from oncelog.client.serialization.functions import Deserializers
from oncelog.client.statistics import start_statistics
from oncelog.client.types import ConsumerRecord
from oncelog.protocol.topics import TopicPartition

T = TypeVar("T")

log = logging.getLogger("oncelog.client.consumer")

RETRY_S = 0.1
"""How long a poll waits before it continues its group work, or its search for positions."""
FOR_EVER_MS = 1e12
"""Thirty years: how long a poll without a timeout waits."""
END_SESSIONS_S = 1.0
"""How long `close` waits until brokers have dropped the fetch sessions. They also drop unused sessions."""


async def call_in_task(listener: Listener, partitions: list[TopicPartition]) -> None:
    """Call a listener in the current task. It may be a coroutine function."""
    result = listener(partitions)
    if isinstance(result, Coroutine):
        await result


class ConsumerCore:
    """Wire and drive the parts of one consumer."""

    def __init__(
        self,
        options: Mapping[str, Any],
        loop: asyncio.AbstractEventLoop,
        call_listener: CallListener = call_in_task,
    ) -> None:
        self.options = options
        self.deserializers = Deserializers.of(options)
        self.cluster = ClusterClient(options["bootstrap_servers"], what="consumer", **cluster_options(options))
        self.polls = Calls("consumer")
        """They end before the client closes, because both change the membership. Other calls may end after it."""
        self.subscription = SubscriptionState()
        self.background = Background(loop)
        self._poll_timer = PollTimer(options["max_poll_interval_ms"], loop)
        self.offsets = OffsetFetcher(self.cluster, self.subscription, options, self.background)
        self.metadata_watch = MetadataWatch(self.cluster, self.subscription, options, self.background)
        self.fetches = Fetches(self.cluster.requests)
        self.fetcher = Fetcher(
            self.cluster,
            self.subscription,
            options,
            self.offsets,
            self.background,
            fetches=self.fetches,
            warned=self.metadata_watch.warned,
        )
        self.commits = Commits(
            self.cluster,
            self.subscription,
            options,
            self.background,
            self.group_metadata,
            lambda: self.coordinator.joining,
        )
        self._rebalancer = Rebalancer(
            self.subscription, self.commits, self.metadata_watch, self._poll_timer, call_listener, self.fetches
        )
        group = options["group_id"]
        self.coordinator = ConsumerCoordinator(
            None if group is None else GroupMetadata(group, group_instance_id=options["group_instance_id"]),
            self.subscription,
            self.commits,
            self._rebalancer,
            self._new_member,
        )
        self._iteration: Iteration | None = None
        """The current or the last loop over records."""
        self._closed_by: object = None
        self.converting: object = None
        """Not None while `tables` converts fetched records. A poll would move the positions past them."""
        self.subscription.assignment_listeners.append(
            lambda: self.fetches.keep_topics({topic for topic, _ in self.subscription.partitions})
        )
        start_statistics(options, loop, lambda: self.polls.closed, self.metrics)

    def _new_member(self) -> Member[Any]:
        kind = ConsumerMember if self.options["group_protocol"] == "consumer" else ClassicMember
        return kind(self.cluster, self.options, self._rebalancer, self.background, self._poll_timer)

    def group_metadata(self) -> GroupMetadata:
        """Return the identity with which the consumer commits. Raises UsageError without group_id."""
        return self.coordinator.group_metadata()

    def lags(self) -> dict[TopicPartition, int]:
        """Return the lag of each partition whose end is known, from the last Fetch responses (any thread)."""
        committed_only = isolation_level(self.options) == READ_COMMITTED
        partitions = self.subscription.partitions
        lags = {tp: state.lag(committed_only=committed_only) for tp, state in partitions.items()}
        return {tp: lag for tp, lag in lags.items() if lag is not None}

    def metrics(self) -> ConsumerMetrics:
        """Return the metrics (any thread)."""
        return self.fetches.metrics(len(self.subscription.partitions), self.lags(), self.cluster.metrics())

    # -- what to read ---------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Partitions that were assigned before keep their positions."""
        self.subscription.assign_from_user(partitions)
        self.metadata_watch.assigned_by_user()

    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing."""
        try:
            await self.coordinator.leave()
        finally:
            self.subscription.assign(())

    def seek_to_committed(self) -> None:
        """Continue in all partitions at the group's committed offsets. Raises UsageError without group_id."""
        self.group_metadata()
        self.commits.rewound()
        self.subscription.seek_to_committed()

    # -- polling --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float | None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return records as soon as there are some; an empty list when time is up (None: never). Do not count them."""
        limit = self.options["max_poll_records"] if max_records is None else max_records
        return await self._poll(timeout_ms, lambda: collect_records(self.subscription, limit))

    def count(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Count records that a poll returns to the program, and return them."""
        for topic, number in Counter(map(itemgetter(0), records)).items():
            self.fetches.consumed(topic, number)
        return Rows(records)

    async def poll_fetches(self, timeout_ms: float | None, converting: object = None) -> list[CompletedFetch]:
        """Return fetched records, undecoded, as soon as there are some. The caller has to move the positions.

        The attribute `converting` is then the argument, until the caller resets it.
        """
        found = await self._poll(timeout_ms, lambda: collect_fetches(self.subscription))
        self.converting = converting if found else None
        return found

    def iterate(self, records: list[ConsumerRecord], *, count: bool = False) -> Iteration:
        """Return a loop over the records of a poll. The next poll stops it. With `count`, count those it reaches."""
        self._iteration = Iteration(self.subscription, records, self.fetches.consumed if count else None)
        return self._iteration

    def _stop_iteration(self) -> None:
        if self._iteration is not None:
            self._iteration.stop()
            self._iteration = None

    def loop_continues(self, reader: object) -> bool:
        """Return whether a loop continues. It ends if its own thread or task (`reader`) closed the consumer.

        Raises ClientClosedError if another thread or task closed it, because the loop has not read all records.
        """
        if self._closed_by is not None and self._closed_by == reader:
            return False
        self.polls.check()
        return True

    async def _poll(self, timeout_ms: float | None, collect: Callable[[], list[T]]) -> list[T]:
        self._poll_timer.check_can_poll()
        self.polls.check()
        if self.coordinator.member is None and not self.subscription.partitions:
            raise errors.UsageError("call subscribe() or assign() before poll()")
        self._poll_timer.check_only_poll()
        if self.converting is not None:
            raise errors.UsageError(
                f"poll() and tables() cannot run while tables() converts records, as in {INTERRUPTS}; call them later"
            )
        with self.polls.call(), self._poll_timer.poll():
            self._stop_iteration()
            within_ms = FOR_EVER_MS if timeout_ms is None else timeout_ms
            return await self._poll_until(self.background.loop.time() + within_ms / 1000, collect)

    async def _poll_until(self, limit: float, collect: Callable[[], list[T]]) -> list[T]:
        while True:
            found: list[T] = []
            member = self.coordinator.member
            if member is None or await member.ensure_active(limit):
                self.polls.check()  # a listener of oncelog.aio runs in this task and may have closed the consumer
                self.metadata_watch.polled()
                self.commits.auto_commit()
                await self.offsets.update_positions_until(limit)
                found = collect()
                self.fetcher.send_fetches()
            if found:
                return found
            self.background.check()
            left = limit - self.background.loop.time()
            if left <= 0:
                return []
            again = member is not None or self.offsets.needs_search
            await self.background.wait(min(left, RETRY_S) if again else left)

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
        self._stop_iteration()
        in_time, seconds = False, (FOR_EVER_MS if timeout_ms is None else timeout_ms) / 1000
        try:
            async with asyncio.timeout(seconds):
                await self.polls.ended()
                if self.coordinator.member is not None:
                    await self.coordinator.leave()
                elif self.options["group_id"] is not None:
                    await self.commits.before_rebalance()
            in_time = True
        except TimeoutError:
            log.warning(
                "the consumer did not finish its commits, or leave its group, within %g s; closing it nevertheless",
                seconds,
            )
        finally:
            self.fetcher.stop()
            await self.background.cancel()
            if self.coordinator.member is not None:
                await self.coordinator.member.stop()
            try:
                if in_time:  # asyncio also closes coroutines after their loop has ended; then nothing may wait here
                    async with asyncio.timeout(min(seconds, END_SESSIONS_S)):
                        await self.fetcher.end_sessions()
            except TimeoutError:
                pass
            finally:
                await self.cluster.close()
