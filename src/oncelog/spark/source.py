"""The source: micro-batches and batch reads of topics, as Arrow batches, up to the last stable offset."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from oncelog import errors
from oncelog.client.blocking import BlockingCluster
from oncelog.client.outcomes import raise_for_error
from oncelog.protocol.messages import offset_commit as oc
from oncelog.protocol.schema import NO_UUID
from oncelog.spark import partitions
from oncelog.spark.commit.errors import MisuseError, SinkError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.offsets import (
    EARLIEST,
    LATEST,
    Flat,
    Offsets,
    Position,
    Range,
    SourceOptions,
    flattened,
    limited,
    nested,
    source_options,
    split,
)
from oncelog.spark.options import reach

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("oncelog.spark")

STALL_SECONDS = 60
"""A read that comes no further for so long fails: the log has lost what the batch was planned with."""
OFFSET_COMMIT_VERSION = 9
"""The newest version of OffsetCommit with topic names."""


class DataLossError(SinkError):
    """Offsets that the query wants are not in the log any more."""


@dataclass
class Slice(InputPartition):
    """One task's part of a batch."""

    range: Range

    def __init__(self, wanted: Range) -> None:
        self.range = wanted


class Source:
    """What both readers share. The connection stays with the process that made it."""

    streaming = True

    def __init__(self, given: dict[str, str]) -> None:
        self.options: SourceOptions = source_options(given, streaming=self.streaming)
        self._cluster: BlockingCluster | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None}

    @property
    def cluster(self) -> BlockingCluster:
        """Connected when first used."""
        if self._cluster is None:
            cluster = BlockingCluster(**self.options.client)
            try:
                reach(cluster, self.options.client["bootstrap_servers"], self.options.bootstrap_ms)
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

    def wanted(self) -> list[TopicPartition]:
        """The partitions subscribed to, as they are now."""
        subscription = self.options.subscription
        if subscription.assigned:
            for name in sorted({at.topic for at in subscription.assigned}):
                self._topic(name, "assign")
            return list(subscription.assigned)
        if subscription.pattern:
            pattern = re.compile(subscription.pattern)
            topics = [topic for name, topic in self.cluster.topics().items() if pattern.fullmatch(name)]
        else:
            self.cluster.refresh(subscription.topics, patient=True)
            topics = [self._topic(name) for name in subscription.topics]
        return sorted(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)

    def _topic(self, name: str, option: str = "subscribe") -> Any:
        try:
            return self.cluster.topic(name)
        except errors.UnknownTopicError as error:
            raise MisuseError(f"option {option}: there is no topic {name!r}; create it first") from error

    def ends(self, wanted: Sequence[TopicPartition]) -> Flat:
        """Last stable offsets (read_uncommitted: high watermarks)."""
        isolation = partitions.READ_COMMITTED if self.options.committed else partitions.READ_UNCOMMITTED
        return partitions.list_offsets(self.cluster, dict.fromkeys(wanted, LATEST), isolation)

    def beginnings(self, wanted: Sequence[TopicPartition]) -> Flat:
        """Offsets of the first records."""
        return partitions.list_offsets(self.cluster, dict.fromkeys(wanted, EARLIEST))

    def resolve(self, position: Position, wanted: Sequence[TopicPartition], option: str) -> Flat:
        """Offsets for a position that options name."""
        if position.everywhere is not None:
            asked = dict.fromkeys(wanted, position.everywhere)
        elif position.offsets:
            asked = dict(position.offsets)
            if set(asked) != set(wanted):
                missing = sorted(set(wanted) ^ set(asked))
                raise MisuseError(
                    f"option {option}Offsets must name every partition subscribed to, and no other: {missing}"
                )
        else:
            return self._by_timestamp(position, wanted, option)
        found = {at: offset for at, offset in asked.items() if offset >= 0}
        found |= self.ends([at for at, offset in asked.items() if offset == LATEST])
        found |= self.beginnings([at for at, offset in asked.items() if offset == EARLIEST])
        return found

    def _by_timestamp(self, position: Position, wanted: Sequence[TopicPartition], option: str) -> Flat:
        asked = dict(position.timestamps)
        if position.timestamp is not None:
            asked = dict.fromkeys(wanted, position.timestamp)
        found = partitions.list_offsets(self.cluster, asked)
        none = [at for at, offset in found.items() if offset < 0]
        if none and not position.latest_if_none:
            raise MisuseError(
                f"option {option}Timestamp: no record is that young in {none}; "
                "startingOffsetsByTimestampStrategy=latest starts at the end there"
            )
        return found | self.ends(none)

    def lose(self, what: str) -> None:
        """Data loss: an error, or a warning with failOnDataLoss=false."""
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{what}; failOnDataLoss=false goes on without these records")
        log.warning("%s", what)

    # Reading, in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a slice; ends when the position is behind it, for control records have offsets, too."""
        if isinstance(partition, Slice):
            with BlockingCluster(**self.options.client) as cluster:
                yield from self._read(cluster, partition.range)

    def _read(self, cluster: BlockingCluster, wanted: Range) -> Iterator[pa.RecordBatch]:
        from oncelog.columns.decode import decode_batches

        isolation = partitions.READ_COMMITTED if self.options.committed else partitions.READ_UNCOMMITTED
        position, moved = wanted.start, time.monotonic()
        while position < wanted.end:
            answer = partitions.fetch(
                cluster, wanted.at, position, isolation=isolation, max_bytes=self.options.fetch_bytes
            )
            if answer.error_code:
                position = self._behind_gap(cluster, wanted, position)
                continue
            aborted = [(a.producer_id, a.first_offset) for a in answer.aborted_transactions or ()]
            table, reached = decode_batches(
                [answer.records or b""],
                topic=wanted.at.topic,
                partition=wanted.at.partition,
                start_offset=position,
                aborted=aborted if self.options.committed else None,
                include_headers=self.options.include_headers,
                end_offset=wanted.end,
            )
            yield from table.to_batches()
            if reached > position:
                position, moved = reached, time.monotonic()
            elif time.monotonic() - moved > STALL_SECONDS:
                raise DataLossError(f"{wanted.at} ends at {position}, before {wanted.end} where this batch ends")

    def _behind_gap(self, cluster: BlockingCluster, wanted: Range, position: int) -> int:
        first = partitions.list_offsets(cluster, {wanted.at: EARLIEST})[wanted.at]
        upto = max(position, min(first, wanted.end))
        self.lose(f"{wanted.at} begins at {first}: records {position} to {upto - 1} of this batch are gone")
        return upto if upto > position else wanted.end


class StreamSource(Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of streaming queries."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self._target: Flat | None = None
        self._warned = False

    def initialOffset(self) -> Offsets:  # noqa: N802
        """Where a new query starts."""
        return nested(self.resolve(self.options.starting, self.wanted(), "starting"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Option maxOffsetsPerTrigger."""
        return ReadAllAvailable() if self.options.most is None else ReadMaxRows(self.options.most)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Where the next batch ends."""
        wanted = self.wanted()
        begun = self._begun(flattened(start), wanted)
        ends = self.ends(wanted) if self._target is None else {at: self._target.get(at, begun[at]) for at in wanted}
        for at, end in ends.items():
            if end < begun[at]:
                self.lose(f"{at} ends at {end}, the query has read to {begun[at]}: was the topic made anew?")
        ends = {at: max(end, begun[at]) for at, end in ends.items()}
        if isinstance(limit, ReadMaxRows):
            ends = limited(begun, ends, limit.max_rows)
        return nested(ends)

    def _begun(self, start: Flat, wanted: Sequence[TopicPartition]) -> Flat:
        gone = sorted(set(start) - set(wanted))
        if gone:
            self.lose(f"partitions that the query has read from are gone: {gone}")
        new = [at for at in wanted if at not in start]
        return {at: start[at] for at in wanted if at in start} | self.beginnings(new)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """For the query's progress."""
        return nested(self.ends(self.wanted()))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, and no further."""
        self._target = self.ends(self.wanted())

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """One slice a partition that has something, more with minPartitions."""
        ends = flattened(end)
        begun = self._begun({at: o for at, o in flattened(start).items() if at in ends}, list(ends))
        ranges = [Range(at, begun[at], until) for at, until in sorted(ends.items()) if begun[at] < until]
        return [Slice(r) for r in split(ranges, self.options.min_partitions)]

    def commit(self, end: Offsets) -> None:
        """Show the progress to lag tools: options groupIdPrefix or kafka.group.id. The checkpoint is what counts."""
        if self.options.group is None:
            return
        try:
            self._commit_group(self.options.group, flattened(end))
        except errors.OncelogError as error:
            if not self._warned:
                log.warning("offsets are not shown in group %s: %s", self.options.group, error)
            self._warned = True

    def _commit_group(self, group: str, offsets: Flat) -> None:
        topics: dict[str, list[oc.OffsetCommitRequestPartition]] = {}
        for at, offset in offsets.items():
            entry = oc.OffsetCommitRequestPartition(
                partition_index=at.partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(at.topic, []).append(entry)
        request = oc.OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[
                oc.OffsetCommitRequestTopic(name=name, topic_id=NO_UUID, partitions=entries)
                for name, entries in topics.items()
            ],
        )
        response = self.cluster.call_coordinator("group", group, request, OFFSET_COMMIT_VERSION, timeout_ms=5_000)
        raise_for_error(response, f"OffsetCommit of {group}")


class BatchSource(Source, DataSourceReader):
    """The reader of batch reads."""

    streaming = False

    def partitions(self) -> Sequence[InputPartition]:
        """What is there between startingOffsets and endingOffsets."""
        try:
            wanted = self.wanted()
            begun = self.resolve(self.options.starting, wanted, "starting")
            ends = self.resolve(self.options.ending, wanted, "ending")
        finally:
            self.stop()
        ranges = [Range(at, begun[at], ends[at]) for at in sorted(ends) if begun[at] < ends[at]]
        return [Slice(r) for r in split(ranges, self.options.min_partitions)]
