"""The part of the source on the driver that streams and batch reads share: topics, partitions and positions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.discovery.topology import Topic
from oncelog.protocol.schema import NO_UUID
from oncelog.spark.cluster import partitions
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.formats.options import TypedOptions
from oncelog.spark.options import reach
from oncelog.spark.reading.offsets import EARLIEST, LATEST, Flat, Range, shown, split
from oncelog.spark.reading.options import Position, SourceOptions, check_options
from oncelog.spark.reading.task import Reading, log
from oncelog.spark.user_errors import translate_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class Slice(InputPartition):
    """One task's part of a batch."""

    range: Range
    topic_id: UUID

    def __init__(self, wanted: Range, topic_id: UUID = NO_UUID) -> None:
        self.range, self.topic_id = wanted, topic_id


def check_source(given: Mapping[str, str]) -> SourceOptions:
    """Check what `load()` can check: options, brokers and topics. Raises MisuseError.

    Spark would show a stream's errors later, from another thread, below its own. With failOnDataLoss=false, topics may
    be missing: a stream that has read them continues.
    """
    options = check_options(given)
    source = SourceReader(options)
    try:
        if options.subscription.names and options.fail_on_data_loss:
            source.wanted()
        else:
            source.cluster.brokers()
    finally:
        source.stop()
    return options


class SourceReader:
    """The base class of the readers for streams and batch reads.

    The connection belongs to the process that opened it, and is not pickled. `typed` has the schemas that `load()` has
    found. It is None if `load()` did not ask for them, because the user gave a schema: `wanted`. Raises MisuseError if
    that schema is not a part of the source's, and SinkError if the registry does not answer.
    """

    def __init__(
        self, options: SourceOptions, typed: TypedOptions | None = None, wanted: StructType | None = None
    ) -> None:
        if typed is None and wanted is not None:
            from oncelog.spark.formats.columns import TypedColumns

            typed = replace(options.typed.resolved(options.subscription.names), wanted=wanted)
            TypedColumns(typed, headers=options.include_headers)
        self.options = options if typed is None else replace(options, typed=typed)
        self._cluster: BlockingCluster | None = None
        self._topics: dict[str, Topic] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None, "_topics": {}}

    @property
    def cluster(self) -> BlockingCluster:
        """The client, connected at first use."""
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
        """Close the connection: the query has ended, or a batch read is planned."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # Where things are

    def wanted(self, missing: set[str] | None = None) -> list[TopicPartition]:
        """Return the partitions of the subscription, from current metadata.

        Names of missing topics are added to `missing`. If `missing` is None, raise MisuseError for them. Topics that
        are in `missing` already are not waited for.
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
            raise MisuseError(
                f"option assign: {shown(absent)} does not exist; topic {absent[0].topic!r} has {count} partitions"
            )
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
                raise MisuseError(
                    f"option {option}: topic {name!r} does not exist; create it with `oncelog topic create {name}`"
                ) from None
            missing.add(name)
            return None

    def ends(self, wanted: Iterable[TopicPartition]) -> Flat:
        """Return the last stable offsets, or with read_uncommitted the high watermarks."""
        return self._shown(dict.fromkeys(wanted, LATEST))

    def _shown(self, wanted: Flat) -> Flat:
        """Return the offsets for timestamps. With read_committed, none is after the start of an open transaction."""
        isolation = partitions.READ_COMMITTED if self.options.committed else partitions.READ_UNCOMMITTED
        return partitions.list_offsets(self.cluster, wanted, isolation)

    def beginnings(self, wanted: Iterable[TopicPartition]) -> Flat:
        """Return the offsets of the first records."""
        return partitions.list_offsets(self.cluster, dict.fromkeys(wanted, EARLIEST))

    def resolve(self, position: Position, wanted: Sequence[TopicPartition]) -> Flat:
        """Return the offsets for a position that options name. Raises MisuseError for offsets outside the log."""
        if position.everywhere == LATEST:
            return self.ends(wanted)
        if position.everywhere is not None:
            return self.beginnings(wanted)
        named = {at for at, _ in position.offsets or position.timestamps}
        if named and named != set(wanted):
            raise MisuseError(
                f"option {position.option} must name exactly the partitions that are read; it differs from them in "
                f"{shown(sorted(named ^ set(wanted)))}"
            )
        if not position.offsets:
            return self._by_timestamp(position, wanted)
        found = dict(position.offsets)
        lasts, firsts = self.ends(wanted), self.beginnings(wanted)
        for at, offset in position.offsets:
            if offset > lasts[at]:
                self._report_outside(
                    f"option {position.option}: offset {offset} of {shown([at])} is after its end {lasts[at]}",
                    lasts[at],
                )
            if offset == LATEST or offset > lasts[at]:
                found[at] = lasts[at]
            elif offset == EARLIEST:
                found[at] = firsts[at]
            elif offset < firsts[at]:
                self._report_outside(
                    f"option {position.option}: offset {offset} of {shown([at])} is before its start {firsts[at]}, so "
                    f"offsets {offset} to {firsts[at] - 1} are lost",
                    firsts[at],
                )
                found[at] = firsts[at]
        return found

    def _report_outside(self, what: str, nearest: int) -> None:
        if self.options.fail_on_data_loss:
            raise MisuseError(f"{what}; to use the nearest existing offset, set failOnDataLoss=false")
        log.warning("%s; the query uses offset %d", what, nearest)

    def _by_timestamp(self, position: Position, wanted: Sequence[TopicPartition]) -> Flat:
        asked = dict(position.timestamps) or dict.fromkeys(wanted, position.timestamp or 0)
        found = self._shown(asked)
        none = [at for at, offset in found.items() if offset < 0]
        if none and not position.latest_if_none:
            raise MisuseError(
                f"option {position.option}: {shown(sorted(none))} has no record at or after that time; to start at "
                "the end, set startingOffsetsByTimestampStrategy=latest"
            )
        return found | self.ends(none)

    def slices(self, ranges: list[Range], ids: Mapping[str, UUID] | None = None) -> list[InputPartition]:
        """Divide the ranges among tasks, with options minPartitions and maxRecordsPerPartition.

        `ids`: the topics that were planned, if they may have been created again since.
        """
        parts = split(ranges, self.options.min_partitions, self.options.max_records)
        return [Slice(r, (ids or {}).get(r.at.topic) or self._id(r.at.topic)) for r in parts]

    def _id(self, name: str) -> UUID:
        known = self._topics.get(name)
        return NO_UUID if known is None else known.topic_id

    # Reading, in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a slice, in a task."""
        if isinstance(partition, Slice):
            with BlockingCluster(**self.options.client) as cluster:
                reading = Reading(cluster, self.options, partition.range, partition.topic_id)
                yield from translate_batches(reading.batches())
