"""Types that all clients and the sink's commit protocol share. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from oncelog.client.notebooks import in_notebooks
from oncelog.protocol.topics import TopicPartition

Headers = Sequence[tuple[str, bytes | None]]


class Marker(StrEnum):
    """The first control marker of a producer after an offset."""

    COMMIT = "commit"
    ABORT = "abort"
    MISSING = "missing"
    """No marker was found, even after the wait."""
    GONE = "gone"
    """The log begins after that offset (retention, DeleteRecords, topic deleted)."""


class Place(NamedTuple):
    """Where to look for the marker of a producer: the first one after `after`."""

    at: TopicPartition
    producer_id: int
    after: int


@in_notebooks()
class ConsumerRecord(NamedTuple):
    """A record that a consumer has read. Key and value are bytes or None, unless the consumer has deserializers.

    `timestamp` is in ms since the epoch. `timestamp_type` is 0 if the producer has set it (create time), 1 if the
    broker has (log append time). `leader_epoch` is the epoch of the leader that wrote the record, -1 if unknown.
    `headers` are pairs (name, value). A value is bytes or None.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_type: int = 0
    leader_epoch: int = -1
