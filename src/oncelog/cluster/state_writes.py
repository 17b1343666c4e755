"""Write the states of partitions, each bound to its topic, and many in one change.

A topic that was deleted and created again has the same paths, and its nodes have the same versions. So each write
requires the node of the topic's id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from oncelog.cluster.brokers import broker_path, epoch_path
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.leader import IsrProposal
from oncelog.cluster.partition_state import PartitionState, encode_state, state_path, states_path
from oncelog.cluster.store import ANY, BadVersionError, Check, NoNodeError, Operation, Set, StoreError
from oncelog.cluster.topics import topic_id_path

BATCH = 64
"""The maximum number of partitions whose states one change writes."""
REJECTED = (BadVersionError, NoNodeError)
"""The errors of a write that another writer has made obsolete. After all other errors, the store may have failed."""


class StateWrite(NamedTuple):
    """One write of a partition's state: all operations or none."""

    topic: str
    partition: int
    operations: tuple[Operation, ...]
    state: PartitionState


def state_write(topic: str, topic_id: UUID, partition: int, state: PartitionState, *required: Operation) -> StateWrite:
    """Return the write of `state`. The node must have `state.version`, and each check in `required` must pass."""
    change = Set(state_path(topic, partition), encode_state(state), state.version)
    return StateWrite(topic, partition, (*required, Check(topic_id_path(topic_id)), change), state)


def isr_write(topic: str, topic_id: UUID, partition: int, proposal: IsrProposal) -> StateWrite:
    """Return the write of new in-sync replicas. Each new member must have the registration with which it fetched."""
    required: list[Operation] = []
    for broker, epoch in proposal.joining:
        required += [Check(broker_path(broker), ANY), Check(epoch_path(broker), epoch)]
    return state_write(topic, topic_id, partition, proposal.state, *required)


def write_states(
    changes: ChangeLog, writes: Sequence[StateWrite], *, session: int | None
) -> Iterator[tuple[StateWrite, StoreError | None]]:
    """Carry out the writes, and yield each one with its error, or None. Blocks.

    If a change is rejected, its writes are tried in smaller changes, down to one. If the store fails otherwise, that
    error is the error of all remaining writes.
    """
    first, size = 0, BATCH
    while first < len(writes):
        part = writes[first : first + size]
        operations = dict.fromkeys(operation for write in part for operation in write.operations)
        error: StoreError | None = None
        try:
            changes.write(list(operations), *_touched(part), session=session)
        except REJECTED as rejection:
            if len(part) > 1:
                size = len(part) // 2
                continue
            error = rejection
        except StoreError as failure:
            part, error = writes[first:], failure
        for write in part:
            yield write, error
        first += len(part)
        size = min(2 * size, BATCH) if error is None else 1


def _touched(writes: Sequence[StateWrite]) -> list[str]:
    """Return one path for each topic, because a path for each partition would soon fill the log of changes."""
    topics: dict[str, list[int]] = {}
    for write in writes:
        topics.setdefault(write.topic, []).append(write.partition)
    return [states_path(topic, partitions) for topic, partitions in topics.items()]
