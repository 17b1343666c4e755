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

import msgspec
from msgspec.structs import replace

from oncelog.cluster.store import Node

UNKNOWN_BROKER_EPOCH = -1
_FORMAT = 1
"""`version` in the JSON of a node, as in Kafka's ZooKeeper tree."""


class PartitionState(msgspec.Struct, frozen=True):
    """The content of a state node, and the version of the node.

    In the JSON of the node, a field has the same name. `leader_broker_epoch` and `elr` are not in Kafka's ZooKeeper
    tree, and older versions of oncelog do not write them. There, `version` is the version of the format.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int = 0
    leader_broker_epoch: int = UNKNOWN_BROKER_EPOCH
    """The registration of the leader that was elected. A process that starts again must be elected again."""
    controller_epoch: int = 0
    elr: tuple[int, ...] = ()
    """The eligible leader replicas. None of them is in the ISR."""

    @property
    def complete(self) -> tuple[int, ...]:
        """Return the replicas that have all committed records: the ISR and the ELR."""
        return self.isr + self.elr


def state_path(topic: str, partition: int) -> str:
    """Return the path of a partition's state node."""
    return f"/brokers/topics/{topic}/partitions/{partition}/state"


def states_path(topic: str, partitions: Iterable[int]) -> str:
    """Return the entry of the change log for changed states of one topic. No node has this path."""
    return f"/brokers/topics/{topic}/partitions/{','.join(map(str, partitions))}/state"


def decode_state(node: Node) -> PartitionState:
    """Return the state in a node. Raises msgspec.MsgspecError if the content is invalid."""
    return replace(msgspec.json.decode(node.data, type=PartitionState), version=node.version)


def encode_state(state: PartitionState) -> bytes:
    """Return the content of the state's node."""
    return msgspec.json.encode(replace(state, version=_FORMAT))


def eligible(state: PartitionState, isr: Collection[int], min_insync_replicas: int) -> tuple[int, ...]:
    """Return the ELR after the ISR of `state` has become `isr`. Exclude members that may lack records from the result.

    Source: Kafka's `PartitionChangeBuilder.maybePopulateTargetElr`.
    """
    if len(isr) >= min_insync_replicas:
        return ()
    return tuple(sorted({*state.complete}.difference(isr)))
