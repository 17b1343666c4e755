"""The state of a partition in the tree: its leader, the leader epoch and the in-sync replicas.

The node is `/brokers/topics/T/partitions/P/state`. The controller writes it to elect a leader, and the leader writes it
to change the in-sync replicas. Both require the version that they have read. Within a leader epoch, only the leader
adds members to the in-sync replicas.

If fewer than `min.insync.replicas` are in sync, the state also has the eligible leader replicas (ELR, KIP-966): those
that have left since then. The high watermark does not advance while there are any, so each of them has all committed
records, and may be elected. A replica that may lack records is in neither of the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec

from oncelog.cluster.store import Node

UNKNOWN_BROKER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The content of a state node, and the version of the node."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int
    leader_broker_epoch: int = UNKNOWN_BROKER_EPOCH
    """The registration of the leader that was elected. A process that starts again must be elected again."""
    controller_epoch: int = 0
    elr: tuple[int, ...] = ()
    """The eligible leader replicas. None of them is in the ISR."""

    @property
    def complete(self) -> tuple[int, ...]:
        """Return the replicas that have all committed records: the ISR and the ELR."""
        return self.isr + self.elr


class StateNode(msgspec.Struct):
    """The JSON of a state node, with the fields of Kafka's ZooKeeper tree. `version` is the version of the format."""

    leader: int
    leader_epoch: int
    isr: list[int]
    controller_epoch: int = 0
    version: int = 1
    leader_broker_epoch: int | msgspec.UnsetType = msgspec.UNSET
    """Not a field of Kafka's tree."""
    elr: list[int] | msgspec.UnsetType = msgspec.UNSET
    """Not a field of Kafka's tree. Older versions of oncelog do not write it."""


def state_path(topic: str, partition: int) -> str:
    """Return the path of a partition's state node."""
    return f"/brokers/topics/{topic}/partitions/{partition}/state"


def states_path(topic: str, partitions: Iterable[int]) -> str:
    """Return the entry of the change log for changed states of one topic. No node has this path."""
    return f"/brokers/topics/{topic}/partitions/{','.join(map(str, partitions))}/state"


def decode_state(node: Node) -> PartitionState:
    """Return the state in a node. Raises msgspec.MsgspecError if the content is invalid."""
    found = msgspec.json.decode(node.data, type=StateNode)
    return PartitionState(
        found.leader,
        found.leader_epoch,
        tuple(found.isr),
        node.version,
        UNKNOWN_BROKER_EPOCH if found.leader_broker_epoch is msgspec.UNSET else found.leader_broker_epoch,
        found.controller_epoch,
        () if found.elr is msgspec.UNSET else tuple(found.elr),
    )


def encode_state(state: PartitionState) -> bytes:
    """Return the content of the state's node."""
    epoch = state.leader_broker_epoch
    node = StateNode(
        state.leader,
        state.leader_epoch,
        list(state.isr),
        state.controller_epoch,
        leader_broker_epoch=msgspec.UNSET if epoch == UNKNOWN_BROKER_EPOCH else epoch,
        elr=list(state.elr) or msgspec.UNSET,
    )
    return msgspec.json.encode(node)


def eligible(state: PartitionState, isr: Collection[int], min_insync_replicas: int) -> tuple[int, ...]:
    """Return the ELR after the ISR of `state` has become `isr`. Exclude members that may lack records from the result.

    Source: Kafka's `PartitionChangeBuilder.maybePopulateTargetElr`.
    """
    if len(isr) >= min_insync_replicas:
        return ()
    return tuple(sorted({*state.complete}.difference(isr)))
