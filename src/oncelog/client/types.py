"""Types that all clients share, and the sink's commit protocol with them: nothing here reaches for the world."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

TopicPartition = tuple[str, int]
Headers = Sequence[tuple[str, bytes | None]]


class Marker(StrEnum):
    """What the first control marker of a producer behind an offset says."""

    COMMIT = "commit"
    ABORT = "abort"
    MISSING = "missing"
    """There is none, and waiting did not bring it."""
    GONE = "gone"
    """The log begins behind that offset (retention, DeleteRecords, topic deleted)."""


class Place(NamedTuple):
    """Where a producer's marker is looked for: the first one behind `after`."""

    at: TopicPartition
    producer_id: int
    after: int
