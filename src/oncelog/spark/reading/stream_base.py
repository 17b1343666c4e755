"""Streaming reads: the offsets at which micro-batches begin and end. What all versions of PySpark share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from oncelog import errors
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.requests import offsets as offset_calls
from oncelog.protocol.schema import NO_UUID
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.formats.options import TypedOptions
from oncelog.spark.option_tables import SOURCE, STREAM
from oncelog.spark.options import MAX_LONG, warn_of_unused, warn_once
from oncelog.spark.reading.notes import ids_in, noted, shown_id, starts_in
from oncelog.spark.reading.offsets import EARLIEST, Flat, Offsets, Range, flattened, limited, nested, shown
from oncelog.spark.reading.options import source_options
from oncelog.spark.reading.source import SourceReader
from oncelog.spark.reading.task import log, report_loss
from oncelog.spark.user_errors import translate_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")

COMMIT_MS = 5_000
"""How long a batch waits for its offsets to be shown to lag tools."""


class StreamBase(SourceReader, DataSourceStreamReader):
    """The base class of the readers of streaming queries.

    The first call raises errors of the options. If the constructor raised them, PySpark would hide the exception
    below one of its own, because its runner stops a reader that does not exist.
    """

    def __init__(
        self, given: Mapping[str, str], typed: TypedOptions | None = None, wanted: StructType | None = None
    ) -> None:
        self._misuse: SinkError | None = None
        try:
            super().__init__(source_options(given, streaming=True), typed, wanted)
            warn_of_unused(given, STREAM, SOURCE)
        except SinkError as error:
            self._misuse = error
        self._cluster = None
        self._first: Offsets | None = None
        self._unresolved: MisuseError | None = None
        self._target: Flat | None = None
        self._newest: Flat | None = None
        self._ids: dict[str, UUID] = {}
        self._missing: set[str] = set()
        self._triggered = float("-inf")

    def check_options(self) -> None:
        """Raise the error of the constructor: wrong options, or a registry that has not answered."""
        if self._misuse is not None:
            raise self._misuse from None

    @translate_errors
    def initialOffset(self) -> Offsets:  # noqa: N802
        """Return the offsets at which a new query starts, which option startingOffsets or one of its variants names.

        Spark does not store these offsets, but the end of the first batch contains them; see `notes`. Spark also calls
        this method to replay that batch. The options may be invalid by then, so an error is raised only when the
        offsets are needed.
        """
        self.check_options()
        if self._first is None:
            try:
                first = self.attempt(lambda: self.resolve(self.options.starting, self.wanted()))
            except MisuseError as error:
                first, self._unresolved = {}, error
            self._first = noted(first, self._topic_ids())
        return self._first

    def _check_start(self, start: Offsets) -> None:
        """Raise the error of `initialOffset` if a batch needs its offsets."""
        if self._unresolved is not None and start == self._first:
            raise self._unresolved from None

    @property
    def most(self) -> int | None:
        """The largest number of offsets in a batch, or None if no option limits or delays batches.

        This class waits for minOffsetsPerTrigger; Spark does not.
        """
        trigger = self.options.trigger
        return MAX_LONG if trigger.most is None and trigger.least is not None else trigger.most

    def next_end(self, start: Offsets, most: int | None) -> Offsets:
        """Return the offsets at which the next batch ends. `most`: its limit, or None for all offsets at once.

        With failOnDataLoss=false, an end may be before its start: the query goes back, and the batch reads nothing.
        """
        self._check_start(start)
        return self.attempt(lambda: self._next_end(start, most))

    def attempt(self, plan: Callable[[], T]) -> T:
        """Return what `plan` returns. Call it again if a topic was deleted while it ran."""
        try:
            return plan()
        except errors.UnknownTopicError:
            return plan()

    def _next_end(self, start: Offsets, most: int | None) -> Offsets:
        self._ids.update(ids_in(start))
        before = flattened(start)
        wanted = self._present(before)
        begun = {at: before[at] for at in wanted if at in before} | self._new_beginnings(set(wanted) - set(before))
        self._newest = self._current_ends(begun)
        ends = self._newest if self._target is None else self._available_now_ends(self._target, begun, self._newest)
        ends = self._backwards(begun, ends)
        if most is not None:
            if self._must_wait(begun, ends):
                return start
            ends = limited(begun, ends, most)
        first = start == self._first
        ids, known = self._topic_ids(), ids_in(start)
        if ends == before and not first and all(known.get(name, ids[name]) == ids[name] for name in ids):
            return start  # Spark compares offsets as text, and runs a batch if they differ
        return noted(ends, ids, {at: begun[at] for at in ends if first or at not in before})

    def _topic_ids(self) -> dict[str, UUID]:
        return {name: topic.topic_id for name, topic in self._topics.items() if topic.topic_id != NO_UUID}

    def _report_loss(self, what: str, *, then: str = "", instead: str = "") -> None:
        report_loss(what, fail=self.options.fail_on_data_loss, then=then, instead=instead)

    def _available_now_ends(self, target: Flat, begun: Flat, newest: Flat) -> Flat:
        """Return AvailableNow's ends.

        A target before the query's position came from a broker that had just started. Replace it by `newest`.
        """
        target.update((at, newest[at]) for at in begun if target.setdefault(at, begun[at]) < begun[at])
        return {at: target[at] for at in begun}

    def _present(self, before: Flat) -> list[TopicPartition]:
        wanted = self.wanted(self._missing)
        unread = self._missing - {at.topic for at in before}
        if unread and self.options.fail_on_data_loss:
            option = self.options.subscription.option
            raise MisuseError(
                f"option {option}: topic {min(unread)!r} does not exist; create it with "
                f"`oncelog topic create {min(unread)}`"
            )
        self._report_gone(sorted(set(before) - set(wanted)))
        return wanted

    def _report_gone(self, gone: list[TopicPartition]) -> None:
        subscription = self.options.subscription
        left_out = [at for at in gone if not subscription.selects(at)]
        if left_out:
            self._report_loss(
                f"option {subscription.option} no longer selects {shown(left_out)}, which the query has read",
                instead="select them again, or, ",
                then="if the option selects them again later, the query reads them from their beginning",
            )
        deleted = [at for at in gone if subscription.selects(at)]
        if deleted:
            self._report_loss(
                f"partitions that the query has read no longer exist: {shown(deleted)}",
                then="if they are created again, the query reads them from their beginning",
            )

    def _new_beginnings(self, added: set[TopicPartition]) -> Flat:
        """Return the beginnings of partitions that are new to the query."""
        begun = self.beginnings(added) if added else {}
        for at, first in sorted(begun.items()):
            if first:
                self._report_loss(
                    f"{shown([at])} is new to the query, but begins at offset {first}, not at 0, so offsets 0 to "
                    f"{first - 1} are lost"
                )
        return begun

    def _current_ends(self, begun: Flat) -> Flat:
        """Return the ends. Ask again if one is before the query's position: a broker may have just started."""
        patience = self.options.patience
        for _ in range(patience.attempts - 1):
            ends = self.ends(begun)
            if all(ends[at] >= begun[at] for at in begun) or self._created_again():
                return ends
            time.sleep(patience.interval_ms / 1000)
        return self.ends(begun)

    def _created_again(self) -> set[str]:
        """Return the topics whose id is no longer the one that this query has read."""
        return {
            name
            for name, topic in self._topics.items()
            if NO_UUID not in (topic.topic_id, self._ids.get(name, NO_UUID)) and self._ids[name] != topic.topic_id
        }

    def _backwards(self, begun: Flat, ends: Flat) -> Flat:
        """Return the ends, with the beginnings of topics that were created again."""
        again = self._created_again()
        for name in sorted(again):
            old, new = shown_id(self._ids[name]), shown_id(self._topics[name].topic_id)
            self._report_loss(
                f"topic {name!r} was deleted and created again (its id was {old} and is {new}), so the records of the "
                "old topic that the query has not read are lost",
                then="the query reads the new topic from its beginning",
            )
        firsts = self.beginnings([at for at in begun if at.topic in again]) if again else {}
        for at, first in sorted(firsts.items()):
            if first:
                self._report_loss(
                    f"{shown([at])} of the new topic begins at offset {first}, so its offsets 0 to {first - 1} are lost"
                )
        ends = ends | firsts
        self._report_shorter(begun, ends, [at for at in sorted(ends) if ends[at] < begun[at] and at.topic not in again])
        self._ids.update(self._topic_ids())
        return ends

    def _report_shorter(self, begun: Flat, ends: Flat, shorter: list[TopicPartition]) -> None:
        """Report logs that end before the query's position.

        A topic whose id the query does not know may have been created again.
        """
        known = self._topic_ids().keys() & self._ids.keys()
        unknown = [at for at in shorter if at.topic not in known]
        firsts = self.beginnings(unknown) if unknown else {}
        for at in shorter:
            what = f"{shown([at])} ends at offset {ends[at]}, but the query has read up to {begun[at]}: "
            continues = f"the query continues at offset {ends[at]} of {shown([at])}"
            if at not in firsts:
                self._report_loss(
                    f"{what}the log has lost its end, for example in an unclean leader election",
                    then=f"{continues}, and skips new records before it",
                )
                continue
            skipped = f", and skips offsets {firsts[at]} to {ends[at] - 1}" if firsts[at] < ends[at] else ""
            starts = nested({**begun, **dict.fromkeys(unknown, EARLIEST)})
            self._report_loss(
                f"{what}its topic was created again, or the log has lost its end",
                then=f"{continues}{skipped}",
                instead=(
                    "if the topic was created again, start with a new checkpoint, "
                    f"startingOffsets='{json.dumps(starts)}' and, for oncelog's sink, takeOver=true; otherwise, "
                ),
            )

    def _must_wait(self, begun: Flat, ends: Flat) -> bool:
        """Return whether to wait: minOffsetsPerTrigger is not reached, and maxTriggerDelay is not over.

        AvailableNow never waits.
        """
        trigger, now = self.options.trigger, time.monotonic()
        if trigger.least is None or self._target is not None:
            return False
        there = sum(max(ends[at] - begun[at], 0) for at in ends)
        if there < trigger.least and now - self._triggered < trigger.delay_ms / 1000:
            return True
        self._triggered = now
        return False

    @translate_errors
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return a slice for each partition that has records, or more with minPartitions.

        A partition whose start is after its end has none, as in a query that goes back. The replay of a partition's
        first batch starts at the same offset as that batch.
        """
        self.check_options()
        if start == end:  # PySpark 4.0 and 4.1 pass the position of a restarted query in this way
            return []
        before, ends, starts = flattened(start), flattened(end), starts_in(end)
        begun = {at: before[at] for at in ends if at in before} | starts
        if start == self._first and not starts:
            self._warn_of_unknown_start(begun, ends)
        if not self._topics:  # a batch that was planned before a restart
            self.wanted(self._missing)
        begun |= self._new_beginnings(set(ends) - set(begun))
        ranges = [Range(at, begun[at], until) for at, until in sorted(ends.items()) if begun[at] < until]
        return self.slices(ranges, ids_in(end))

    def _warn_of_unknown_start(self, begun: Flat, ends: Flat) -> None:
        """Log a warning if the checkpoint comes from an older oncelog, or from Spark's connector."""
        self._check_start(self._first or {})
        if any(begun[at] < ends[at] for at in begun):
            log.warning(
                "the checkpoint does not contain the start of the query's first batch, because another version or "
                "connector has planned it. Its replay starts at the offsets that option %s selects now: %s",
                self.options.starting.option,
                nested(begun),
            )

    def commit(self, end: Offsets) -> None:
        """Commit the progress to a group for lag tools: options groupIdPrefix or kafka.group.id.

        The query itself uses its checkpoint only, so a failure is logged once for each cause.
        """
        if self.options.group is None:
            return
        group = GroupMetadata(self.options.group)
        offsets = {(at.topic, at.partition): offset for at, offset in flattened(end).items()}
        try:
            self.cluster.run_many([offset_calls.commit(self.cluster.cluster, group, offsets, timeout_ms=COMMIT_MS)])
        except errors.OncelogError as error:
            warn_once(f"cannot commit the query's progress to group {self.options.group!r} for lag tools: {error}")
