"""What the lag of a group depends on: where the readable records of a partition end, and which consumers read.

A broker answers this to the other brokers of its cluster, in ListOffsets with `readable_ends`. No request of a consumer
names both a group and an isolation level: OffsetCommit and JoinGroup name the group, Fetch names the level. All of them
have the client id, and come from the same host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oncelog.broker.turns import Yielder
from oncelog.cluster.replica import Replica
from oncelog.log.steps import Steps
from oncelog.net.session import Session
from oncelog.protocol.messages.list_offsets import PartitionReader, ReadableEnds

MOST_READERS = 10_000
"""Consumers that one response names."""
STEPS_A_TURN = 40
"""Steps of searches for the last readable records before other requests have their turn, within a few ms."""

Sessions = Callable[[], Iterator[Session]]


async def readable_ends(replica: Replica, turns: Yielder) -> ReadableEnds:
    """Return the ends of the records that consumers can read from a leader now. Raises ProtocolError.

    `turns` counts the steps of all partitions of a request.
    """
    committed = await readable_end(replica, turns, committed=True)
    uncommitted = await readable_end(replica, turns, committed=False)
    return ReadableEnds(uncommitted=max(uncommitted, committed), committed=committed)


async def readable_end(replica: Replica, turns: Yielder, *, committed: bool) -> int:
    """Return the result of `Log.readable_end`."""
    search = replica.log.readable_end(committed=committed)
    while True:
        await turns.next()
        try:
            next(search)
        except StopIteration as done:
            found: int = done.value
            return found


def readers_of(sessions: Iterator[Session]) -> Steps[list[PartitionReader]]:
    """Return the consumers that have connections, at most MOST_READERS, with a pause after each connection."""
    found: set[tuple[str, str, int]] = set()
    for session in sessions:
        if session.isolation_level >= 0 and not session.gone:
            found.add((session.client_id, session.host, session.isolation_level))
            if len(found) == MOST_READERS:
                break
        yield
    return [PartitionReader(client_id=client, host=host, isolation_level=level) for client, host, level in found]
