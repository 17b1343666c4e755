"""What a consumer reads and how far it has read it, without any I/O (Kafka's SubscriptionState)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

from oncelog import errors
from oncelog.client.consumer.completed_fetch import CompletedFetch
from oncelog.client.consumer.fetch_session import FetchTarget
from oncelog.client.group_offsets import OffsetAndMetadata
from oncelog.protocol.topics import TopicPartition


class PartitionState:
    """How far a consumer has read one partition.

    `position`: the next offset to fetch, None until it is known. `consumed`: the offset after the last record that the
    user received. `settled`: the value of `consumed` when it was last committed, or added to a transaction. `epoch`
    and `consumed_epoch`: the leader epoch of the record before each, -1 if unknown. `validated_epoch`: the epoch of
    the newest leader whose log is known to contain `position` (KIP-320).
    """

    __slots__ = (
        "buffered",
        "consumed",
        "consumed_epoch",
        "epoch",
        "high_watermark",
        "invalid",
        "last_stable_offset",
        "paused",
        "position",
        "preferred",
        "refusals",
        "refused",
        "reset",
        "seeks",
        "settled",
        "topic_id",
        "validated_epoch",
        "validating",
    )

    def __init__(self) -> None:
        self.position: int | None = None
        self.consumed: int | None = None
        self.settled: int | None = None
        self.epoch = self.consumed_epoch = self.validated_epoch = -1
        self.validating = False
        self.preferred: tuple[int, float] | None = None
        """The follower that the leader has named, and until when (time of the loop) it is used (KIP-392)."""
        self.buffered: deque[CompletedFetch] = deque()
        self.paused = False
        self.reset: int | None = None
        """The timestamp for ListOffsets (-2 first, -1 end, else ms); None: the committed offset is the position."""
        self.topic_id: UUID | None = None
        """The id of the topic that `position` is an offset of; None until the first Fetch."""
        self.invalid: tuple[int, str] | None = None
        """The position that auto.offset.reset replaces, and why, until the new one is known and logged."""
        self.seeks = 0
        """How often the user, or a truncated log, has moved the position. A loop then drops its older records."""
        self.high_watermark = self.last_stable_offset = -1
        self.refusals = 0
        """How many times in a row a broker has answered a fetch with an error."""
        self.refused: tuple[int, FetchTarget, float] | None = None
        """Which node rejected which fetch, and until when (time of the loop) it is not repeated."""

    def seek(self, offset: int) -> None:
        """Continue at an offset, and drop fetched records. Raises UsageError if it is negative.

        An `OffsetAndMetadata` has the leader epoch of the record before it.
        """
        if offset < 0:
            raise errors.UsageError(f"cannot seek to offset {offset}; to seek to the end, use seek_to_end()")
        self.position = self.consumed = self.settled = int(offset)
        self.epoch = self.consumed_epoch = OffsetAndMetadata.of(offset).leader_epoch
        self.validated_epoch = -1
        self.reset = self.topic_id = self.invalid = None
        self.buffered.clear()

    def go_back(self, offset: int) -> None:
        """Fetch again from an offset that the user has not passed. `settled` stays as it is."""
        self.position = self.consumed = offset
        self.epoch = self.consumed_epoch = self.validated_epoch = -1
        self.buffered.clear()

    def seek_to_time(self, timestamp: int) -> None:
        """Continue at the offset that ListOffsets returns for a timestamp."""
        self.position = self.consumed = self.settled = None
        self.epoch = self.consumed_epoch = self.validated_epoch = -1
        self.reset, self.topic_id, self.invalid = timestamp, None, None
        self.buffered.clear()

    def replace_position(self, timestamp: int, why: str) -> None:
        """Continue at the offset for a timestamp, because the position is not in the log."""
        position = self.position
        self.seek_to_time(timestamp)
        self.invalid = None if position is None else (position, why)

    def seek_to_committed(self) -> None:
        """Continue at the group's committed offset. If there is none, apply auto.offset.reset."""
        self.seek_to_time(0)
        self.reset = None

    def lag(self, *, committed_only: bool) -> int | None:
        """Return the number of offsets between `consumed` and the end in the last response; None if unknown."""
        end = self.last_stable_offset if committed_only else self.high_watermark
        return None if end < 0 or self.consumed is None else max(0, end - self.consumed)


class SubscriptionState:
    """The topics or partitions that a consumer reads, its positions, and the records that wait for `poll`.

    A consumer either subscribes to topics, and its group assigns the partitions, or its user assigns them.
    """

    def __init__(self) -> None:
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.partitions: dict[TopicPartition, PartitionState] = {}
        """The assignment. A partition that was revoked and assigned again has another state."""
        self._ever_assigned = False
        self.assignment_listeners: list[Callable[[], None]] = []
        """Called after each change of the assignment."""
        self._ready: dict[TopicPartition, None] = {}
        """Partitions with fetched records, in the order of their turns."""

    # -- subscription and assignment ------------------------------------------------------------------------------

    @property
    def subscribed(self) -> bool:
        """Whether a group assigns the partitions."""
        return bool(self.topics) or self.pattern is not None

    def subscribe(self, topics: frozenset[str], pattern: re.Pattern[str] | None) -> None:
        """Let the group assign partitions of these topics. Raises UsageError if the user has assigned partitions."""
        if self.partitions and not self.subscribed:
            raise errors.UsageError(
                "cannot subscribe, because assign() has assigned partitions; call unsubscribe() first"
            )
        self.topics, self.pattern = topics, pattern

    def unsubscribe(self) -> None:
        """End the subscription and the assignment."""
        self.topics, self.pattern = frozenset(), None
        self.assign(())

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Raises UsageError if the consumer is subscribed."""
        if self.subscribed:
            raise errors.UsageError(
                "cannot assign partitions, because the consumer is subscribed; call unsubscribe() first"
            )
        self.assign(partitions)

    def assign(self, partitions: Iterable[TopicPartition], *, keep: bool = True) -> None:
        """Read exactly these partitions. `keep`: partitions that were assigned before keep their state."""
        self._ever_assigned = True
        old = self.partitions if keep else {}
        self.partitions = {tp: old.get(tp) or PartitionState() for tp in partitions}
        self._ready = {tp: None for tp in self._ready if tp in self.partitions and self.partitions[tp].buffered}
        for listener in self.assignment_listeners:
            listener()

    def assigned_state(self, tp: TopicPartition) -> PartitionState:
        """Return the state of an assigned partition. Raises UsageError."""
        found = self.partitions.get(tp)
        if found is None:
            raise errors.UsageError(
                f"{tp[0]}-{tp[1]} is not assigned to this consumer; assignment() lists its partitions"
            )
        return found

    def require_assignment(self) -> None:
        """Raise UsageError if no partition has been assigned yet. A later assignment may be empty."""
        if not self._ever_assigned:
            raise errors.UsageError(
                "no partition is assigned yet: poll() assigns those of a subscription; seek in the listener "
                "on_assigned, or call assign() first"
            )

    def is_current(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Return whether the partition has been assigned all the time since this state was read."""
        return self.partitions.get(tp) is state

    # -- positions ------------------------------------------------------------------------------------------------

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Read an assigned partition from an offset. Raises UsageError."""
        state = self.assigned_state(tp)
        state.seek(offset)
        state.seeks += 1

    def seek_to_time(self, tp: TopicPartition, timestamp: int) -> None:
        """Read an assigned partition from the offset that ListOffsets returns. Raises UsageError."""
        state = self.assigned_state(tp)
        state.seek_to_time(timestamp)
        state.seeks += 1

    def seek_to_committed(self) -> None:
        """Read all assigned partitions from the group's committed offsets."""
        for state in self.partitions.values():
            state.seek_to_committed()
            state.seeks += 1

    def consumed(self) -> dict[TopicPartition, int]:
        """Return, by partition, the offset after the last record that the user received, if known."""
        return {
            tp: OffsetAndMetadata(state.consumed, state.consumed_epoch)
            for tp, state in self.partitions.items()
            if state.consumed is not None
        }

    @property
    def lacks_positions(self) -> bool:
        """Whether the position of an assigned partition is unknown."""
        return any(state.position is None for state in self.partitions.values())

    # -- fetched records ------------------------------------------------------------------------------------------

    @property
    def ready(self) -> list[TopicPartition]:
        """The partitions with fetched records, in the order of their turns."""
        return list(self._ready)

    def add_fetch(self, fetch: CompletedFetch) -> None:
        """Keep fetched records for `poll`, and move the partition's fetch position past them."""
        state = self.partitions[fetch.tp]
        state.position, state.epoch = fetch.end, fetch.last_epoch
        state.buffered.append(fetch)
        self._ready[fetch.tp] = None

    def give_back(self, fetches: Iterable[CompletedFetch]) -> None:
        """Keep fetches for the next poll: their records did not reach the user. `fetches` begins with the last one."""
        for fetch in fetches:
            state = self.partitions.get(fetch.tp)
            if state is not None:
                state.buffered.appendleft(fetch)
                self._ready[fetch.tp] = None

    def take_turns(self, take: Callable[[TopicPartition, PartitionState], bool]) -> None:
        """Call `take` for each partition with fetched records that is not paused, until `take` returns True.

        The next call begins with the partitions that had no turn.
        """
        for tp in self.ready:
            state = self.partitions.get(tp)
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
