"""Offsets of the source: their form in a checkpoint, limits of a batch, ranges of tasks.

`Offsets` is {topic: {partition as text: offset}}, the shape that Spark's Kafka connector writes into its checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import TopicPartition

Offsets = dict[str, dict[str, int]]
Flat = dict[TopicPartition, int]

EARLIEST, LATEST = -2, -1


def nested(flat: Flat) -> Offsets:
    """Return the form for the checkpoint, in a fixed order, because Spark compares offsets as text."""
    result: Offsets = {}
    for at in sorted(flat):
        result.setdefault(at.topic, {})[str(at.partition)] = flat[at]
    return result


def flattened(offsets: Any, option: str = "offsets") -> Flat:
    """Return partitions and offsets from that form. Raises MisuseError for any other form."""
    try:
        return {
            TopicPartition(topic, whole(partition)): whole(offset)
            for topic, inner in offsets.items()
            for partition, offset in inner.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise MisuseError(
            f'option {option}: it must be offsets by topic and partition, such as {{"topic": {{"0": 23, "1": -2}}}}'
        ) from None


def whole(number: Any) -> int:
    """Return an int, also from text. Raises TypeError or ValueError."""
    if isinstance(number, bool) or not isinstance(number, (int, str)):
        raise TypeError(number)
    return int(number)


def limited(start: Flat, end: Flat, most: int) -> Flat:
    """Return ends of a batch of at most `most` offsets, in proportion to what each partition has.

    Partitions with few offsets come first, and are rounded up, so that none starves. (SPARK-26718's `rateLimit` may
    exceed the limit for that.) An end before its start stays: the batch reads nothing there.
    """
    sizes = {at: end[at] - start[at] for at in end if end[at] > start[at]}
    remaining = sum(sizes.values())
    result, left = dict(end), most
    if remaining <= most:
        return result
    for at in sorted(sizes, key=lambda at: (sizes[at], at)):
        share = min(sizes[at], -(-left * sizes[at] // remaining), left)
        result[at] = start[at] + share
        left -= share
        remaining -= sizes[at]
    return result


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of one partition."""

    at: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets. There may be fewer records."""
        return self.end - self.start


def split(ranges: list[Range], least: int | None, most: int | None = None) -> list[Range]:
    """Cut ranges to `most` offsets each, then into about `least` ranges in all: larger ones into more pieces.

    As in Spark's KafkaOffsetRangeCalculator, ranges that stay whole do not count in the proportions of the others.
    """
    if most is not None:
        ranges = [piece for whole in ranges for piece in _cut(whole, -(-whole.size // most))]
    if least is None or least <= len(ranges):
        return ranges
    total = sum(r.size for r in ranges)
    large = [r for r in ranges if _parts(r, total, least) > 1]
    wanted = max(least - (len(ranges) - len(large)), 1)
    total = sum(r.size for r in large)
    return [piece for r in ranges for piece in (_cut(r, _parts(r, total, wanted)) if r in large else [r])]


def _parts(whole: Range, total: int, least: int) -> int:
    return max(1, (2 * whole.size * least + total) // (2 * total))


def _cut(whole: Range, parts: int) -> list[Range]:
    parts = min(parts, whole.size)
    cuts = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    return [Range(whole.at, a, b) for a, b in pairwise(cuts)]


def shown(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as Kafka writes them."""
    return ", ".join(f"{at.topic}-{at.partition}" for at in partitions)
