"""Types that all clients share."""

from __future__ import annotations

from collections.abc import Sequence

TopicPartition = tuple[str, int]
Headers = Sequence[tuple[str, bytes | None]]
