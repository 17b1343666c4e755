"""Streaming reads on PySpark 4.2 and later, which has read limits and Trigger.AvailableNow for Python sources."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from oncelog.spark.reading.notes import noted
from oncelog.spark.reading.offsets import Offsets
from oncelog.spark.reading.stream_base import StreamBase
from oncelog.spark.user_errors import translate_errors


class StreamSource(StreamBase, SupportsTriggerAvailableNow):
    """The reader of streaming queries."""

    @translate_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of options maxOffsetsPerTrigger and minOffsetsPerTrigger."""
        self.check_options()
        return ReadAllAvailable() if self.most is None else ReadMaxRows(self.most)

    @translate_errors
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return the offsets at which the next batch ends."""
        self.check_options()
        return self.next_end(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """Return what `latestOffset` has seen, for the query's progress."""
        return None if self._newest is None else noted(self._newest, self._topic_ids())

    @translate_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the current ends, and no further."""
        self.check_options()
        self._target = self.attempt(lambda: self.ends(self.wanted(self._missing)))
