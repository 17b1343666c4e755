"""Compare the output topic of a finished pipeline with its input topic, and find lost and duplicated records.

The first pass reads both topics and keeps only two numbers for each of BUCKETS buckets of keys: the count and the sum
of the keys' digests, positive for input and negative for output. If all are zero, the topics have the same keys, each
the same number of times. Otherwise a second pass keeps the records of the buckets that differ, MAX_KEPT at most.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from oncelog.errors import KafkaError, TimedOutError
from oncelog.protocol.texts import first_named

if TYPE_CHECKING:
    from oncelog import Consumer
    from oncelog.client.types import ConsumerRecord

Key = Callable[["ConsumerRecord"], Hashable]
Place = tuple[int, int]
"""A partition's number, and an offset in it."""
Ends = dict[tuple[str, int], int]
"""(topic, partition) -> the offset after the last record to read."""

BUCKETS = 4096
MAX_KEPT = 200_000
"""The records that the second pass keeps. One bucket may have more."""
SHOWN = 10
"""The records of each kind that the message shows."""
POLL_S = 0.1
"""A poll ends after this time if it finds no records. The end of a partition may have aborted records only."""
REBALANCING = ["PreparingRebalance", "CompletingRebalance"]
"""States of a group that waits for its members."""
LOGIN = ("security.", "sasl.", "ssl.")
"""The prefixes of the options that a consumer and an admin client share."""
IDLE_POLLS = 300
"""How many polls without any progress are an error."""


def assert_exactly_once(
    input: str,  # noqa: A002
    output: str,
    *,
    bootstrap_servers: str,
    key: Key | None = None,
    output_key: Key | None = None,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Check that the topic `output` has each record of the topic `input` exactly once. The pipeline must have finished.

    Both topics are read with read_committed, from the first to the last record. `key` maps a record to the value that
    identifies it, by default its value (bytes). It must return the same key for an input record and for its output. If
    they need different functions, set `output_key` for the output. Records with the key None are skipped. If a key
    occurs several times in the input, it must occur as often in the output. Keys are compared by type and `repr`.
    `config` has options of the consumer, by Kafka's names.

    Raises AssertionError, which lists lost, duplicated and unexpected records with partitions and offsets, or names
    the partition in which a transaction is still open. Raises UnknownTopicError if one of the topics does not exist.

    Memory is bounded. If the topics are equal, the comparison keeps no records. If they differ, it reads them a second
    time and keeps at most about 200,000 records. The message says if more records differ.
    """
    from oncelog import Consumer

    of_input = key or _value
    keys = {input: of_input, output: output_key or of_input}
    if input == output:
        raise ValueError(f"input and output are both {input!r}; pass the names of two topics")
    options = {"isolation_level": "read_committed", "auto_offset_reset": "earliest", "allow_auto_create_topics": False}
    with Consumer(bootstrap_servers, dict(config or {}), **options) as consumer:
        ends = _ends(consumer, (input, output), bootstrap_servers, config or {})
        sums = _Sums()
        for record, digest in _digests(consumer, ends, keys):
            sums.add(digest, 1 if record.topic == input else -1)
        if not sums.differing():
            return
        chosen, complete = sums.choose()
        found: dict[int, _Found] = {}
        for record, digest in _digests(consumer, ends, keys):
            if digest % BUCKETS in chosen:
                entry = found.get(digest)
                if entry is None:
                    entry = found[digest] = _Found(repr(keys[record.topic](record)))
                places = entry.input if record.topic == input else entry.output
                places.append((record.partition, record.offset))
    report = _report(input, output, sums, found.values(), complete=complete)
    raise AssertionError(report + _waiting_groups(bootstrap_servers, config or {}))


def _waiting_groups(bootstrap_servers: str, config: Mapping[str, Any]) -> str:
    """Return a line that names groups with a rebalance in progress, because their consumers read nothing meanwhile."""
    from oncelog import Admin

    login = {name: value for name, value in config.items() if name.replace("_", ".").startswith(LOGIN)}
    try:
        with Admin(bootstrap_servers, login) as admin:
            groups = [group.group_id for group in admin.list_groups(states=REBALANCING)]
    except KafkaError:  # without the permission, or on an old broker
        return ""
    if not groups:
        return ""
    names = first_named(map(repr, groups), len(groups), SHOWN)
    return (
        f"\nThe pipeline may not have finished, because these groups wait for a member: {names}. A killed member "
        "expires with its session (session.timeout.ms, 45 s). Wait for that, or set group.instance.id, with which the "
        "next process gets the partitions at once"
    )


def _value(record: ConsumerRecord) -> bytes | None:
    value: bytes | None = record.value
    return value


@dataclass(slots=True)
class _Found:
    """The places where one key occurs."""

    key: str
    input: list[Place] = field(default_factory=list)
    output: list[Place] = field(default_factory=list)


class _Sums:
    """The counts and the sums of digests, by bucket."""

    def __init__(self) -> None:
        self.inputs = 0
        self.outputs = 0
        self._counts = [0] * BUCKETS
        self._sums = [0] * BUCKETS

    def add(self, digest: int, sign: int) -> None:
        """Add a record of the input (1) or of the output (-1)."""
        bucket = digest % BUCKETS
        self._counts[bucket] += 1
        self._sums[bucket] += sign * digest
        if sign > 0:
            self.inputs += 1
        else:
            self.outputs += 1

    def differing(self) -> list[int]:
        """Return the buckets whose input and output differ. The sum of n digests is 0 only for n equal pairs."""
        return [bucket for bucket, total in enumerate(self._sums) if total]

    def choose(self) -> tuple[frozenset[int], bool]:
        """Return differing buckets, at least one, with at most MAX_KEPT records, and whether these are all."""
        chosen: list[int] = []
        left = MAX_KEPT
        differing = self.differing()
        for bucket in differing:
            left -= self._counts[bucket]
            if left < 0 and chosen:
                break
            chosen.append(bucket)
        return frozenset(chosen), len(chosen) == len(differing)


def _ends(consumer: Consumer, topics: tuple[str, ...], bootstrap_servers: str, config: Mapping[str, Any]) -> Ends:
    """Return the end offsets of the partitions of both topics. Raises AssertionError if a transaction is open."""
    from oncelog import Consumer

    partitions = [(topic, number) for topic in topics for number in sorted(consumer.partitions_for(topic))]
    stable = consumer.end_offsets(partitions)
    options = {"isolation_level": "read_uncommitted", "allow_auto_create_topics": False}
    with Consumer(bootstrap_servers, dict(config), **options) as uncommitted:
        ends = uncommitted.end_offsets(partitions)
    pending = [f"{topic}-{number} from offset {stable[topic, number]}" for topic, number in partitions
               if stable[topic, number] < ends[topic, number]]  # fmt: skip
    if pending:
        raise AssertionError(
            f"the pipeline has not finished: a transaction is open in {', '.join(pending)}. Wait until the pipeline "
            "has committed, or start it again so that it aborts the transaction of a crash"
        )
    return stable


def _digests(consumer: Consumer, ends: Ends, keys: Mapping[str, Key]) -> Iterator[tuple[ConsumerRecord, int]]:
    """Yield each record of the partitions up to their ends, with the digest of its key."""
    starts = consumer.beginning_offsets(list(ends))
    waiting = {partition for partition, end in ends.items() if starts[partition] < end}
    consumer.assign(sorted(waiting))
    for partition in waiting:
        consumer.seek(*partition, starts[partition])
    idle = 0
    while waiting:
        before = {partition: consumer.position(*partition) for partition in waiting}
        for record in consumer.poll(POLL_S, max_records=10_000):
            if record.offset < ends[record.topic, record.partition]:
                key = keys[record.topic](record)
                if key is not None:
                    yield record, _digest(key)
        after = {partition: consumer.position(*partition) for partition in waiting}
        idle = idle + 1 if before == after else 0
        if idle == IDLE_POLLS:
            named = ", ".join(f"{topic}-{number} at offset {after[topic, number]}" for topic, number in sorted(waiting))
            raise TimedOutError(f"no records arrived for {IDLE_POLLS * POLL_S:g} s from {named}")
        waiting = {partition for partition in waiting if after[partition] < ends[partition]}


def _digest(key: Hashable) -> int:
    """Return a digest of 128 bits. Different keys have different digests."""
    data = b"b" + key if isinstance(key, bytes) else f"r{type(key).__qualname__} {key!r}".encode()
    return int.from_bytes(blake2b(data, digest_size=16).digest())


def _report(source: str, target: str, sums: _Sums, found: Iterable[_Found], *, complete: bool) -> str:
    kinds: dict[str, list[str]] = {"lost": [], "duplicated": [], "not in the input": []}
    counts = dict.fromkeys(kinds, 0)
    for entry in sorted(found, key=lambda each: min(each.input or each.output)):
        missing = len(entry.input) - len(entry.output)
        if missing > 0:
            kind, text = "lost", _places(source, entry.input)
            text += f"; in the output only {_places(target, entry.output)}" if entry.output else ""
        elif missing and entry.input:
            kind, text = "duplicated", f"{_places(target, entry.output)}; in the input {_places(source, entry.input)}"
        elif missing:
            kind, text = "not in the input", _places(target, entry.output)
        else:
            continue
        counts[kind] += abs(missing)
        kinds[kind].append(f"  {entry.key}: {text}")
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    lines = [
        f"{target!r} does not have each record of {source!r} exactly once: {'' if complete else 'at least '}{summary} "
        f"({sums.inputs} records in the input, {sums.outputs} in the output)"
    ]
    for kind, of_kind in kinds.items():
        if of_kind:
            lines += [f"{kind}:", *of_kind[:SHOWN]]
            lines += [f"  ... and {len(of_kind) - SHOWN} more"] if len(of_kind) > SHOWN else []
    if not complete:
        lines.append(f"More records differ than were compared: the comparison keeps about {MAX_KEPT} in memory.")
    return "\n".join(lines)


def _places(topic: str, places: list[Place]) -> str:
    """Return places as "words-0 at offsets 4, 7, words-1 at offset 2"."""
    by_partition: dict[int, list[int]] = {}
    for partition, offset in sorted(places):
        by_partition.setdefault(partition, []).append(offset)
    parts = []
    for partition, offsets in by_partition.items():
        shown = first_named(offsets, len(offsets), SHOWN)
        parts.append(f"{topic}-{partition} at offset{'s' if len(offsets) > 1 else ''} {shown}")
    return ", ".join(parts)
