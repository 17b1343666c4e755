"""What was read from a cluster, with the time of each reading. No I/O.

A `Picture` is everything that is known at the end of a turn. Some of it is older than the turn: `turns` says when each
part is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from oncelog.client.admin.transactions import TransactionInfo
from oncelog.client.discovery.topology import Topic
from oncelog.protocol.topics import TopicPartition

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States of a transactional id that has an open transaction, at least in one of its partitions."""
WITHOUT_OFFSETS = frozenset({"Share"})
"""Types of groups that have no committed offsets."""


class Ends(NamedTuple):
    """The ends of a partition's log for the two isolation levels."""

    high_watermark: int
    last_stable_offset: int


class PartitionReading(NamedTuple):
    """The offsets of a partition, and the bytes of its log on the leader (None if unknown).

    `at` is the time in seconds of a monotonic clock.
    """

    at: float
    high_watermark: int
    last_stable_offset: int
    size_bytes: int | None = None


class PartitionReadings(NamedTuple):
    """The last reading of a partition, and the one before it, which gives a rate."""

    newest: PartitionReading
    before: PartitionReading | None = None


class Holder(NamedTuple):
    """The producer whose transaction is open at the last stable offset, and since when the reader has known it.

    `last_timestamp` is in ms since the epoch, `since` in seconds of a monotonic clock.
    """

    producer_id: int
    producer_epoch: int
    last_timestamp: int
    since: float = 0.0


class WatchedGroup(NamedTuple):
    """A group in the coordinators' lists. `coordinator` is a node id, `protocol_type` such as "consumer" or ""."""

    group_id: str
    type: str
    state: str
    coordinator: int
    protocol_type: str = ""


class Lag(NamedTuple):
    """The lag of a group: the sum over the partitions that it has committed offsets of.

    `stable` counts to the last stable offsets, `high_watermark` to the high watermarks. Both are None if no end is
    known, or no offset committed. `uncounted` is the number of partitions whose end is unknown.
    """

    stable: int | None
    high_watermark: int | None
    uncounted: int = 0


class GroupReading(NamedTuple):
    """The lag of a group at a time (monotonic seconds), and the number of partitions that it has offsets of.

    Both are None if the committed offsets are unknown. Then `problem` says why.
    """

    at: float
    lag: Lag | None
    partitions: int | None
    problem: str = ""


class GroupReadings(NamedTuple):
    """The last reading of a group, and the one before it."""

    newest: GroupReading
    before: GroupReading | None = None


class WatchedTransaction(NamedTuple):
    """An open transaction, as its coordinator knows it.

    `started_ms` is in ms since the epoch. `started_ms`, `timeout_ms`, `partitions` and `producer_epoch` are None before
    the transaction was described, or if the client may not describe it.
    """

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int
    producer_epoch: int | None = None
    started_ms: int | None = None
    timeout_ms: int | None = None
    partitions: tuple[TopicPartition, ...] | None = None


def watched(info: TransactionInfo) -> WatchedTransaction:
    """Return a transaction that was described alone."""
    started_ms = info.start_time if info.start_time >= 0 else None
    of_it = info.producer_epoch, started_ms, info.timeout_ms, tuple(info.partitions)
    return WatchedTransaction(info.transactional_id, info.state, info.producer_id, info.coordinator, *of_it)


class WatchedBroker(NamedTuple):
    """A running broker of the cluster."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Trouble(NamedTuple):
    """Why a part of the picture is old or missing. `node` is the broker that did not answer, or None."""

    about: str
    text: str
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests that the last turn sent, by name of the API, and the number of all requests since the start."""

    turn: Mapping[str, int] = field(default_factory=dict)
    total: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """A cluster, as it was read. The mappings do not change while the reader waits for its next turn."""

    at: float
    """The end of the turn, in seconds of a monotonic clock."""
    time_ms: int
    """The same in ms since the epoch."""
    reachable: bool
    """Whether a broker answered in this turn. If not, everything is as it was read before."""
    cluster_id: str
    controller: int
    brokers: Mapping[int, WatchedBroker]
    topics: Mapping[str, Topic]
    partitions: Mapping[TopicPartition, PartitionReadings]
    unanswered: Mapping[TopicPartition, str]
    """Partition -> why its last request had no result."""
    holders: Mapping[TopicPartition, Holder]
    """The partitions whose last stable offset is held back, and by which producer."""
    groups: Mapping[str, WatchedGroup]
    group_readings: Mapping[str, GroupReadings]
    transactions: tuple[WatchedTransaction, ...]
    all_transactions_known: bool
    """Whether the coordinators' lists have all transactions of the holders: all coordinators were online and answered,
    and the client may see all ids.
    """
    listed_at: float
    """When the coordinators were asked for their lists, in seconds of a monotonic clock."""
    troubles: tuple[Trouble, ...]
    requests: Requests
