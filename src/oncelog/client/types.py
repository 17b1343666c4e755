"""Types that all clients and the sink's commit protocol share. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

TopicPartition = tuple[str, int]
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
