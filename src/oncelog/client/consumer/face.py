"""What neither waits nor awaits, and is the same in both consumers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncelog.client import offsets as offset_calls
from oncelog.client.committed import OffsetAndMetadata
from oncelog.client.consumer.reader import Reader
from oncelog.client.group_metadata import GroupMetadata
from oncelog.client.offsets import Listed
from oncelog.client.topology import Partition
from oncelog.client.types import TopicPartition


class ConsumerFace:
    """Of one reader."""

    options: dict[str, Any]

    @property
    def _reader(self) -> Reader:
        """The reader, once there is one."""
        raise NotImplementedError

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
        for tp in self.assignment() if partitions is None else partitions:
            self._reader.state(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Get records of these partitions (default: of all that are assigned) again."""
        for tp in self.assignment() if partitions is None else partitions:
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


class Queries:
    """What both ask of the brokers beside their reading. Coroutines."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def offsets(self, wanted: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> dict[
        TopicPartition, Listed
    ]:
        """Offset by partition for a timestamp each, as this consumer's isolation level sees it."""
        reader = self._reader
        return await offset_calls.list_offsets(
            reader.cluster, wanted, isolation_level=reader.isolation, timeout_ms=timeout_ms
        )

    async def ends(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset or the end of each."""
        found = await self.offsets(dict.fromkeys(partitions, timestamp), timeout_ms)
        return {tp: item.offset for tp, item in found.items()}

    async def for_times(
        self, times: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, Listed | None]:
        """The first record at or after a time; None where there is none."""
        found = await self.offsets(times, timeout_ms)
        return {tp: item if item.offset >= 0 else None for tp, item in found.items()}

    async def lag(self, timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """Offsets between position and end of every assigned partition."""
        reader = self._reader
        ends = await self.ends(list(reader.states), offset_calls.LATEST, timeout_ms)
        return {tp: max(0, end - await reader.positions.position(tp, timeout_ms)) for tp, end in ends.items()}

    async def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets."""
        group = self._reader.group_metadata().group_id
        return await offset_calls.fetch_committed(self._reader.cluster, group, partitions, timeout_ms=timeout_ms)

    async def topics(self) -> dict[str, int]:
        """Number of partitions by name of all topics but internal ones."""
        found = await self._reader.cluster.topics()
        return {name: len(found[name].partitions) for name in sorted(found)}

    async def partitions_for(self, topic: str, timeout_ms: float | None = None) -> dict[int, Partition]:
        """Partitions of a topic by number; UnknownTopicError."""
        create = self._reader.options["allow_auto_create_topics"]
        return (await self._reader.cluster.topic(topic, create=create, timeout_ms=timeout_ms)).partitions
