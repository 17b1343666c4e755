"""What neither waits nor awaits, and is the same in both consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oncelog import errors
from oncelog.client.calls import FORKED, Calls
from oncelog.client.consumer.reader import Reader
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.records import check_partitions
from oncelog.client.types import TopicPartition


class ConsumerFace:
    """The user's view of a `Reader`. Raises UsageError before the reader exists, and in a forked child process."""

    options: dict[str, Any]
    _started: Reader | None = None

    @property
    def _reader(self) -> Reader:
        if self._started is None:
            raise errors.UsageError("start() the consumer first, or use it as `async with`")
        if self._started.polls.forked:
            raise errors.UsageError(FORKED)
        return self._started

    @property
    def _calls(self) -> Calls:
        return self._reader.cluster.calls

    def _named(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        """Those given, default: all that are assigned. UsageError."""
        return self.assignment() if partitions is None else check_partitions(partitions)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now; with a group, those of the last `poll`."""
        return sorted(self._reader.states)

    def subscription(self) -> list[str]:
        """The topics that are subscribed to; a pattern as the one text that it is."""
        subscription = self._reader.subscription
        return sorted(subscription.topics) if subscription.pattern is None else [subscription.pattern.pattern]

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Get nothing of these partitions (default: of all that are assigned) until `resume`.

        What was fetched of them already is kept for then. A partition that a rebalance takes away is not paused when it
        comes back.
        """
        for tp in self._named(partitions):
            self._reader.state(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Get records of these partitions (default: of all that are assigned) again."""
        for tp in self._named(partitions):
            self._reader.state(tp).paused = False
        self._reader.loop.call_soon_threadsafe(self._reader.notify)

    def paused(self) -> list[TopicPartition]:
        """The assigned partitions that are paused."""
        return sorted(tp for tp, state in self._reader.states.items() if state.paused)

    def wakeup(self) -> None:
        """End the `poll` that is under way, or else the next one, with WakeupError. From any thread."""
        self._reader.loop.call_soon_threadsafe(self._reader.wakeup)

    def positions(self) -> dict[TopicPartition, int]:
        """The offset behind what was consumed, of every assigned partition of which it is known: what `commit()`
        commits.
        """
        return self._reader.commits.consumed()

    def hand_over(self) -> dict[TopicPartition, int]:
        """The same, for `Producer.send_offsets`; UsageError with auto-commit, AbortableError after a rebalance."""
        return self._reader.commits.hand_over()

    def group_metadata(self) -> GroupMetadata:
        """What `Producer.send_offsets` needs to refuse zombies."""
        return self._reader.group_metadata()

    def cached_lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and end as of the last fetch, of those partitions that have been fetched: no
        request is made.
        """
        committed_only = bool(self._reader.isolation)
        lags = {tp: state.lag(committed_only=committed_only) for tp, state in self._reader.states.items()}
        return {tp: lag for tp, lag in lags.items() if lag is not None}
