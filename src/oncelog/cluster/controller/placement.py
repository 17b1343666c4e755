"""Assign the replicas of new partitions to brokers, spread over racks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from oncelog.protocol.errors import ErrorCode, ProtocolError


def place(
    partitions: int, replication_factor: int, racks: Mapping[int, str | None], *, first: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of each new partition; the first replica is the preferred leader.

    `racks` has the rack of each broker that may get replicas, or None. `first` is the number of the first new
    partition. Leaders go round robin over the brokers, alternating between racks. Each further replica goes to a rack
    that the partition does not use yet, and there to the broker with the fewest new replicas. Raises
    INVALID_REPLICATION_FACTOR if there are too few brokers.
    """
    if not 1 <= replication_factor <= len(racks):
        message = f"replication factor {replication_factor} is not in 1..{len(racks)}, the number of live brokers"
        raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    order = _alternating(racks)
    place_of = {broker: slot for slot, broker in enumerate(order)}
    leaders = [order[number % len(order)] for number in range(first, first + partitions)]
    loads = Counter(leaders)
    placed = []
    for leader in leaders:
        chosen = [leader]
        used = {_rack(racks, leader)}
        while len(chosen) < replication_factor:
            left = [broker for broker in order if broker not in chosen]
            candidates = [broker for broker in left if _rack(racks, broker) not in used] or left
            start = place_of[leader] + 1
            broker = min(candidates, key=lambda other: (loads[other], (place_of[other] - start) % len(order)))
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
