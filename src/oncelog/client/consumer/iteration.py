"""Going through polled records one by one, with the position behind the record at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oncelog.client.consumer.fetcher import ConsumerRecord

if TYPE_CHECKING:
    from oncelog.client.consumer.reader import Reader


class Iteration:
    """A poll's records; `reached` as each is handed out, `stop` at the end or where the user leaves the loop.

    The reader stops it itself before it takes more: where a loop over an asynchronous generator is left, that is
    closed some time later, and `poll` may be called inside the loop as well.
    """

    def __init__(self, reader: Reader, records: Sequence[ConsumerRecord]) -> None:
        self._reader = reader
        self._after: dict[tuple[str, int], int | None] = {}
        self._last: dict[tuple[str, int], int] = {}
        for record in records:
            self._last[record.topic, record.partition] = record.offset
        for record in reversed(records):
            tp = (record.topic, record.partition)
            state = reader.states.get(tp)
            if state is not None:
                self._after.setdefault(tp, state.consumed)
                state.consumed = record.offset
        self._stopped = False
        reader.iteration = self

    def reached(self, record: ConsumerRecord) -> bool:
        """The user has this record now; False if it comes again from `poll`, as this was stopped."""
        if self._stopped:
            return False
        tp = (record.topic, record.partition)
        state = self._reader.states.get(tp)
        if state is None or tp not in self._after:
            return True
        last = record.offset == self._last[tp]
        state.consumed = self._after.pop(tp) if last else record.offset + 1
        return True

    def stop(self) -> None:
        """What was not reached is read again: go back to behind the last record that was."""
        self._stopped = True
        if self._reader.iteration is self:
            self._reader.iteration = None
        for tp in self._after:
            state = self._reader.states.get(tp)
            if state is not None and state.consumed is not None:
                state.go_back(state.consumed)
        self._after.clear()
