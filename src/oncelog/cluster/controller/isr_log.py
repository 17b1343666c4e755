"""Describe changes of the in-sync replicas and leaders in one line for all partitions. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import NamedTuple

from oncelog.cluster.image import MetadataImage
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.state_writes import StateWrite
from oncelog.cluster.topics import NO_LEADER
from oncelog.protocol.texts import NAMED, first_named


class IsrChange(NamedTuple):
    """The in-sync replicas of a partition before and after a change."""

    partition: str
    before: frozenset[int]
    after: frozenset[int]


class UncleanElection(NamedTuple):
    """A partition whose new leader was not in sync."""

    partition: str
    leader: int
    former_isr: tuple[int, ...]


class Stuck(NamedTuple):
    """A partition without a leader, because its complete replicas do not run, and running ones lack records."""

    partition: str
    damaged: tuple[int, ...]
    missing: tuple[int, ...]
    """The brokers with complete replicas."""


def isr_summary(changes: Iterable[IsrChange]) -> str:
    """Return whose in-sync replicas each broker has left or joined, and the partitions that have the fewest now."""
    left: Counter[int] = Counter()
    joined: Counter[int] = Counter()
    newest: dict[str, frozenset[int]] = {}
    for partition, before, after in changes:
        left.update(before - after)
        joined.update(after - before)
        newest[partition] = after
    parts = [f"broker {broker} has left those of {_count(left[broker])}" for broker in sorted(left)]
    parts += [f"broker {broker} has joined those of {_count(joined[broker])}" for broker in sorted(joined)]
    fewest = nsmallest(NAMED, newest.items(), key=lambda item: len(item[1]))
    named = first_named((f"{partition}: {_brokers(isr)}" for partition, isr in fewest), len(newest), separator="; ")
    return f"{'; '.join(parts) or 'no broker has left or joined'}. Partitions with the fewest: {named}"


def unclean_elections(before: MetadataImage, writes: Iterable[StateWrite]) -> list[UncleanElection]:
    """Return the writes that elect a leader outside the former in-sync replicas. `before` is the image they change."""
    found = []
    for write in writes:
        info = before.partition(write.topic, write.partition)
        if info is not None and write.state.leader not in (NO_LEADER, *info.complete):
            found.append(UncleanElection(f"{write.topic}-{write.partition}", write.state.leader, info.isr))
    return found


def unclean_summary(elections: Sequence[UncleanElection]) -> str:
    """Return a warning about elections that may have lost acknowledged records."""
    named = first_named(
        (f"{partition}: broker {leader} (in sync before: {_brokers(isr)})" for partition, leader, isr in elections),
        len(elections),
        separator="; ",
    )
    return (
        f"unclean election of leaders for {_count(len(elections))}: acknowledged records that the new leader lacks are "
        f"lost. {named}"
    )


def stuck_partitions(image: MetadataImage) -> list[Stuck]:
    """Return the partitions that wait for brokers with complete replicas, although a member of the ISR runs."""
    found = []
    for topic in image.topics():
        for index, info in enumerate(topic.partitions):
            if info.leader == NO_LEADER:
                missing = tuple(broker for broker in info.complete if broker not in image.brokers)
                running = [(broker, image.brokers[broker]) for broker in info.complete if broker not in missing]
                damaged = tuple(broker for broker, each in running if each.is_unfit(topic.name, index))
                if damaged and missing:
                    found.append(Stuck(f"{topic.name}-{index}", damaged, missing))
    return found


def stuck_summary(partitions: Sequence[Stuck]) -> str:
    """Return a warning about partitions that have no leader, with what to do."""
    named = first_named(
        (
            f"{partition}: broker {_brokers(damaged)} lacks records, broker {_brokers(missing)} has all"
            for partition, damaged, missing in partitions
        ),
        len(partitions),
        separator="; ",
    )
    brokers = _brokers({broker for each in partitions for broker in each.missing})
    topic = partitions[0].partition.rpartition("-")[0]
    return (
        f"no leader for {_count(len(partitions))}, because the complete replicas are not running: {named}. "
        f"Start these brokers: {brokers}. If they are lost for good, accept the loss of records with: "
        f"oncelog topic alter {topic} --config unclean.leader.election.enable=true"
    )


def election_summary(before: MetadataImage, writes: Iterable[StateWrite]) -> str:
    """Return what writes of the controller have changed. `before` is the image they change."""
    leaders: Counter[int] = Counter()
    leaderless, others = [], 0
    for write in writes:
        info = before.partition(write.topic, write.partition)
        state: PartitionState = write.state
        if state.leader == NO_LEADER:
            leaderless.append(f"{write.topic}-{write.partition}")
        elif info is None or info.leader_epoch != state.leader_epoch:
            leaders[state.leader] += 1
        else:
            others += 1
    parts = [f"elected broker {broker} for {_count(leaders[broker])}" for broker in sorted(leaders)]
    if leaderless:
        parts.append(f"{_count(len(leaderless))} without a leader ({first_named(leaderless, len(leaderless))})")
    if others:
        parts.append(f"removed members from the in-sync replicas of {_count(others)}")
    return "the controller has changed partitions: " + "; ".join(parts)


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _brokers(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers))) or "none"
