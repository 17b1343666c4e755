"""Settings of the group coordinator."""

from __future__ import annotations

from dataclasses import dataclass

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long a member that has never been in a generation may wait before it has to join again (KAFKA-7610)."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The `group.*` and `offsets.*` settings of a broker. Times are in ms.

    The defaults are Kafka's, except for the initial rebalance delay.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 0
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    retention_check_interval_ms: int = 600_000
