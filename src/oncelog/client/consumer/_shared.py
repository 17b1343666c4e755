"""The methods of both consumers, blocking and asynchronous, that do not wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oncelog import errors
from oncelog.client.calls import FORKED, Calls
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.consumer.options import READ_COMMITTED, isolation_level
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.records import check_partitions
from oncelog.client.types import TopicPartition


class ConsumerBase:
    """Hold a consumer's core. Its methods raise UsageError before `start`, and in a forked child process."""

    options: dict[str, Any]
    _started: ConsumerCore | None = None

    @property
    def _core(self) -> ConsumerCore:
        if self._started is None:
            raise errors.UsageError("start() the consumer first, or use it as `async with`")
        if self._started.polls.forked:
            raise errors.UsageError(FORKED)
        return self._started

    @property
    def _calls(self) -> Calls:
        return self._core.cluster.calls

    def _named(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        """Return the given partitions, default: all that are assigned. Raises UsageError."""
        return self.assignment() if partitions is None else check_partitions(partitions)

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions; with a group, as of the last `poll`."""
        return sorted(self._core.subscription.partitions)

    def subscription(self) -> list[str]:
        """Return the subscribed topics, or the pattern as the only element."""
        subscription = self._core.subscription
        return sorted(subscription.topics) if subscription.pattern is None else [subscription.pattern.pattern]

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Return no records of these partitions, default: of all that are assigned, until `resume`.

        Fetched records are kept. A partition that is revoked and assigned again is not paused any more.
        """
        for tp in self._named(partitions):
            self._core.subscription.assigned_state(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Return records of these partitions again, default: of all that are assigned."""
        for tp in self._named(partitions):
            self._core.subscription.assigned_state(tp).paused = False
        background = self._core.background
        background.loop.call_soon_threadsafe(background.notify)

    def paused(self) -> list[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return sorted(tp for tp, state in self._core.subscription.partitions.items() if state.paused)

    def wakeup(self) -> None:
        """End the current `poll`, or else the next one, with WakeupError. Any thread may call this."""
        background = self._core.background
        background.loop.call_soon_threadsafe(background.wakeup)

    def positions(self) -> dict[TopicPartition, int]:
        """Return, by assigned partition, the offset after the last consumed record: what `commit()` commits."""
        return self._core.subscription.consumed()

    def offsets_for_transaction(self) -> dict[TopicPartition, int]:
        """Return `positions()` for `Producer.send_offsets`, which calls this.

        UsageError with auto-commit. AbortableError if a rebalance has revoked partitions whose records may have results
        in the transaction.
        """
        return self._core.commits.offsets_for_transaction()

    def group_metadata(self) -> GroupMetadata:
        """Return the identity with which `Producer.send_offsets` commits, so that a zombie is rejected."""
        return self._core.group_metadata()

    def cached_lag(self) -> dict[TopicPartition, int]:
        """Return, by partition that has been fetched, the offsets between position and end. Sends no request."""
        committed_only = isolation_level(self.options) == READ_COMMITTED
        partitions = self._core.subscription.partitions
        lags = {tp: state.lag(committed_only=committed_only) for tp, state in partitions.items()}
        return {tp: lag for tp, lag in lags.items() if lag is not None}
