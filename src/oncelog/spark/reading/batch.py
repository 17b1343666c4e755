"""Batch reads: the ranges of offsets that options and filters select."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.formats.options import TypedOptions
from oncelog.spark.option_tables import SOURCE
from oncelog.spark.options import warn_of_unused
from oncelog.spark.reading.filters import Pushed
from oncelog.spark.reading.offsets import Flat, Range, shown
from oncelog.spark.reading.options import source_options
from oncelog.spark.reading.source import SourceReader
from oncelog.spark.user_errors import translate_errors
from oncelog.spark.versions import FILTERS

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


class BatchSource(SourceReader, DataSourceReader):
    """The reader of batch reads."""

    def __init__(
        self, given: Mapping[str, str], typed: TypedOptions | None = None, wanted: StructType | None = None
    ) -> None:
        super().__init__(source_options(given, streaming=False), typed, wanted)
        warn_of_unused(given, "a batch read", SOURCE)
        self._pushed = Pushed()

    @property
    def pushFilters(self) -> _PushFilters:  # noqa: N802
        """Take filters if spark.sql.python.filterPushdown.enabled is true; see `filters`."""
        return _PushFilters(self._pushed.take)

    @translate_errors
    def partitions(self) -> Sequence[InputPartition]:
        """Return slices for the records between startingOffsets and endingOffsets that the filters select."""
        try:
            wanted = self.wanted()
            begun = self.resolve(self.options.starting, wanted)
            ends = self.resolve(self.options.ending, wanted)
            for at in wanted:
                if begun[at] > ends[at]:
                    raise MisuseError(
                        f"options {self.options.starting.option} and {self.options.ending.option}: the start offset "
                        f"{begun[at]} of {shown([at])} is after its end offset {ends[at]}"
                    )
            return self.slices(self._asked_for(begun, ends))
        finally:
            self.stop()

    def _asked_for(self, begun: Flat, ends: Flat) -> list[Range]:
        pushed = self._pushed
        kept = [at for at in sorted(ends) if pushed.wants(at)]
        first = {at: max(begun[at], pushed.first) for at in kept}
        if pushed.since_ms is not None:
            young = self._shown(dict.fromkeys(kept, max(pushed.since_ms, 0)))
            first = {at: max(first[at], ends[at] if young[at] < 0 else young[at]) for at in kept}
        until = {at: ends[at] if pushed.end is None else min(ends[at], pushed.end) for at in kept}
        return [Range(at, first[at], until[at]) for at in kept if first[at] < until[at]]


class _PushFilters:
    """`pushFilters` of a reader that works without filters, too.

    If filters are not pushed (the default), PySpark rejects a reader whose class has that method. It looks at the
    attribute `__func__`, which is the base class's method here.
    """

    if FILTERS:
        __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Iterable[Filter]], Iterable[Filter]]) -> None:
        self._take = take

    def __call__(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        return self._take(filters)
