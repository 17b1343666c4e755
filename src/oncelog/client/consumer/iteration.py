"""Going through polled records one by one, with the position behind the record at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from oncelog.client.consumer.fetcher import ConsumerRecord, PartitionState
from oncelog.client.types import TopicPartition

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader


class Iteration:
    """A poll's records, to be gone through; `stop` at the end or where the user leaves the loop.

    The reader stops it itself before it takes more: where a loop over an asynchronous generator is left, that is
    closed some time later, and `poll` may be called inside the loop as well. What the user seeks, pauses or gives up
    inside the loop holds at once: of such a partition nothing more is given.
    """

    def __init__(self, reader: Reader, records: Sequence[ConsumerRecord]) -> None:
        self._reader = reader
        self._records = records
        self._after: dict[TopicPartition, int | None] = {}
        """Where each partition stands behind all of its records; those of which more is to come."""
        self._last: dict[TopicPartition, int] = {}
        self._states: dict[TopicPartition, PartitionState] = {}
        self._paused: set[TopicPartition] = set()
        for record in records:
            self._last[record.topic, record.partition] = record.offset
        for record in reversed(records):
            tp = (record.topic, record.partition)
            state = reader.states.get(tp)
            if state is not None:
                self._states[tp] = state
                self._after.setdefault(tp, state.consumed)
                state.consumed = record.offset
        self._stopped = False
        reader.iteration = self

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Each record that the user is to have, the position behind it; no more once this was stopped."""
        for record in self._records:
            if self._stopped:
                return
            if self._reached(record):
                yield record

    def _reached(self, record: ConsumerRecord) -> bool:
        tp = (record.topic, record.partition)
        state = self._states.get(tp)
        if state is None or tp not in self._after or self._reader.states.get(tp) is not state:
            return False
        if state.paused:
            self._paused.add(tp)
        if tp in self._paused:
            return False  # nor after `resume`, for those before it would be missing: `stop` gives them all back
        last = record.offset == self._last[tp]
        state.consumed = self._after.pop(tp) if last else record.offset + 1
        return True

    def sought(self, tp: TopicPartition) -> None:
        """The partition stands elsewhere now: what it still has here is not wanted."""
        self._after.pop(tp, None)

    def stop(self) -> None:
        """What was not reached is read again: go back to behind the last record that was."""
        self._stopped = True
        if self._reader.iteration is self:
            self._reader.iteration = None
        for tp in self._after:
            state = self._states[tp]
            if state.consumed is not None and self._reader.states.get(tp) is state:
                state.go_back(state.consumed)
        self._after.clear()
