"""How fetched records reach the user, without any I/O (Kafka's FetchCollector)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from oncelog import errors
from oncelog.client.consumer.completed_fetch import CompletedFetch, unreadable_batch
from oncelog.client.consumer.subscription_state import PartitionState, SubscriptionState
from oncelog.client.types import ConsumerRecord
from oncelog.protocol.errors import ProtocolError
from oncelog.protocol.topics import TopicPartition


def collect_records(subscription: SubscriptionState, limit: int) -> list[ConsumerRecord]:
    """Return up to `limit` fetched records, and move the partitions' `consumed` offsets past them.

    Raise KafkaError if the first batch is unreadable. An unreadable batch that other records precede is raised by the
    next call.
    """
    found: list[ConsumerRecord] = []

    def take(tp: TopicPartition, state: PartitionState) -> bool:
        try:
            found.extend(_take(tp, state, limit - len(found)))
        except errors.KafkaError:
            if not found:
                raise
            return True
        return len(found) >= limit

    subscription.take_turns(take)
    return found


def collect_fetches(subscription: SubscriptionState) -> list[CompletedFetch]:
    """Return all fetched records, undecoded. The caller has to move the `consumed` offsets."""
    found: list[CompletedFetch] = []

    def take(tp: TopicPartition, state: PartitionState) -> bool:
        found.extend(state.buffered)
        state.buffered.clear()
        return False

    subscription.take_turns(take)
    return found


def _take(tp: TopicPartition, state: PartitionState, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    while state.buffered and len(found) < count:
        fetch = state.buffered[0]
        try:
            found += fetch.take(count - len(found))
        except ProtocolError as error:
            if found:
                break
            raise unreadable_batch(tp, fetch.position, error) from error
        state.consumed, state.consumed_epoch = fetch.position, fetch.epoch
        if len(found) < count and not fetch.damaged:
            state.buffered.popleft()
    return found


class Iteration:
    """A loop over the records of one poll, in which `consumed` follows the current record.

    `stop` lets the next poll return the records that the loop has not reached. The consumer calls it before that poll:
    an asynchronous generator is closed some time after its loop ends, and `poll` may be called inside the loop. After a
    seek, pause or unassignment inside the loop, it yields no more records of that partition.

    `count` is called with the topic of each record that the loop reaches, and 1.
    """

    def __init__(
        self,
        subscription: SubscriptionState,
        records: Sequence[ConsumerRecord],
        count: Callable[[str, int], None] | None = None,
    ) -> None:
        self._subscription = subscription
        self._records = records
        self._count = count
        self._after: dict[TopicPartition, int | None] = {}
        """By partition, the offset after all its records here, until the loop has reached the last of them."""
        self._last: dict[TopicPartition, int] = {}
        self._states: dict[TopicPartition, tuple[PartitionState, int]] = {}
        """By partition, its state, and the number of seeks before the loop."""
        self._paused: set[TopicPartition] = set()
        for record in records:
            self._last[record.topic, record.partition] = record.offset
        for record in reversed(records):
            tp = (record.topic, record.partition)
            state = subscription.partitions.get(tp)
            if state is not None:
                self._states[tp] = state, state.seeks
                self._after.setdefault(tp, state.consumed)
                state.consumed = record.offset

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield each record with `consumed` after it, until `stop`."""
        for record in self._records:
            if self.reached(record):
                yield record

    def _state(self, tp: TopicPartition) -> PartitionState | None:
        """Return the state of a partition if the loop may still yield records of it, otherwise None."""
        if tp not in self._after:
            return None
        state, seeks = self._states[tp]
        return state if self._subscription.is_current(tp, state) and state.seeks == seeks else None

    def reached(self, record: ConsumerRecord) -> bool:
        """Move `consumed` past a record. Return whether the user gets the record."""
        tp = (record.topic, record.partition)
        state = self._state(tp)
        if state is None:
            return False
        if state.paused:
            self._paused.add(tp)
        if tp in self._paused:
            return False  # also after `resume`, because earlier records would be missing
        last = record.offset == self._last[tp]
        state.consumed = self._after.pop(tp) if last else record.offset + 1
        if self._count is not None:
            self._count(record.topic, 1)
        return True

    def keep(self, converted: Sequence[ConsumerRecord], error: errors.OncelogError | None) -> list[ConsumerRecord]:
        """Return the first records of the loop in their converted form, and move `consumed` past them.

        Raise `error`, the reason why other records are not converted, if there is no record before it.
        """
        pairs = zip(self._records, converted, strict=False)
        found = [new for old, new in pairs if self.reached(old)]
        if error is not None and not converted:
            raise error
        return found

    def stop(self) -> None:
        """Let the next poll fetch again the records that the loop has not reached."""
        for tp in self._after:
            state = self._state(tp)
            if state is not None and state.consumed is not None:
                state.go_back(state.consumed)
        self._after.clear()
        self._records = ()
