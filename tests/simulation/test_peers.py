"""Random transactions over three brokers, whose connections and processes fail.

Coordinators, partitions and groups are on different brokers, and each partition has one replica.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any
from uuid import UUID

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from oncelog.sim.world import World
from support.peer_faults import among_faults, run_seeds
from support.peer_world import PeerWorld, RoutedWriter
from support.raw_client import RefusedError

BROKERS = 3
WRITERS = 3
TRANSACTIONS = 6
FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


class Flow:
    """One writer with its own values and its own group."""

    def __init__(self, peers: PeerWorld, topic: UUID, number: int) -> None:
        self.writer = RoutedWriter(peers, peers.id_on(TRANSACTION_STATE, 1 + number % BROKERS), 20_000)
        self.writer.topics[topic] = "out"
        self.group = peers.id_on(CONSUMER_OFFSETS, 1 + (number + 1) % BROKERS)
        self.committed: list[tuple[int, bytes]] = []
        """The partition and value of each committed record, in order."""
        self.offset = -1
        self.fenced = 0
        self._peers = peers
        self._topic = topic
        self._number = number

    async def run(self, rng: random.Random) -> None:
        await self.writer.start()
        for transaction in range(TRANSACTIONS):
            try:
                await self._one(rng, transaction)
            except RefusedError as error:  # the coordinator has aborted the transaction after its timeout
                if error.code not in FENCED:
                    raise
                self.fenced += 1
                await self.writer.start()

    async def _one(self, rng: random.Random, transaction: int) -> None:
        written = []
        for record in range(rng.randint(1, 4)):
            partition = rng.randrange(BROKERS)
            value = f"{self._number}-{transaction}-{record}".encode()
            await self.writer.write(self._topic, partition, [value], self._peers.world.now_ms())
            written.append((partition, value))
            await asyncio.sleep(rng.uniform(0, 1))
        await self.writer.commit_offset(self.group, "out", transaction)
        commit = rng.random() < 0.7
        await self.writer.end(commit=commit)
        if commit:
            self.committed += written
            self.offset = transaction


async def scenario(world: World) -> int:
    peers = PeerWorld(world, BROKERS)
    await peers.start()
    topic = await peers.create("out", list(peers.ids))
    flows = [Flow(peers, topic, number) for number in range(WRITERS)]
    work = [flow.run(world.stream(f"writer {number}")) for number, flow in enumerate(flows)]
    await among_faults(peers, work, world.stream("nemesis"))
    for flow in flows:
        assert (await flow.writer.state()).startswith(("Complete", "Empty"))
        if not flow.fenced:
            assert await flow.writer.committed_offset(flow.group, "out") == flow.offset
    for partition in range(BROKERS):
        found = await flows[0].writer.read_committed(topic, partition)
        for number, flow in enumerate(flows):
            mine: list[Any] = [value for value in found if value is not None and value.startswith(b"%d-" % number)]
            assert mine == [value for where, value in flow.committed if where == partition]
    return sum(flow.fenced for flow in flows)


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_transactions_over_brokers_are_atomic(first: int) -> None:
    run_seeds(scenario, range(first, first + 10), limit_s=3600)
