"""Read ranges of offsets with a consumer, and find the ranges that bounds allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from oncelog import errors
from oncelog.client.consumer.blocking import Consumer
from oncelog.protocol.topics import TopicPartition
from oncelog.tables.bounds import Bounds

POLL_S = 0.25
"""How long one step waits for records. After the last record, it is the wait for markers of transactions."""
IDLE_STEPS = 240
"""Steps without any progress (one minute) after which a read fails."""
KNOWN_S = 1.0
"""How long the brokers must not know a topic that is read. A broker that has just started may not know it yet."""

Ranges = dict[TopicPartition, tuple[int, int]]
"""(first offset, offset after the last one) of each partition with something to read."""


class Found(NamedTuple):
    """The ranges to read of a topic, those of all its records, and its id."""

    topic: str
    topic_id: UUID
    ranges: Ranges
    whole: Ranges

    def counts(self) -> tuple[int, int]:
        """Return the numbers of offsets in the ranges, and in the whole topic."""
        read, all_of = (sum(end - start for start, end in each.values()) for each in (self.ranges, self.whole))
        return read, all_of


def found_ranges(consumer: Consumer, topic: str, bounds: Bounds) -> Found:
    """Return the offsets of a topic that may be within the bounds, up to its current end.

    All records before the first one at or after a time are older, but not all after it are younger. So the end of a
    range of times does not limit the offsets; see `read`.
    """
    topic_id = consumer.topic_id(topic)
    partitions = [(topic, number) for number in sorted(consumer.partitions_for(topic))]
    starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    whole = {tp: (starts[tp], ends[tp]) for tp in partitions if starts[tp] < ends[tp]}
    if bounds.is_empty:
        return Found(topic, topic_id, {}, whole)
    low, high = bounds.partitions.low or 0, bounds.partitions.high
    within = [tp for tp in whole if low <= tp[1] and (high is None or tp[1] < high)]
    first, last = bounds.offsets.low or 0, bounds.offsets.high
    found = {tp: (max(whole[tp][0], first), whole[tp][1] if last is None else min(whole[tp][1], last)) for tp in within}
    if bounds.times.low is not None and bounds.times.low > 0:  # a broker cannot look up times before 1970
        at = _at(consumer, within, -(-bounds.times.low // 1000))
        found = {tp: (max(start, at.get(tp, end)), end) for tp, (start, end) in found.items()}
    some = {tp: (start, end) for tp, (start, end) in found.items() if start < end}
    return Found(topic, topic_id, some, whole)


def _require_same(consumer: Consumer, found: Found, timeout: float | None = None) -> None:
    """Raise UnknownTopicError if the topic was deleted, even if one of its name was created again."""
    try:
        if consumer.topic_id(found.topic, timeout) == found.topic_id:
            return
    except errors.UnknownTopicError:
        raise errors.UnknownTopicError(f"topic {found.topic} was deleted while it was read") from None
    raise errors.UnknownTopicError(
        f"topic {found.topic} was deleted and created again while it was read", advice="Read it again."
    )


def _at(consumer: Consumer, partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
    """Return the offset of the first record at or after a time. Partitions without one are omitted."""
    asked = min(time_ms, 2**63 - 1)
    answers = consumer.offsets_for_times(dict.fromkeys(partitions, asked))
    return {tp: answer.offset for tp, answer in answers.items() if answer is not None}


def read(
    consumer: Consumer,
    found: Found,
    stop_us: int | None = None,
    progress: Callable[[int], None] | None = None,
    **decoding: Any,
) -> Iterator[pa.Table]:
    """Yield the records of the ranges, as `Consumer.tables` does with these arguments. Then end.

    A partition also ends after a record at or after the time `stop_us`, in microseconds since the epoch. Markers of
    transactions do not count, because they have the time at which they were written, whatever the records' times are.
    `progress` is called with the number of offsets that were read since the last call.

    Raises UnknownTopicError if the topic was deleted, OffsetOutOfRangeError if records were, TimedOutError if a
    partition does not answer for a minute, and the errors of `Consumer.tables`.
    """
    _require_same(consumer, found)
    left = {tp: end for tp, (start, end) in found.ranges.items() if start < end}
    consumer.assign({tp: found.ranges[tp][0] for tp in left})
    idle, before, done = 0, consumer.positions(), 0

    def report() -> None:
        nonlocal done
        if progress is not None:
            done, last = _done(consumer, found), done
            progress(done - last)

    while left:
        try:
            for table in consumer.tables(timeout=POLL_S, **decoding):
                idle = 0
                report()
                some = _before(table, left)
                if some.num_rows:
                    yield some
                if stop_us is not None:
                    left = {tp: end for tp, end in left.items() if tp[1] not in _passed(table, stop_us)}
                if len(_unread(consumer, left)) < len(consumer.assignment()):
                    break
        except errors.OffsetOutOfRangeError:
            _require_same(consumer, found)
            _require_records(consumer, left)
            raise
        report()  # the last offsets may be markers of transactions
        positions = consumer.positions()
        idle = idle + 1 if positions == before else 0
        before = positions
        if left and idle:
            _require_answers(consumer, found, left, idle)
        unread = _unread(consumer, left)
        if unread and len(unread) < len(consumer.assignment()):
            consumer.assign(list(unread))  # the others have been read
        left = unread


def _require_records(consumer: Consumer, left: Mapping[TopicPartition, int]) -> None:
    """Raise OffsetOutOfRangeError if a log begins after a position."""
    starts, positions = consumer.beginning_offsets(list(left)), consumer.positions()
    for (topic, partition), start in starts.items():
        if (position := positions.get((topic, partition), start)) < start:
            raise errors.OffsetOutOfRangeError(
                f"records of {topic}-{partition} were deleted before they were read: offsets {position} to {start - 1}",
                advice="Read again to get the records that are left.",
            )


def _done(consumer: Consumer, found: Found) -> int:
    """Return how many offsets were read."""
    positions = consumer.positions()
    return sum(min(positions.get(tp, end), end) - start for tp, (start, end) in found.ranges.items())


def _require_answers(consumer: Consumer, found: Found, left: Mapping[TopicPartition, int], idle: int) -> None:
    """Raise an error if the topic was deleted, or if this was the last of IDLE_STEPS."""
    if idle >= IDLE_STEPS:
        (topic, partition), end = next(iter(left.items()))
        raise errors.TimedOutError(f"no records of {topic}-{partition} have arrived for a minute, before offset {end}")
    try:
        _require_same(consumer, found, KNOWN_S)
    except errors.UnknownTopicError:
        raise
    except errors.RetriableError:
        pass  # no broker answers now


def _unread(consumer: Consumer, left: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    positions = consumer.positions()
    return {tp: end for tp, end in left.items() if positions.get(tp, 0) < end}


def _passed(table: pa.Table, time_us: int) -> set[int]:
    """Return the partitions of a table in which a record is at or after a time."""
    late = pc.greater_equal(table.column("timestamp").cast(pa.int64()), time_us)
    return set(pc.unique(table.column("partition").filter(late)).to_pylist())


def _before(table: pa.Table, ends: Mapping[TopicPartition, int]) -> pa.Table:
    """Return the rows before the ends of their partitions."""
    limits = [0] * (max(partition for _, partition in ends) + 1)
    for (_, partition), end in ends.items():
        limits[partition] = end
    within = pc.less(table.column("offset"), pa.array(limits, pa.int64()).take(table.column("partition")))
    return table if pc.all(within).as_py() else table.filter(within)
