"""Stories of what a broker decides. Their wrong half runs the broker's own code without one check."""

from __future__ import annotations

from oncelog.broker.coordinators.producer_ids import BlockNode
from oncelog.cluster.leader import Leadership
from oncelog.cluster.partition_state import PartitionState
from oncelog.cluster.store_memory import MemoryStore
from oncelog.coordinator.producer_ids import BLOCK_PATH, ProducerIdBlock, acquire_block
from oncelog.stories.stage import Outcome, Stage


class _Log:
    """The offsets of the leader's log, and its replica."""

    log_start_offset = 0
    leader_epoch = 1

    def __init__(self) -> None:
        self.log_end_offset = self.high_watermark = 0

    @property
    def log(self) -> _Log:
        return self

    @property
    def stored_end(self) -> int:
        return self.log_end_offset

    def advance_high_watermark(self, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return epoch, self.log_end_offset


def joining_replica(stage: Stage, cure: bool) -> Outcome:
    """Broker 3 has caught up, and joins the in-sync replicas. Meanwhile, the leader commits a record without it.

    If broker 3 is elected then, the record is lost, although it was committed. Cure: the high watermark counts a
    follower from the moment in which the leader proposes to add it.
    """
    log = _Log()
    log.log_end_offset = log.high_watermark = 10
    state = PartitionState(leader=1, leader_epoch=1, isr=(1, 2))
    term = Leadership(1, (1, 2, 3), state, log, live={1: 1, 2: 1, 3: 1})
    for broker in (2, 3):
        term.fetched(broker, 1, 10, log_start=0, now_ms=0)
    proposal = term.proposal()
    assert proposal is not None
    stage.say(f"the leader writes the in-sync replicas {list(proposal.state.isr)}, and waits for the answer")
    log.log_end_offset = 11
    term.appended()
    term.fetched(2, 1, 11, log_start=0, now_ms=0)
    ends = {1: log.log_end_offset, 2: 11, 3: 10}
    in_sync_only = min(ends[broker] for broker in term.isr)
    high_watermark = log.high_watermark if cure else in_sync_only
    stage.say(
        f"log end offsets {ends}, in-sync replicas known so far {sorted(term.isr)}: high watermark {high_watermark}"
    )
    stage.say(f"the leader dies, and broker 3 leads: its log ends at {ends[3]}")
    right = high_watermark <= ends[3]
    return Outcome(right, "no committed record is missing" if right else "lost: offset 10, which was committed")


class _Careless(BlockNode):
    """The node of the producer ids, written without a check of its version."""

    def write(self, data: bytes, version: int) -> bool:
        return super().write(data, -1)


def racing_brokers(stage: Stage, cure: bool) -> Outcome:
    """Two brokers reserve a block of producer ids at the same time. Both read the same last block.

    Then two producers would have the same id, and brokers would take records of one for duplicates of the other. Cure:
    a broker writes only if nobody has written since it has read.
    """
    store = MemoryStore(lambda: 0)
    node = (BlockNode if cure else _Careless)(store)
    blocks: list[ProducerIdBlock] = []

    class Overtaken(type(node)):  # type: ignore[misc]
        """The other broker reserves a block after the first read of this one."""

        def read(self) -> tuple[bytes, int]:
            found: tuple[bytes, int] = super().read()
            if not blocks:
                blocks.append(acquire_block(node, 2))
            return found

    blocks.append(acquire_block(Overtaken(store), 1))
    for block in blocks:
        stage.say(f"broker {block.broker}: producer ids {block.start} to {block.end}")
    stage.say(f"the node {BLOCK_PATH}: {store.get(BLOCK_PATH).data.decode()}")
    apart = len({block.start for block in blocks}) == len(blocks)
    return Outcome(apart, "each id once" if apart else "each of the ids twice")
