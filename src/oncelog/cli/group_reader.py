"""Reads a topic as a member of a group, for `oncelog topic consume --group`."""

from __future__ import annotations

from collections.abc import Callable

from oncelog import Consumer
from oncelog.cli.common import open_admin
from oncelog.cli.tokens import Shown

POLL_S = 1.0


def read_as_member(
    bootstrap: str,
    group: str,
    topic: str,
    emit: Callable[[Shown], None],
    reset: str,
    count: int | None,
    stop_at_end: bool,
    read_committed: bool,
) -> None:
    """Prints what the group has not consumed yet; an offset is committed once its record has been printed.

    Positions are committed, not records: behind the last record of a transaction they pass its marker: no lag is left.
    """
    with open_admin(bootstrap) as admin:
        admin.describe_topics(topic)  # a group waits for a topic that is to come; who mistyped it, does not
    isolation = "read_committed" if read_committed else "read_uncommitted"
    with Consumer(
        bootstrap,
        client_id="oncelog-cli",
        group_id=group,
        auto_offset_reset=reset,
        isolation_level=isolation,
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        ends: dict[tuple[str, int], int] = {}
        committed: dict[tuple[str, int], int] = {}
        left = count
        done = False
        while not done:
            for record in (records := consumer.poll(POLL_S, left)):
                emit(Shown(*record))
            if left is not None:
                left -= len(records)
            done = left == 0 or (stop_at_end and _at_end(consumer, ends))
            # At 0 nothing was consumed, and the group has nothing to say of that partition.
            positions = {tp: position for tp, position in consumer.positions().items() if position}
            if positions != committed:
                consumer.commit(positions)
                committed = positions


def _at_end(consumer: Consumer, ends: dict[tuple[str, int], int]) -> bool:
    """Whether all assigned partitions have been read up to where they ended when they were assigned."""
    assigned = consumer.assignment()
    new = [tp for tp in assigned if tp not in ends]
    if new:
        ends.update(consumer.end_offsets(new))
    return bool(assigned) and all(consumer.position(*tp) >= ends[tp] for tp in assigned)
