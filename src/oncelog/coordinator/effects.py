"""The effects of a coordinator's decisions, as values without I/O.

A coordinator's handler reads its state and returns `Effects`. The shell (`broker.coordinators`) appends the records as
one batch, and replays each into the same coordinator. Replay is the only way to change durable state, so loading a
partition and serving a request do the same. The shell waits until the records are committed. Then it delivers the
replies, and starts the markers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oncelog.protocol.schema import Message
from oncelog.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """Hold one record of an internal topic; `value` is None for a tombstone.

    The versions are those of Kafka's record layouts. The encoder writes them as int16 before key and value.
    """

    key: Message
    key_version: int
    value: Message | None
    value_version: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The response to the request with this `token`, which is opaque to the coordinator."""

    token: Any
    response: Any


@dataclass(frozen=True, slots=True)
class Markers:
    """Control markers to write to each (topic, partition). The shell retries until all are written.

    The shell reports the results to the transaction coordinator's `markers_written`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True)
class Effects:
    """Append and replay `records`. After they are committed, deliver `replies`, then start `markers`.

    If the append fails, each reply becomes an error, and the durable state stays as it was.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    markers: list[Markers] = field(default_factory=list)
    whole: bool = False
    """The log must have all records or none: they must fit into one batch (RECORD_LIST_TOO_LARGE)."""

    def then(self, other: Effects) -> Effects:
        """Return the effects of both, this one first."""
        return Effects(
            self.records + other.records,
            self.replies + other.replies,
            self.markers + other.markers,
            self.whole or other.whole,
        )
