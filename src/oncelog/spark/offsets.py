"""Offsets of the source: how options name them, limits of a batch, splits. Pure.

`Offsets` is {topic: {partition as text: offset}}, the shape that Spark's Kafka connector writes into its checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.options import SOURCE_OPTIONS, Options

Offsets = dict[str, dict[str, int]]
Flat = dict[TopicPartition, int]

EARLIEST, LATEST = -2, -1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}


def nested(flat: Flat) -> Offsets:
    """For the checkpoint, in a fixed order: Spark compares offsets as text."""
    result: Offsets = {}
    for at in sorted(flat):
        result.setdefault(at.topic, {})[str(at.partition)] = flat[at]
    return result


def flattened(offsets: Any, option: str = "offsets") -> Flat:
    """The reverse; MisuseError where it has not that shape."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, inner in offsets.items()
            for partition, offset in inner.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise MisuseError(f'option {option}: wanted is {{"topic": {{"0": 23}}}}') from error


@dataclass(frozen=True)
class Position:
    """Where to start or to end. `timestamps` are looked up, `offsets` may be EARLIEST or LATEST."""

    everywhere: int | None = None
    timestamp: int | None = None
    offsets: tuple[tuple[TopicPartition, int], ...] = ()
    timestamps: tuple[tuple[TopicPartition, int], ...] = ()
    latest_if_none: bool = False


def position(options: Options, word: str, default: int) -> Position:
    """The first given of {word}Timestamp, {word}OffsetsByTimestamp, {word}Offsets ("starting" or "ending")."""
    strategy = options.text("startingOffsetsByTimestampStrategy", "error")
    if strategy not in ("error", "latest"):
        raise MisuseError(f"option startingOffsetsByTimestampStrategy={strategy!r}: error or latest")
    latest = word == "ending" or strategy == "latest"
    timestamp = options.number(f"{word}Timestamp", least=0)
    if timestamp is not None:
        return Position(timestamp=timestamp, latest_if_none=latest)
    by_timestamp = options.json(f"{word}OffsetsByTimestamp")
    if by_timestamp is not None:
        flat = flattened(by_timestamp, f"{word}OffsetsByTimestamp")
        return Position(timestamps=tuple(sorted(flat.items())), latest_if_none=latest)
    text = options.text(f"{word}Offsets")
    if text is None:
        return Position(everywhere=default)
    if text.lower() in _WORDS:
        return Position(everywhere=_WORDS[text.lower()])
    return Position(offsets=tuple(sorted(flattened(options.json(f"{word}Offsets"), f"{word}Offsets").items())))


@dataclass(frozen=True)
class Subscription:
    """Exactly one of topics, pattern and assigned."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[TopicPartition, ...] = ()


def subscription(options: Options) -> Subscription:
    """Options subscribe, subscribePattern, assign; MisuseError unless exactly one is given."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name)]
    if len(given) != 1:
        raise MisuseError("give exactly one of the options subscribe, subscribePattern and assign")
    if given[0] == "subscribe":
        text = options.text("subscribe") or ""
        return Subscription(topics=tuple(sorted({name.strip() for name in text.split(",") if name.strip()})))
    if given[0] == "subscribePattern":
        return Subscription(pattern=options.text("subscribePattern") or "")
    try:
        wanted = {TopicPartition(t, int(p)) for t, partitions in options.json("assign").items() for p in partitions}
    except (AttributeError, TypeError, ValueError) as error:
        raise MisuseError('option assign: wanted is {"topic": [0, 1]}') from error
    return Subscription(assigned=tuple(sorted(wanted)))


def limited(start: Flat, end: Flat, most: int) -> Flat:
    """Ends of a batch of at most `most` offsets, shared out in proportion to what each partition has."""
    sizes = {at: max(end[at] - start[at], 0) for at in end}
    total = sum(sizes.values())
    if total <= most:
        return end
    result, left = {}, most
    for index, at in enumerate(sorted(sizes, key=lambda at: (sizes[at], at))):
        remaining = sum(sorted(sizes.values())[index:])
        share = min(sizes[at], -(-left * sizes[at] // remaining) if remaining else 0, left)
        result[at] = start[at] + share
        left -= share
    return result


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of one partition."""

    at: TopicPartition
    start: int
    end: int


def split(ranges: list[Range], least: int | None) -> list[Range]:
    """At least so many ranges, larger ones cut into more pieces."""
    total = sum(r.end - r.start for r in ranges)
    if least is None or least <= len(ranges) or not total:
        return ranges
    result = []
    for r in ranges:
        size = r.end - r.start
        parts = min(max(1, round(size / total * least)), size)
        cuts = [r.start + size * part // parts for part in range(parts + 1)]
        result += [Range(r.at, a, b) for a, b in pairwise(cuts)]
    return result


@dataclass(frozen=True)
class SourceOptions:
    """What the source is told."""

    subscription: Subscription
    starting: Position
    ending: Position
    most: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    include_headers: bool
    group: str | None
    committed: bool
    fetch_bytes: int
    client: dict[str, Any]
    bootstrap_ms: int


DEFAULT_FETCH_BYTES = 8 << 20


def source_options(given: dict[str, str], *, streaming: bool) -> SourceOptions:
    """The checked options of a source; MisuseError."""
    options = Options(given, SOURCE_OPTIONS)
    isolation = options.text("kafka.isolation.level", "read_committed")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise MisuseError(f"option kafka.isolation.level={isolation!r}: read_committed or read_uncommitted")
    starting = position(options, "starting", LATEST if streaming else EARLIEST)
    ending = position(options, "ending", LATEST)
    if streaming and ending != Position(everywhere=LATEST):
        raise MisuseError("options endingOffsets and endingTimestamp are for batch reads")
    if not streaming and starting.everywhere == LATEST:
        raise MisuseError("option startingOffsets=latest: a batch read would be empty")
    if ending.everywhere == EARLIEST:
        raise MisuseError("option endingOffsets=earliest: the read would be empty")
    return SourceOptions(
        subscription=subscription(options),
        starting=starting,
        ending=ending,
        most=options.number("maxOffsetsPerTrigger"),
        min_partitions=options.number("minPartitions"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders"),
        group=options.text("kafka.group.id") or options.text("groupIdPrefix"),
        committed=isolation == "read_committed",
        fetch_bytes=options.number("kafka.max.partition.fetch.bytes", DEFAULT_FETCH_BYTES) or DEFAULT_FETCH_BYTES,
        client=options.client(),
        bootstrap_ms=options.bootstrap_ms(),
    )
