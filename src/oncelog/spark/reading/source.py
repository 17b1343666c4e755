"""The source on the driver: where micro-batches and batch reads begin and end. `reading` is what its tasks do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.discovery.topology import Topic
from oncelog.client.group_offsets import GroupMetadata
from oncelog.client.requests import offsets as offset_calls
from oncelog.protocol.schema import NO_UUID
from oncelog.spark.cluster import partitions
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.options import MAX_LONG, SOURCE, STREAM, reach, warn_of_idle
from oncelog.spark.reading.filters import Pushed
from oncelog.spark.reading.offsets import (
    EARLIEST,
    LATEST,
    Flat,
    Offsets,
    Position,
    Range,
    SourceOptions,
    check_options,
    flattened,
    limited,
    nested,
    shown,
    source_options,
    split,
)
from oncelog.spark.reading.task import DataLossError, Reading, log, lose
from oncelog.spark.user_errors import translate_batches, translate_errors

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchSource", "DataLossError", "StreamSource", "check_source"]

T = TypeVar("T")

COMMIT_MS = 5_000
"""How long a batch waits for its offsets to be shown to lag tools."""


@dataclass
class Slice(InputPartition):
    """One task's part of a batch."""

    range: Range
    topic_id: UUID

    def __init__(self, wanted: Range, topic_id: UUID = NO_UUID) -> None:
        self.range, self.topic_id = wanted, topic_id


def check_source(given: Mapping[str, str]) -> SourceOptions:
    """What can be told while a read is made (`load()`): options that are wrong, brokers and topics that are not there.

    A stream's errors would come later, from another thread, and Spark shows them beneath its own. Topics may be gone
    with failOnDataLoss=false: a stream that has read them goes on.
    """
    options = check_options(given)
    source = Source(options)
    try:
        if options.subscription.names and options.fail_on_data_loss:
            source.wanted()
        else:
            source.cluster.brokers()
    finally:
        source.stop()
    return options


class Source:
    """What both readers share. The connection stays with the process that made it."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._cluster: BlockingCluster | None = None
        self._topics: dict[str, Topic] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None, "_topics": {}}

    @property
    def cluster(self) -> BlockingCluster:
        """Connected when first used."""
        if self._cluster is None:
            cluster = BlockingCluster(**self.options.client)
            try:
                reach(cluster, self.options.client["bootstrap_servers"], self.options.patience.bootstrap_ms)
            except SinkError:
                cluster.close()
                raise
            self._cluster = cluster
        return self._cluster

    def stop(self) -> None:
        """Hang up: the query has ended, or a batch read is planned."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # Where things are

    def wanted(self, missing: set[str] | None = None) -> list[TopicPartition]:
        """The partitions subscribed to, as they are now; names of topics that are not there go to `missing`.

        MisuseError for those if there is no such set; topics that are in it already are not waited for.
        """
        subscription = self.options.subscription
        if subscription.pattern:
            pattern = re.compile(subscription.pattern)
            self._topics = {name: topic for name, topic in self.cluster.topics().items() if pattern.fullmatch(name)}
        else:
            self.cluster.refresh(subscription.names, patient=True)
            found = [self._topic(name, missing) for name in subscription.names]
            self._topics = {topic.name: topic for topic in found if topic is not None}
        there = [TopicPartition(name, number) for name, topic in self._topics.items() for number in topic.partitions]
        if subscription.assigned:
            return self._assigned(set(there), missing)
        return sorted(there)

    def _assigned(self, there: set[TopicPartition], missing: set[str] | None) -> list[TopicPartition]:
        assigned = self.options.subscription.assigned
        absent = [at for at in assigned if at not in there]
        if absent and missing is None:
            count = len(self._topics[absent[0].topic].partitions)
            raise MisuseError(f"option assign: there is no {shown(absent)}; {absent[0].topic} has {count} partitions")
        return [at for at in assigned if at in there]

    def _topic(self, name: str, missing: set[str] | None) -> Topic | None:
        known = self.cluster.topology.topics.get(name)
        if known is not None:
            if missing is not None:
                missing.discard(name)
            return known
        if missing is not None and name in missing:
            return None
        try:
            return self.cluster.topic(name)
        except errors.UnknownTopicError:
            if missing is None:
                option = self.options.subscription.option
                raise MisuseError(f"option {option}: there is no topic {name!r}; create it first") from None
            missing.add(name)
            return None

    def ends(self, wanted: Iterable[TopicPartition]) -> Flat:
        """Last stable offsets (read_uncommitted: high watermarks)."""
        return self._shown(dict.fromkeys(wanted, LATEST))

    def _shown(self, wanted: Flat) -> Flat:
        """Offsets for times, as far as the isolation level shows: behind an open transaction there are none yet."""
        isolation = partitions.READ_COMMITTED if self.options.committed else partitions.READ_UNCOMMITTED
        return partitions.list_offsets(self.cluster, wanted, isolation)

    def beginnings(self, wanted: Iterable[TopicPartition]) -> Flat:
        """Offsets of the first records."""
        return partitions.list_offsets(self.cluster, dict.fromkeys(wanted, EARLIEST))

    def resolve(self, position: Position, wanted: Sequence[TopicPartition]) -> Flat:
        """Offsets for a position that options name. MisuseError where it lies outside of the log."""
        if position.everywhere is not None:
            return self.ends(wanted) if position.everywhere == LATEST else self.beginnings(wanted)
        named = {at for at, _ in position.offsets or position.timestamps}
        if named and named != set(wanted):
            raise MisuseError(
                f"option {position.option} must name every partition subscribed to, and no other: it differs in "
                f"{shown(sorted(named ^ set(wanted)))}"
            )
        if not position.offsets:
            return self._by_timestamp(position, wanted)
        found = dict(position.offsets)
        lasts, firsts = self.ends(wanted), self.beginnings(wanted)
        for at, offset in position.offsets:
            if offset in (LATEST, EARLIEST):
                found[at] = lasts[at] if offset == LATEST else firsts[at]
            elif offset > lasts[at]:
                self._outside(
                    f"option {position.option}: {shown([at])} ends at {lasts[at]}, there is no {offset} to read"
                )
                found[at] = lasts[at]
            elif offset < firsts[at]:
                self._outside(f"option {position.option}: {shown([at])} begins at {firsts[at]}, {offset} is gone")
                found[at] = firsts[at]
        return found

    def _outside(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise MisuseError(f"{what}; failOnDataLoss=false takes the next that is there")
        log.warning("%s", what)

    def _by_timestamp(self, position: Position, wanted: Sequence[TopicPartition]) -> Flat:
        asked = dict(position.timestamps) or dict.fromkeys(wanted, position.timestamp or 0)
        found = self._shown(asked)
        none = [at for at, offset in found.items() if offset < 0]
        if none and not position.latest_if_none:
            raise MisuseError(
                f"option {position.option}: no record is that young in {shown(sorted(none))}; "
                "startingOffsetsByTimestampStrategy=latest starts at the end there"
            )
        return found | self.ends(none)

    def slices(self, ranges: list[Range]) -> list[InputPartition]:
        """What tasks are given: options minPartitions and maxRecordsPerPartition."""
        parts = split(ranges, self.options.min_partitions, self.options.max_records)
        return [Slice(r, self._id(r.at.topic)) for r in parts]

    def _id(self, name: str) -> UUID:
        known = self._topics.get(name)
        return NO_UUID if known is None else known.topic_id

    # Reading, in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a slice."""
        if isinstance(partition, Slice):
            with BlockingCluster(**self.options.client) as cluster:
                reading = Reading(cluster, self.options, partition.range, partition.topic_id)
                yield from translate_batches(reading.batches())


class StreamSource(Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of streaming queries.

    What is wrong with the options is raised by the first call: an exception while the reader is made would be lost
    beneath one of PySpark's own (its runner stops a reader that it has not got).
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._misuse: MisuseError | None = None
        try:
            super().__init__(source_options(given, streaming=True))
            warn_of_idle(given, STREAM, SOURCE)
        except MisuseError as error:
            self._misuse = error
        self._cluster = None
        self._target: Flat | None = None
        self._newest: Flat | None = None
        self._ids: dict[str, UUID] = {}
        self._missing: set[str] = set()
        self._triggered = float("-inf")
        self._warned = False

    def _checked(self) -> None:
        if self._misuse is not None:
            raise self._misuse from None

    @translate_errors
    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where a new query starts."""
        self._checked()
        return nested(self.resolve(self.options.starting, self.wanted()))

    @translate_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Options maxOffsetsPerTrigger and minOffsetsPerTrigger: this class does the waiting of the latter itself."""
        self._checked()
        trigger = self.options.trigger
        if trigger.most is None and trigger.least is None:
            return ReadAllAvailable()
        return ReadMaxRows(MAX_LONG if trigger.most is None else trigger.most)

    @translate_errors
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Where the next batch ends. An end before its start (failOnDataLoss=false) goes back, and reads nothing."""
        self._checked()
        before = flattened(start)
        wanted = self._present(before)
        begun = {at: before[at] for at in wanted if at in before} | self._new(set(wanted) - set(before))
        self._newest = self._settled(begun)
        ends = self._newest if self._target is None else self._aimed(self._target, begun, self._newest)
        ends = self._backwards(begun, ends)
        if isinstance(limit, ReadMaxRows):
            if self._waits(begun, ends):
                return start
            ends = limited(begun, ends, limit.max_rows)
        return nested(ends)

    def _aimed(self, target: Flat, begun: Flat, newest: Flat) -> Flat:
        """AvailableNow's ends. Where one was before the query it was told too early: by then `newest` is settled."""
        target.update((at, newest[at]) for at in begun if target.setdefault(at, begun[at]) < begun[at])
        return {at: target[at] for at in begun}

    def _present(self, before: Flat) -> list[TopicPartition]:
        wanted = self.wanted(self._missing)
        unread = self._missing - {at.topic for at in before}
        if unread and self.options.fail_on_data_loss:
            option = self.options.subscription.option
            raise MisuseError(f"option {option}: there is no topic {min(unread)!r}; create it first")
        gone = sorted(set(before) - set(wanted))
        if gone:
            lose(self.options, f"partitions that the query has read from are gone: {shown(gone)}")
        return wanted

    def _new(self, added: set[TopicPartition]) -> Flat:
        """Partitions that came while the query ran, or while it was down, are read from their beginning."""
        begun = self.beginnings(added) if added else {}
        for at, first in sorted(begun.items()):
            if first:
                lose(self.options, f"{shown([at])} is new to the query and begins at {first}, not at 0")
        return begun

    def _settled(self, begun: Flat) -> Flat:
        """The ends, asked for again where one is before the query: a broker that has just started may show less."""
        patience = self.options.patience
        for _ in range(patience.attempts - 1):
            ends = self.ends(begun)
            if all(ends[at] >= begun[at] for at in begun) or self._made_anew():
                return ends
            time.sleep(patience.interval_ms / 1000)
        return self.ends(begun)

    def _made_anew(self) -> set[str]:
        """Topics that are not the ones that this query has read, by their ids."""
        return {
            name
            for name, topic in self._topics.items()
            if NO_UUID not in (topic.topic_id, self._ids.get(name, NO_UUID)) and self._ids[name] != topic.topic_id
        }

    def _backwards(self, begun: Flat, ends: Flat) -> Flat:
        """A topic made anew is read from its beginning, as far as that is known; any other log from where it ends."""
        anew = self._made_anew()
        for name in sorted(anew):
            lose(self.options, f"topic {name} was deleted and made anew: what was not read of the old one is gone")
        back = [at for at in begun if at.topic in anew]
        ends = ends | self.beginnings(back) if back else ends
        for at, end in sorted(ends.items()):
            if end < begun[at] and at.topic not in anew:
                lose(
                    self.options,
                    f"{shown([at])} ends at {end}, the query has read to {begun[at]}: was the topic made anew?",
                )
        self._ids.update((name, topic.topic_id) for name, topic in self._topics.items())
        return ends

    def _waits(self, begun: Flat, ends: Flat) -> bool:
        """Whether minOffsetsPerTrigger is not there yet, nor maxTriggerDelay over; AvailableNow waits for nothing."""
        trigger, now = self.options.trigger, time.monotonic()
        if trigger.least is None or self._target is not None:
            return False
        there = sum(max(ends[at] - begun[at], 0) for at in ends)
        if there < trigger.least and now - self._triggered < trigger.delay_ms / 1000:
            return True
        self._triggered = now
        return False

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """For the query's progress: what `latestOffset` has seen."""
        return None if self._newest is None else nested(self._newest)

    @translate_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, and no further."""
        self._checked()
        self._target = self.ends(self.wanted(self._missing))

    @translate_errors
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """One slice a partition that has something, more with minPartitions."""
        before, ends = flattened(start), flattened(end)
        begun = {at: before[at] for at in ends if at in before}
        if not self._topics:  # a batch that was planned before a restart
            self.wanted(self._missing)
        begun |= self._new(set(ends) - set(begun))
        return self.slices([Range(at, begun[at], until) for at, until in sorted(ends.items()) if begun[at] < until])

    def commit(self, end: Offsets) -> None:
        """Show the progress to lag tools: options groupIdPrefix or kafka.group.id. The checkpoint is what counts."""
        if self.options.group is None:
            return
        group = GroupMetadata(self.options.group)
        offsets = {(at.topic, at.partition): offset for at, offset in flattened(end).items()}
        try:
            self.cluster.run_many([offset_calls.commit(self.cluster.cluster, group, offsets, timeout_ms=COMMIT_MS)])
        except errors.OncelogError as error:
            if not self._warned:
                log.warning("offsets are not shown in group %s: %s", self.options.group, error)
            self._warned = True


class BatchSource(Source, DataSourceReader):
    """The reader of batch reads."""

    def __init__(self, given: Mapping[str, str]) -> None:
        super().__init__(source_options(given, streaming=False))
        warn_of_idle(given, "a batch read", SOURCE)
        self._pushed = Pushed()

    @property
    def pushFilters(self) -> _PushFilters:  # noqa: N802
        """Called where spark.sql.python.filterPushdown.enabled is true; see `filters`."""
        return _PushFilters(self._pushed.take)

    @translate_errors
    def partitions(self) -> Sequence[InputPartition]:
        """What is there between startingOffsets and endingOffsets, as far as filters ask for it."""
        try:
            wanted = self.wanted()
            begun = self.resolve(self.options.starting, wanted)
            ends = self.resolve(self.options.ending, wanted)
            for at in wanted:
                if begun[at] > ends[at]:
                    raise MisuseError(
                        f"options {self.options.starting.option} and {self.options.ending.option}: {shown([at])} "
                        f"would be read from {begun[at]} to {ends[at]}"
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
        behind = {at: ends[at] if pushed.behind is None else min(ends[at], pushed.behind) for at in kept}
        return [Range(at, first[at], behind[at]) for at in kept if first[at] < behind[at]]


class _PushFilters:
    """`pushFilters` of a reader that can also do without.

    PySpark refuses a reader whose class has that method where filters are not pushed, which is its default. So it is
    shown the method of the base class, by the attribute that it looks at.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, take: Callable[[Iterable[Filter]], Iterable[Filter]]) -> None:
        self._take = take

    def __call__(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        return self._take(filters)
