"""Two-phase commit over three brokers whose connections and processes fail (KIP-939).

Each writer decides as a database would, at one moment. It dies before, during and after that, stays away, and may die
again when it comes back. Every decided transaction is committed, and every other one aborted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.protocol.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from oncelog.sim.world import World
from support.peer_faults import among_faults, run_seeds
from support.peer_world import PeerWorld, RoutedWriter
from support.raw_client import RefusedError

BROKERS = 3
WRITERS = 2
TRANSACTIONS = 6
USUAL_TIMEOUT_MS = 60_000
LATE_INIT = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE})
"""What a session gets after the InitProducerId of an earlier one that has died meanwhile."""


class Writer(RoutedWriter):
    """A session that keeps what the former one has left open."""

    def __init__(self, peers: PeerWorld, transactional_id: str, topic: UUID) -> None:
        super().__init__(peers, transactional_id, USUAL_TIMEOUT_MS)
        self.topics[topic] = "out"

    async def resume(self, decided: tuple[int, int] | None) -> bool:
        """Start the session, and end what is open as the database has decided. Return whether something was open."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            enable2_pc=True,
            keep_prepared_txn=True,
        )
        response = await self.call(request)
        self._become(response.producer_id, response.producer_epoch)
        ongoing = response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch
        if ongoing[0] < 0:
            return False
        await self.end(commit=ongoing == decided)
        return True


class Flow:
    """One transactional id with its own values and its own group, and what its database has decided."""

    def __init__(self, peers: PeerWorld, topic: UUID, number: int) -> None:
        self.id = peers.id_on(TRANSACTION_STATE, 1 + number % BROKERS)
        self.group = peers.id_on(CONSUMER_OFFSETS, 1 + (number + 1) % BROKERS)
        self.committed: list[tuple[int, bytes]] = []
        """The partition and value of each decided record, in order."""
        self.offset = -1
        self.kept = 0
        self.decided: tuple[int, int] | None = None
        self._peers = peers
        self._topic = topic
        self._number = number
        self.writer = Writer(peers, self.id, topic)

    async def run(self, rng: random.Random) -> None:
        await self._come_back(rng)
        for transaction in range(TRANSACTIONS):
            lives_for = rng.choice([None, rng.uniform(0, 8)])
            if not await self._lived(self._one(rng, transaction), lives_for):
                await asyncio.sleep(rng.choice([0, 1, 2 * USUAL_TIMEOUT_MS / 1000]))
                await self._come_back(rng)
        await self._come_back(rng)

    async def _one(self, rng: random.Random, transaction: int) -> None:
        written = []
        for record in range(rng.randint(1, 4)):
            partition = rng.randrange(BROKERS)
            value = f"{self._number}-{transaction}-{record}".encode()
            await self.writer.write(self._topic, partition, [value], self._peers.world.now_ms())
            written.append((partition, value))
            await asyncio.sleep(rng.uniform(0, 1))
        await self.writer.commit_offset(self.group, "out", transaction)
        commits = rng.random() < 0.7
        if commits:  # the database commits
            self.decided = self.writer.producer_id, self.writer.epoch
            self.committed += written
            self.offset = transaction
        await asyncio.sleep(rng.choice([0, rng.uniform(0, 3)]))
        await self.writer.end(commit=commits)

    async def _come_back(self, rng: random.Random) -> None:
        """Start sessions until one has lived."""
        while True:
            self.writer = Writer(self._peers, self.id, self._topic)
            lives_for = rng.choice([None, None, rng.uniform(0, 2)])
            if await self._lived(self._resume(), lives_for):
                return
            await asyncio.sleep(rng.uniform(0, 5))

    async def _resume(self) -> None:
        self.kept += await self.writer.resume(self.decided)

    async def _lived(self, work: Coroutine[Any, Any, None], lives_for: float | None) -> bool:
        """Return whether the work has ended before the writer died, or before another session has fenced it."""
        task = asyncio.ensure_future(work)
        await asyncio.wait({task}, timeout=lives_for)
        if not task.done():
            task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, RefusedError) and ended.code in LATE_INIT:
            return False
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            raise ended
        return ended is None


async def scenario(world: World) -> int:
    peers = PeerWorld(world, BROKERS)
    await peers.start(transaction_two_phase_commit_enable=True)
    topic = await peers.create("out", list(peers.ids))
    flows = [Flow(peers, topic, number) for number in range(WRITERS)]
    work = [flow.run(world.stream(f"writer {number}")) for number, flow in enumerate(flows)]
    await among_faults(peers, work, world.stream("nemesis"))
    for flow in flows:
        await flow.writer.resume(flow.decided)  # an InitProducerId may have arrived late
        await asyncio.sleep(10)
        assert (await flow.writer.state()).startswith(("Complete", "Empty"))
        assert await flow.writer.committed_offset(flow.group, "out") == flow.offset
    for partition in range(BROKERS):
        found = await flows[0].writer.read_committed(topic, partition)
        for number, flow in enumerate(flows):
            mine = [value for value in found if value is not None and value.startswith(b"%d-" % number)]
            assert mine == [value for where, value in flow.committed if where == partition]
    return sum(flow.kept for flow in flows)


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_decided_transactions_commit_and_all_others_abort(first: int) -> None:
    kept = run_seeds(scenario, range(first, first + 10), limit_s=7200)
    assert kept > 10, "too few transactions have waited for another session"
