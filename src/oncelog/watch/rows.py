"""Compute what people look at from a `Picture`: topics by rate, groups by lag, transactions by age, brokers. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from oncelog.client.admin.transactions import MAX_TRANSACTION_TIMEOUT_MS
from oncelog.client.discovery.topology import Topic
from oncelog.protocol.topics import TopicPartition
from oncelog.watch.readings import (
    Ends,
    GroupReadings,
    Lag,
    PartitionReading,
    PartitionReadings,
    Picture,
    WatchedTransaction,
)

HANGING = "Hanging"
"""The state of a transaction that no coordinator will end. It is not one of Kafka's states."""


class TopicRow(NamedTuple):
    """A topic with its rates. A rate is None before the second reading, and for bytes also if sizes are unknown.

    `records_per_s` counts offsets, so it includes the markers of transactions. `lso_distance` is the sum of the offsets
    from the last stable offset to the high watermark. `held_by` is the transactional id (or "producer id N") that
    holds the last stable offset back, in the partition where it holds back most. `offline` counts partitions without a
    leader, `unread` those without any reading. `problem` is the reason of a partition that did not answer, or "".
    """

    topic: str
    internal: bool
    partitions: int
    records_per_s: float | None
    bytes_per_s: float | None
    size_bytes: int | None
    lso_distance: int
    held_by: str | None
    hanging: bool
    offline: int
    unread: int
    problem: str


class GroupRow(NamedTuple):
    """A group with its lag: the sum over the partitions that it has committed offsets of.

    `lag` counts to the last stable offset, `lag_to_high_watermark` to the high watermark: they differ while a
    transaction is open. Both include the markers of transactions. `lag_per_s` is the change of `lag`. All are None if
    they are unknown. `uncounted` is the number of partitions whose end is unknown.
    """

    group: str
    type: str
    state: str
    coordinator: int
    lag: int | None
    lag_to_high_watermark: int | None
    lag_per_s: float | None
    partitions: int | None
    uncounted: int
    problem: str


class TransactionRow(NamedTuple):
    """An open transaction. `holds_back` are the partitions whose last stable offset it holds back.

    `transactional_id` is None for a transaction that hangs or that the client may not see. `partitions` is the number
    of its partitions, None if unknown.
    """

    transactional_id: str | None
    producer_id: int
    state: str
    age_ms: int | None
    timeout_ms: int | None
    coordinator: int | None
    partitions: int | None
    holds_back: list[str]
    hanging: bool


class BrokerRow(NamedTuple):
    """A broker. `running` is false for one that has replicas, but is not in the cluster.

    `under_replicated` counts the partitions that it leads and of which a replica is not in sync (Kafka's gauge
    UnderReplicatedPartitions). `out_of_sync` counts its own replicas that are not in sync. `records_per_s` and
    `bytes_per_s` are sums over the partitions that it leads, as in `TopicRow`: None if none was read twice. `problem`
    says why it did not answer in the last turn.
    """

    broker: int
    host: str | None
    port: int | None
    rack: str | None
    controller: bool
    running: bool
    leaders: int
    replicas: int
    under_replicated: int
    out_of_sync: int
    records_per_s: float | None
    bytes_per_s: float | None
    problem: str


# -- topics -------------------------------------------------------------------------------------------------------


def _rate(readings: PartitionReadings) -> float | None:
    """Return records per second. None before the second reading, and if the partition was created again."""
    new, old = readings
    if old is None or new.at <= old.at or new.high_watermark < old.high_watermark:
        return None
    return (new.high_watermark - old.high_watermark) / (new.at - old.at)


def _byte_rate(readings: PartitionReadings) -> float | None:
    """Return bytes per second. None also if the size shrank, because old segments were deleted."""
    new, old = readings
    if old is None or new.at <= old.at or new.size_bytes is None or old.size_bytes is None:
        return None
    if new.size_bytes < old.size_bytes:
        return None
    return (new.size_bytes - old.size_bytes) / (new.at - old.at)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values, or None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def distance(reading: PartitionReading) -> int:
    """Return the number of offsets between the last stable offset and the high watermark."""
    return max(0, reading.high_watermark - reading.last_stable_offset)


def topic_rows(picture: Picture, hanging_after_ms: int = MAX_TRANSACTION_TIMEOUT_MS) -> list[TopicRow]:
    """Return all topics, the busiest first. Of topics without traffic, those whose LSO is held back come first."""
    names = {item.producer_id: item.transactional_id for item in picture.transactions}
    stuck = {tp for row in transaction_rows(picture, hanging_after_ms) if row.hanging for tp in row.holds_back}
    rows = []
    for name, topic in picture.topics.items():
        all_of = [(name, index) for index in topic.partitions]
        read = {tp: picture.partitions[tp] for tp in all_of if tp in picture.partitions}
        answered = [each for tp, each in read.items() if tp not in picture.unanswered]
        held = {tp: distance(each.newest) for tp, each in read.items() if distance(each.newest)}
        most = max(held, key=lambda tp: held[tp]) if held else None
        holder = picture.holders.get(most) if most is not None else None
        size = _sum(each.newest.size_bytes for each in read.values())
        rows.append(
            TopicRow(
                topic=name,
                internal=topic.internal,
                partitions=len(all_of),
                records_per_s=_sum(map(_rate, answered)),
                bytes_per_s=_sum(map(_byte_rate, answered)),
                size_bytes=None if size is None else int(size),
                lso_distance=sum(held.values()),
                held_by=None if holder is None else names.get(holder.producer_id, f"producer id {holder.producer_id}"),
                hanging=any(text(tp) in stuck for tp in held),
                offline=sum(each.leader < 0 for each in topic.partitions.values()),
                unread=len(all_of) - len(read),
                problem=next((picture.unanswered[tp] for tp in all_of if tp in picture.unanswered), ""),
            )
        )
    return sorted(rows, key=lambda row: (-(row.records_per_s or 0.0), -row.lso_distance, row.internal, row.topic))


# -- groups -------------------------------------------------------------------------------------------------------


def lag_of(committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, Ends | PartitionReading]) -> Lag:
    """Return the lag of committed offsets.

    The ends may be older than the offsets: then a lag below 0 counts as 0.
    """
    known = [(offset, ends[tp]) for tp, offset in committed.items() if tp in ends]
    uncounted = len(committed) - len(known)
    if not known:
        return Lag(None, None, uncounted)
    return Lag(
        sum(max(0, end.last_stable_offset - offset) for offset, end in known),
        sum(max(0, end.high_watermark - offset) for offset, end in known),
        uncounted,
    )


def _lag_rate(readings: GroupReadings) -> float | None:
    """Return the change of the lag per second. None before the second reading."""
    new, old = readings
    if old is None or new.at <= old.at or new.lag is None or old.lag is None:
        return None
    if new.lag.stable is None or old.lag.stable is None:
        return None
    return (new.lag.stable - old.lag.stable) / (new.at - old.at)


def group_rows(picture: Picture) -> list[GroupRow]:
    """Return the groups whose offsets were read, the largest lag first. Groups with an unknown lag come last."""
    rows = []
    for name, readings in picture.group_readings.items():
        group = picture.groups.get(name)
        if group is None:
            continue
        newest = readings.newest
        lag = newest.lag or Lag(None, None)
        rows.append(
            GroupRow(
                group=name,
                type=group.type,
                state=group.state,
                coordinator=group.coordinator,
                lag=lag.stable,
                lag_to_high_watermark=lag.high_watermark,
                lag_per_s=_lag_rate(readings),
                partitions=newest.partitions,
                uncounted=lag.uncounted,
                problem=newest.problem,
            )
        )
    return sorted(rows, key=lambda row: (row.lag is None, -(row.lag or 0), row.group))


# -- transactions -------------------------------------------------------------------------------------------------


def text(tp: TopicPartition) -> str:
    """Return a partition as people write it."""
    return f"{tp[0]}-{tp[1]}"


def transaction_rows(picture: Picture, hanging_after_ms: int = MAX_TRANSACTION_TIMEOUT_MS) -> list[TransactionRow]:
    """Return the open transactions: hanging ones first, then the oldest. Those with an unknown age come last.

    A transaction hangs if it is open in a partition, no coordinator will end it there, and it is older than
    `hanging_after_ms` (KIP-664). The reader finds only those that hold a last stable offset back.
    """
    held: dict[int, list[TopicPartition]] = {}
    for tp, holder in picture.holders.items():
        held.setdefault(holder.producer_id, []).append(tp)
    rows = []
    for item in picture.transactions:
        mine = held.get(item.producer_id, [])
        here = [tp for tp in mine if item.partitions is None or tp in item.partitions]
        rows.append(
            TransactionRow(
                transactional_id=item.transactional_id,
                producer_id=item.producer_id,
                state=item.state,
                age_ms=None if item.started_ms is None else max(0, picture.time_ms - item.started_ms),
                timeout_ms=item.timeout_ms,
                coordinator=item.coordinator,
                partitions=None if item.partitions is None else len(item.partitions),
                holds_back=sorted(map(text, here)),
                hanging=False,
            )
        )
    rows += _uncoordinated(picture, held, hanging_after_ms)
    return sorted(rows, key=lambda row: (not row.hanging, row.age_ms is None, -(row.age_ms or 0), row.producer_id))


def _uncoordinated(
    picture: Picture, held: dict[int, list[TopicPartition]], hanging_after_ms: int
) -> Iterable[TransactionRow]:
    """Yield a row for each producer that is open in partitions where no coordinator is known to end it."""
    known = {item.producer_id: item for item in picture.transactions}
    for producer_id, mine in held.items():
        listed = known.get(producer_id)
        alone = [tp for tp in mine if not will_end(listed, tp)]
        if not alone:
            continue
        written = max(picture.holders[tp].last_timestamp for tp in alone)
        age_ms = max(0, picture.time_ms - written) if written >= 0 else None
        # A list that is older than the transaction's begin cannot have it.
        complete = picture.all_transactions_known and all(picture.holders[tp].since < picture.listed_at for tp in alone)
        hangs = complete and age_ms is not None and age_ms > hanging_after_ms
        yield TransactionRow(
            transactional_id=None,
            producer_id=producer_id,
            state=HANGING if hangs else "unknown",
            age_ms=age_ms,
            timeout_ms=None,
            coordinator=None,
            partitions=len(alone),
            holds_back=sorted(map(text, alone)),
            hanging=hangs,
        )


def will_end(listed: WatchedTransaction | None, tp: TopicPartition) -> bool:
    """Return whether a coordinator lists the transaction. If it was described, it must have the partition."""
    return listed is not None and (listed.partitions is None or tp in listed.partitions)


# -- brokers ------------------------------------------------------------------------------------------------------


class ReplicaCounts(NamedTuple):
    """Numbers of partitions by node id: led, with a replica there, and with a replica there that is not in sync.

    `under_replicated` counts the partitions with a replica that is not in sync, by their leaders.
    """

    leaders: Counter[int]
    replicas: Counter[int]
    under_replicated: Counter[int]
    out_of_sync: Counter[int]


def replica_counts(topics: Mapping[str, Topic]) -> ReplicaCounts:
    """Count the partitions of all topics."""
    found = ReplicaCounts(Counter(), Counter(), Counter(), Counter())
    for topic in topics.values():
        for each in topic.partitions.values():
            found.leaders[each.leader] += 1
            found.replicas.update(each.replicas)
            found.out_of_sync.update(set(each.replicas).difference(each.isr))
            found.under_replicated[each.leader] += len(each.isr) < len(each.replicas)
    return found


class Traffic(NamedTuple):
    """What the partitions that a broker leads get per second, as in `TopicRow`. None if none was read twice."""

    records_per_s: float | None = None
    bytes_per_s: float | None = None


def traffic_of(picture: Picture) -> Mapping[int, Traffic]:
    """Return the traffic by node id. Brokers of which nothing was read have a `Traffic` without numbers."""
    read: dict[int, list[PartitionReadings]] = {}
    for (name, index), each in picture.partitions.items():
        if (name, index) not in picture.unanswered and name in picture.topics:
            read.setdefault(picture.topics[name].partitions[index].leader, []).append(each)
    found = {node: Traffic(_sum(map(_rate, some)), _sum(map(_byte_rate, some))) for node, some in read.items()}
    return defaultdict(Traffic, found)


def broker_rows(picture: Picture) -> list[BrokerRow]:
    """Return the brokers by node id, also those that have replicas but do not run."""
    counts = replica_counts(picture.topics)
    silent = {trouble.node: trouble.text for trouble in picture.troubles if trouble.node is not None}
    traffic = traffic_of(picture)
    rows = []
    for node in sorted(picture.brokers.keys() | counts.replicas.keys()):
        known = picture.brokers.get(node)
        rows.append(
            BrokerRow(
                broker=node,
                host=known and known.host,
                port=known and known.port,
                rack=known and known.rack,
                controller=node == picture.controller,
                running=known is not None,
                leaders=counts.leaders[node],
                replicas=counts.replicas[node],
                under_replicated=counts.under_replicated[node],
                out_of_sync=counts.out_of_sync[node],
                records_per_s=traffic[node].records_per_s,
                bytes_per_s=traffic[node].bytes_per_s,
                problem=silent.get(node, ""),
            )
        )
    return rows
