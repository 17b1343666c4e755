"""The methods of both consumers, blocking and asynchronous, that do not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from oncelog import errors
from oncelog.client.calls import FORKED, Calls
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.metrics.results import ConsumerMetrics
from oncelog.client.notebooks import client_html
from oncelog.client.other_names import CONSUMER, OtherNames
from oncelog.client.records import check_partitions
from oncelog.client.serialization.functions import require_formats
from oncelog.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from oncelog.client.consumer.completed_fetch import CompletedFetch
    from oncelog.columns.values import Format


class ConsumerBase(OtherNames):
    """Hold a consumer's core. Its methods raise UsageError before `start`, and in a forked child process."""

    _other_names = CONSUMER
    options: dict[str, Any]
    _started: ConsumerCore | None = None

    @property
    def _core(self) -> ConsumerCore:
        if self._started is None:
            raise errors.UsageError("the consumer is not started; await start() first, or use `async with`")
        if self._started.polls.forked:
            raise errors.UsageError(FORKED)
        return self._started

    @property
    def _calls(self) -> Calls:
        return self._core.cluster.calls

    def _named(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        """Return the given partitions, default: all assigned ones. Raises UsageError."""
        return self.assignment() if partitions is None else check_partitions(partitions)

    def _table_decoder(
        self, headers: bool, key: Format | None, value: Format | None
    ) -> Callable[[list[CompletedFetch]], pa.Table]:
        """Check the arguments of `tables`. Return the function that converts fetches to a table."""
        from oncelog.client.consumer.tables import decode

        core, check = self._core, self.options["check_crcs"]
        core.polls.check()
        require_formats(self.options, "tables", key, value)
        count = core.fetches.consumed
        return partial(
            decode, core.subscription, check_crcs=check, include_headers=headers, key=key, value=value, count=count
        )

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned (topic, partition) pairs. After `subscribe`, they are those of the last `poll`."""
        return sorted(self._core.subscription.partitions)

    def subscription(self) -> list[str]:
        """Return the subscribed topics. After a subscription to a pattern, return a list of the pattern."""
        subscription = self._core.subscription
        return sorted(subscription.topics) if subscription.pattern is None else [subscription.pattern.pattern]

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Stop returning records of these (topic, partition) pairs until `resume`. Default: all assigned ones.

        Records that are already fetched are kept. If a partition is revoked and assigned again, it is not paused.
        Raises UsageError if a partition is not assigned.
        """
        for tp in self._named(partitions):
            self._core.subscription.assigned_state(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Return records of these (topic, partition) pairs again. Default: all assigned ones."""
        for tp in self._named(partitions):
            self._core.subscription.assigned_state(tp).paused = False
        background = self._core.background
        background.loop.call_soon_threadsafe(background.notify)

    def paused(self) -> list[TopicPartition]:
        """Return the (topic, partition) pairs that are paused."""
        return sorted(tp for tp, state in self._core.subscription.partitions.items() if state.paused)

    def wakeup(self) -> None:
        """Make the `poll` in progress raise WakeupError, or the next one. Any thread may call this."""
        background = self._core.background
        background.loop.call_soon_threadsafe(background.wakeup)

    def positions(self) -> dict[TopicPartition, int]:
        """Return (topic, partition) -> position of all assigned partitions. `commit()` commits these offsets.

        Sends no request. A partition whose position is not known yet, or whose topic was deleted, is omitted.
        """
        return self._core.commits.consumed()

    def offsets_for_transaction(self) -> dict[TopicPartition, int]:
        """Return `positions()` for `Producer.send_offsets`, which calls this method.

        Raises UsageError with enable_auto_commit. Raises AbortableError if a rebalance has revoked partitions whose
        records were returned, because the transaction may contain their results.
        """
        return self._core.commits.offsets_for_transaction()

    def group_metadata(self) -> GroupMetadata:
        """Return the group, generation and member id. `Producer.send_offsets` commits with them.

        With them, the coordinator rejects the commit of a consumer that has left the group. Raises UsageError without
        group_id.
        """
        return self._core.group_metadata()

    def cached_lag(self) -> dict[TopicPartition, int]:
        """Return (topic, partition) -> lag, from the ends in the last Fetch responses. Sends no request.

        A partition that has not been fetched yet is omitted. `lag` requests the current ends instead.
        """
        return self._core.lags()

    def metrics(self) -> ConsumerMetrics:
        """Return what this consumer counts: records, lag, requests, latencies, rebalances, commits.

        Sends no request. Any thread may call this, also after `close`.
        """
        return self._core.metrics()

    def _repr_html_(self) -> str:
        return client_html(self)
