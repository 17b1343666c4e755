"""Streaming reads on PySpark 4.0 and 4.1, which pass neither the query's position nor a limit to Python sources."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.reading.offsets import Offsets, flattened
from oncelog.spark.reading.stream_base import StreamBase
from oncelog.spark.reading.task import log
from oncelog.spark.user_errors import translate_errors


class OlderStreamSource(StreamBase):
    """The reader of streaming queries. It follows the query's position through Spark's calls.

    A new query calls `latestOffset`, `initialOffset` and `partitions(first, end)`. A restarted query calls
    `partitions(end, end)` with the last end in its checkpoint, then `partitions(start, end)` if that batch is not
    committed, then `latestOffset`. If no batch is committed, that start is a new `initialOffset`. Spark runs a batch up
    to each end that `latestOffset` returns, if it is a new one.
    """

    _start: Offsets | None = None
    _position: Offsets | None = None
    _calls = 0

    @translate_errors
    def latestOffset(self) -> Offsets:  # type: ignore[override]  # noqa: N802
        """Return the offsets at which the next batch ends."""
        self._start = self.initialOffset() if self._position is None else self._position
        self._position = self.next_end(self._start, self.most)
        self._calls += 1
        return self._position

    @translate_errors
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return a slice for each partition that has records, and continue at `end`.

        Raises MisuseError for a batch that goes back, unless failOnDataLoss=false allows it, or it is the replay of the
        first batch. If Spark wraps the source for Trigger.AvailableNow, it calls `latestOffset` before it passes the
        position.
        """
        self.check_options()
        before = flattened(start)
        back = any(until < before.get(at, until) for at, until in flattened(end).items())
        if back and start != self._first and (self.options.fail_on_data_loss or self._start not in (None, start)):
            raise MisuseError(
                f"option checkpointLocation: a batch starts at {start}, but ends at {end}, which is before its start. "
                "Set spark.sql.streaming.triggerAvailableNowWrapper.enabled=false, delete the newest file of the "
                "checkpoint's folder offsets, and start the query again"
            )
        self._position = end
        return super().partitions(start, end)

    def stop(self) -> None:
        """Close the connection. Log a warning if one batch has left records unread, as in Trigger.AvailableNow."""
        super().stop()
        unread = 0
        if self._calls == 1 and self._newest is not None and self._position is not None:
            ends = flattened(self._position)
            unread = sum(max(newest - ends.get(at, newest), 0) for at, newest in self._newest.items())
        if unread:
            log.warning(
                "the query has ended after one batch, and %d offsets are unread. On PySpark 4.0 and 4.1, "
                "Trigger.AvailableNow runs one batch of maxOffsetsPerTrigger. To read the rest, start the query again",
                unread,
            )
