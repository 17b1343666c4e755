"""What a coordinator wants done: values, never I/O.

A coordinator's handler reads its state and returns `Effects`. The shell around it (`broker.coordinators`) appends the
records as one batch, replays each into the same coordinator (the only way its durable state changes, so that loading a
partition and serving a request go the same way), waits until they are committed, and only then delivers the
replies and starts the markers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oncelog.protocol.schema import Message


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """Hold one record of an internal topic; `value` is None for a tombstone.

    The versions are those of Kafka's record layouts. The encoder writes them as int16 before key and value.
    """

    key: Message
    key_version: int
    value: Message | None
    value_version: int = 0
    replayed: Callable[[], None] | None = field(default=None, compare=False, repr=False)
    """What the coordinator does when the record is replayed; None if the record is replayed from its content."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the request that came in with `token` (opaque to the coordinator)."""

    token: Any
    response: Any


@dataclass(frozen=True, slots=True)
class Markers:
    """Control markers to write to the end of each (topic, partition); retried by the shell until all are written.

    The shell reports back through the transaction coordinator's `markers_written`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Effects:
    """In this order: append and replay `records`; once committed deliver `replies`, then start `markers`."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    markers: list[Markers] = field(default_factory=list)

    def then(self, other: Effects) -> Effects:
        """Both, this one first."""
        return Effects(self.records + other.records, self.replies + other.replies, self.markers + other.markers)
