"""Choose the replica from which a consumer should read (KIP-392). Source: Kafka's `RackAwareReplicaSelector`."""

from __future__ import annotations

from collections.abc import Mapping

from oncelog.cluster.leader import Leadership


def nearest_replica(term: Leadership, offset: int, rack: str, racks: Mapping[int, str | None]) -> int | None:
    """Return the follower in the client's rack that has the offset and the most records, or None for the leader.

    `racks` has the brokers that the client can reach. Only in-sync replicas count: another follower may stop fetching,
    and its consumers would never catch up.
    """
    if racks.get(term.broker) == rack:
        return None
    followers = (term.follower(broker) for broker in term.isr if racks.get(broker) == rack)
    able = [each for each in followers if each is not None and each.log_start <= offset <= each.log_end]
    nearest = max(able, key=lambda each: (each.log_end, each.caught_up_ms, each.broker), default=None)
    return None if nearest is None else nearest.broker
