"""Assign the replicas of new partitions to brokers, spread over racks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from oncelog.protocol.errors import ErrorCode, ProtocolError


def place(
    partitions: int,
    replication_factor: int,
    racks: Mapping[int, str | None],
    *,
    down: Mapping[int, str | None] | None = None,
    first: int = 0,
) -> list[tuple[int, ...]]:
    """Return the replicas of each new partition; the first replica is the preferred leader.

    `racks` has the rack of each running broker, or None, and `down` those of the other registered brokers. `first` is
    the number of the first new partition. Leaders go round robin over the running brokers, alternating between racks.
    Each further replica goes to a rack that the partition does not use yet. Within it, a running broker comes first,
    then the broker with the fewest new replicas. Raises INVALID_REPLICATION_FACTOR if there are too few brokers.
    Source: Kafka's `StripedReplicaPlacer`, whose fenced brokers are those of `down`.
    """
    running, racks = racks, {**(down or {}), **racks}
    if not 1 <= replication_factor <= len(racks):
        bound = (
            f"higher than {len(racks)}, the number of registered brokers" if replication_factor > 0 else "less than 1"
        )
        message = f"replication factor {replication_factor} is {bound}"
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if not running:
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, "no broker of the cluster is registered and running")
    order = _alternating(racks)
    place_of = {broker: slot for slot, broker in enumerate(order)}
    leading = [broker for broker in order if broker in running]
    leaders = [leading[number % len(leading)] for number in range(first, first + partitions)]
    loads = Counter(leaders)
    placed = []
    for leader in leaders:
        chosen = [leader]
        used = {_rack(racks, leader)}
        while len(chosen) < replication_factor:
            left = [broker for broker in order if broker not in chosen]
            candidates = [broker for broker in left if _rack(racks, broker) not in used] or left
            start = place_of[leader] + 1
            broker = min(
                candidates,
                key=lambda other: (other not in running, loads[other], (place_of[other] - start) % len(order)),
            )
            chosen.append(broker)
            used.add(_rack(racks, broker))
            loads[broker] += 1
        placed.append(tuple(chosen))
    return placed


def _rack(racks: Mapping[int, str | None], broker: int) -> str | int:
    """Return the rack of a broker. A broker without one is a rack of its own."""
    rack = racks[broker]
    return broker if rack is None else rack


def _alternating(racks: Mapping[int, str | None]) -> list[int]:
    """Return all brokers in an order in which neighbours are in different racks, if possible."""
    by_rack: dict[str | int, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(_rack(racks, broker), []).append(broker)
    rows = sorted(by_rack.values(), key=lambda brokers: (-len(brokers), brokers))
    return [brokers[turn] for turn in range(len(rows[0])) for brokers in rows if turn < len(brokers)]
