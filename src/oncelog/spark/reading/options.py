"""The options of the source: what to read, from which offsets to which, and the size of batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import TopicPartition
from oncelog.spark.formats.options import TypedOptions, typed_options
from oncelog.spark.option_tables import DEFAULT_BOOTSTRAP_MS, SOURCE_OPTIONS
from oncelog.spark.options import MAX_LONG, Options
from oncelog.spark.reading.offsets import EARLIEST, LATEST, flattened, nested, shown, whole

_WORDS = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True)
class Position:
    """Where to start or to end. `option` is the name of the option that sets it.

    `timestamps` are looked up; `offsets` may be EARLIEST or LATEST.
    """

    everywhere: int | None = None
    timestamp: int | None = None
    offsets: tuple[tuple[TopicPartition, int], ...] = ()
    timestamps: tuple[tuple[TopicPartition, int], ...] = ()
    latest_if_none: bool = False
    option: str = ""


def position(options: Options, word: str, default: int) -> Position:
    """Return the first given of {word}Timestamp, {word}OffsetsByTimestamp, {word}Offsets ("starting" or "ending")."""
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    latest = word == "ending" or strategy == "latest"
    names = f"{word}Timestamp", f"{word}OffsetsByTimestamp", f"{word}Offsets"
    timestamp = options.number(names[0], least=0)
    if timestamp is not None:
        return Position(timestamp=timestamp, latest_if_none=latest, option=names[0])
    if options.text(names[1]) is not None:
        timestamps = _by_partition(options, names[1], least=0)
        return Position(timestamps=timestamps, latest_if_none=latest, option=names[1])
    text = options.text(names[2])
    if text is None:
        return Position(everywhere=default, option=names[2])
    if text.strip().lower() in _WORDS:
        return Position(everywhere=_WORDS[text.strip().lower()], option=names[2])
    if not text.lstrip().startswith("{"):
        raise MisuseError(
            f"option {names[2]}={text!r}: it must be earliest, latest, or offsets such as "
            '{"topic": {"0": 23, "1": -2}} (-2: earliest, -1: latest)'
        )
    return Position(offsets=_by_partition(options, names[2], least=EARLIEST), option=names[2])


def _by_partition(options: Options, name: str, least: int) -> tuple[tuple[TopicPartition, int], ...]:
    flat = flattened(options.json(name), name)
    wrong = {at: number for at, number in flat.items() if not least <= number <= MAX_LONG or at.partition < 0}
    if wrong or not flat:
        raise MisuseError(f"option {name}: each partition needs a number of at least {least}, not {nested(wrong)}")
    return tuple(sorted(flat.items()))


_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class Subscription:
    """The topics, the pattern or the partitions to read. Exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[TopicPartition, ...] = ()

    @property
    def names(self) -> list[str]:
        """The topics that the option names. Empty with a pattern."""
        return sorted(self.topics or {at.topic for at in self.assigned})

    @property
    def option(self) -> str:
        """The name of the option that was given."""
        return "assign" if self.assigned else "subscribePattern" if self.pattern else "subscribe"

    def selects(self, at: TopicPartition) -> bool:
        """Return whether the option names this partition or its topic."""
        if self.pattern:
            return re.fullmatch(self.pattern, at.topic) is not None
        return at in self.assigned if self.assigned else at.topic in self.topics


def subscription(options: Options) -> Subscription:
    """Read the options subscribe, subscribePattern and assign. Raises MisuseError unless exactly one is given."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise MisuseError(f"give exactly one of the options subscribe, subscribePattern and assign, not {found}")
    text = (options.text(given[0]) or "").strip()
    made = {"subscribe": _subscribe, "subscribePattern": _subscribe_pattern, "assign": _assign}[given[0]](options, text)
    wrong = [name for name in made.names if not _TOPIC.fullmatch(name)]
    if wrong:
        raise MisuseError(
            f"option {given[0]}: {wrong[0]!r} is not a topic name (1 to 249 letters, digits, '.', '_' and '-')"
        )
    return made


def _subscribe(options: Options, text: str) -> Subscription:
    topics = tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))
    if not topics:
        raise MisuseError(f"option subscribe={text!r}: it must name at least one topic")
    return Subscription(topics=topics)


def _subscribe_pattern(options: Options, text: str) -> Subscription:
    if not text:
        raise MisuseError("option subscribePattern is empty; set it to a regular expression for topic names")
    try:
        re.compile(text)
    except re.error as error:
        raise MisuseError(f"option subscribePattern={text!r}: it must be a regular expression: {error}") from None
    return Subscription(pattern=text)


def _assign(options: Options, text: str) -> Subscription:
    given = options.json("assign")
    try:
        wanted = {TopicPartition(topic, whole(number)) for topic, numbers in given.items() for number in numbers}
    except (AttributeError, TypeError, ValueError):
        wanted = set()
    if not wanted or min(at.partition for at in wanted) < 0:
        raise MisuseError(f'option assign={text!r}: it must be partitions by topic, such as {{"topic": [0, 1]}}')
    return Subscription(assigned=tuple(sorted(wanted)))


@dataclass(frozen=True)
class Trigger:
    """The options maxOffsetsPerTrigger, minOffsetsPerTrigger and maxTriggerDelay, which limit a micro-batch."""

    most: int | None = None
    least: int | None = None
    delay_ms: int = 900_000


@dataclass(frozen=True)
class Patience:
    """The options fetchOffset.numRetries and .retryIntervalMs, kafkaConsumer.pollTimeoutMs and bootstrapTimeoutMs."""

    attempts: int = 3
    interval_ms: int = 1_000
    poll_ms: int = 120_000
    bootstrap_ms: int = DEFAULT_BOOTSTRAP_MS


@dataclass(frozen=True)
class SourceOptions:
    """The checked options of the source."""

    subscription: Subscription
    starting: Position
    ending: Position
    trigger: Trigger
    patience: Patience
    min_partitions: int | None
    max_records: int | None
    fail_on_data_loss: bool
    include_headers: bool
    group: str | None
    committed: bool
    fetch_bytes: int
    rack: str
    typed: TypedOptions
    client: dict[str, Any]


DEFAULT_FETCH_BYTES = 8 << 20


def check_options(given: Mapping[str, str]) -> SourceOptions:
    """Check the options for either kind of read, because `load()` does not say which it is.

    Raises MisuseError if both would fail.
    """
    try:
        return source_options(given, streaming=True)
    except MisuseError as stream:
        try:
            return source_options(given, streaming=False)
        except MisuseError as batch:
            if str(batch) == str(stream):
                raise
            raise MisuseError(f"for a stream: {stream}; for a batch read: {batch}") from None


def source_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return the checked options. Raises MisuseError. Checks that depend on the kind of read are the last ones."""
    options = Options(given, SOURCE_OPTIONS)
    isolation = options.choice("kafka.isolation.level", ("read_committed", "read_uncommitted"), "read_committed")
    made = SourceOptions(
        subscription=subscription(options),
        starting=position(options, "starting", LATEST if streaming else EARLIEST),
        ending=position(options, "ending", LATEST),
        trigger=_trigger(options),
        patience=Patience(
            attempts=options.number("fetchOffset.numRetries", Patience.attempts) or 1,
            interval_ms=options.number("fetchOffset.retryIntervalMs", Patience.interval_ms, least=0) or 0,
            poll_ms=options.number("kafkaConsumer.pollTimeoutMs", Patience.poll_ms) or 1,
            bootstrap_ms=options.bootstrap_ms(),
        ),
        min_partitions=options.number("minPartitions"),
        max_records=options.number("maxRecordsPerPartition"),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders"),
        group=options.text("kafka.group.id") or options.text("groupIdPrefix"),
        committed=isolation == "read_committed",
        fetch_bytes=options.number("kafka.max.partition.fetch.bytes", DEFAULT_FETCH_BYTES) or DEFAULT_FETCH_BYTES,
        rack=options.text("kafka.client.rack") or "",
        typed=typed_options(options),
        client=options.client(),
    )
    if streaming:
        _check_stream(options)
    else:
        _check_batch(made)
    return made


def _trigger(options: Options) -> Trigger:
    most, least = options.number("maxOffsetsPerTrigger"), options.number("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise MisuseError(f"option minOffsetsPerTrigger={least}: it must not be more than maxOffsetsPerTrigger={most}")
    return Trigger(most, least, options.duration_ms("maxTriggerDelay", Trigger.delay_ms))


def _check_stream(options: Options) -> None:
    for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"):
        if options.text(name) is not None:
            raise MisuseError(f"option {name} is for batch reads, because a stream has no end; omit it")


def _check_batch(made: SourceOptions) -> None:
    start, end = made.starting, made.ending
    if start.everywhere == LATEST or LATEST in dict(start.offsets).values():
        raise MisuseError("option startingOffsets=latest (-1): a batch read would be empty; use earliest or offsets")
    if end.everywhere == EARLIEST or EARLIEST in dict(end.offsets).values():
        raise MisuseError("option endingOffsets=earliest (-2): the read would be empty; use latest or offsets")
    if start.timestamp is not None and end.timestamp is not None:
        _check_order(start, end, {None: start.timestamp}, {None: end.timestamp})
    _check_order(start, end, dict(start.offsets), dict(end.offsets))
    _check_order(start, end, dict(start.timestamps), dict(end.timestamps))


def _check_order(start: Position, end: Position, first: dict[Any, int], last: dict[Any, int]) -> None:
    if first and last and set(first) != set(last):
        differing = sorted(set(first) ^ set(last))
        raise MisuseError(
            f"options {start.option} and {end.option} must name the same partitions; they differ in {shown(differing)}"
        )
    for at, number in first.items():
        if last.get(at, -1) >= 0 and number > last[at]:
            where = f" of {shown([at])}" if at else ""
            raise MisuseError(f"option {start.option}={number}{where} is after {end.option}={last[at]}")
