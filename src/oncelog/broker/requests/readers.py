"""What the lag of a group depends on: where the readable records of a partition end, and which consumers read.

A broker answers this to the other brokers of its cluster, in ListOffsets with `readable_ends`. No request of a consumer
names both a group and an isolation level: OffsetCommit and JoinGroup name the group, Fetch names the level. All of them
have the client id, and come from the same host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oncelog.broker.turns import in_turns
from oncelog.cluster.replica import Replica
from oncelog.log.steps import Steps
from oncelog.net.session import Session
from oncelog.protocol.messages.list_offsets import PartitionReader, ReadableEnds

MOST_READERS = 10_000
"""Consumers that one response names."""
STEPS_A_TURN = 10
"""Steps of a search for the last readable record before other requests have their turn."""

Sessions = Callable[[], Iterator[Session]]


async def readable_ends(replica: Replica) -> ReadableEnds:
    """Return the ends of the records that consumers can read from a leader now. Raises ProtocolError."""
    log = replica.log
    committed = await in_turns(log.readable_end(committed=True), STEPS_A_TURN)
    uncommitted = await in_turns(log.readable_end(committed=False), STEPS_A_TURN)
    return ReadableEnds(uncommitted=max(uncommitted, committed), committed=committed)


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
