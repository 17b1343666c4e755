"""Reads a topic as a member of a group, for `oncelog topic consume --group`."""

from __future__ import annotations

from collections.abc import Callable

import click

from oncelog import Consumer
from oncelog.cli.reader import BEGINNING, END, Start
from oncelog.cli.tokens import Shown

POLL_S = 1.0
RESETS = {BEGINNING: "earliest", END: "latest"}


def read_as_member(
    bootstrap: str,
    group: str,
    topic: str,
    emit: Callable[[Shown], None],
    start: Start,
    count: int | None,
    stop_at_end: bool,
    read_committed: bool,
) -> None:
    """Prints what the group has not consumed yet; an offset is committed once its record has been printed."""
    if start not in RESETS:
        raise click.UsageError("with --group, -o is beginning or end: where a group begins that has no offsets")
    isolation = "read_committed" if read_committed else "read_uncommitted"
    with Consumer(
        bootstrap,
        client_id="oncelog-cli",
        group_id=group,
        auto_offset_reset=RESETS[start],
        isolation_level=isolation,
        enable_auto_commit=False,
    ) as consumer:
        consumer.subscribe([topic])
        ends: dict[tuple[str, int], int] = {}
        left = count
        while left is None or left > 0:
            for record in (records := consumer.poll(POLL_S, left)):
                emit(Shown(*record))
            if records:
                consumer.commit({(record.topic, record.partition): record.offset + 1 for record in records})
            if left is not None:
                left -= len(records)
            if stop_at_end and _at_end(consumer, ends):
                return


def _at_end(consumer: Consumer, ends: dict[tuple[str, int], int]) -> bool:
    """Whether all assigned partitions have been read up to where they ended when they were assigned."""
    assigned = consumer.assignment()
    new = [tp for tp in assigned if tp not in ends]
    if new:
        ends.update(consumer.end_offsets(new))
    return bool(assigned) and all(consumer.position(*tp) >= ends[tp] for tp in assigned)
