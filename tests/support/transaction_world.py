"""Transactional writers, zombies, timeouts, faults and level changes: one broker from one plan.

Several writers share a transactional id: each new session fences the others, which do not know it and continue. They
use the old protocol or the new one, write numbered values to every partition and a group's offset, commit, abort, or
stall until the coordinator aborts. The history contains the responses to each writer; `check` compares it with the
readable data. `expand` makes the plan of a seed, and `run_plan` runs a plan.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal
from uuid import UUID

import msgspec

from oncelog.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from oncelog.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from oncelog.protocol.records import Record, build_batch
from oncelog.sim.faults import AnyFault, Cut, Die, Kill, Pause, Reset, Slow
from oncelog.sim.nemesis import Nemesis
from oncelog.sim.plan import Plan, PlanError
from oncelog.sim.world import PORT, World
from support.history import ABORTED, COMMITTED, Written, check_transaction
from support.raw_client import RawWriter, RefusedError
from support.world_reports import reported

HOST = "broker-1"
TOPIC = "numbers"
PARTITIONS = 2
IDS = ("shared", "shared", "shared", "alone")
"""The transactional ids of the writers."""
WORK_S = 2.0
"""In virtual time, before all faults end."""
SESSIONS = 25
"""Of each writer. Most writers have no time for all of them."""
TIMEOUTS_MS = (150, 600, 60_000)


class OldWriter(RawWriter):
    """A producer from before KIP-890 part 2: requests add partitions and groups, and the epoch does not change."""

    async def write(
        self, topic_id: UUID, partition: int, values: Sequence[bytes | None], now_ms: int, key: bytes | None = None
    ) -> int:
        topics = [AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])]
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        await self.call(
            add, lambda r: r.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code, 3
        )
        return await self.produce(partition, values, now_ms, key)

    async def produce(
        self, partition: int, values: Sequence[bytes | None], now_ms: int, key: bytes | None = None
    ) -> int:
        """Write a batch, which adds nothing to the transaction."""
        sequence = self._sequences.get(partition, 0)
        records = [Record(index, now_ms, key, value) for index, value in enumerate(values)]
        batch = build_batch(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=partition, records=batch)])
            ],
        )
        response = await self.call(request, lambda r: r.responses[0].partition_responses[0].error_code, 11)
        self._sequences[partition] = sequence + len(values)
        return int(response.responses[0].partition_responses[0].base_offset)

    async def commit_offset(self, group: str, offset: int) -> None:
        add = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        await self.call(add, version=3)
        await commit_offset(self, group, offset, 4)

    async def end(self, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        await self.call(request, version=4)


class NewWriter(RawWriter):
    """A producer of transaction.version 2."""

    async def commit_offset(self, group: str, offset: int) -> None:
        await commit_offset(self, group, offset, 5)


async def commit_offset(writer: RawWriter, group: str, offset: int, version: int) -> None:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        transactional_id=writer.transactional_id,
        group_id=group,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )
    await writer.call(request, lambda r: r.topics[0].partitions[0].error_code, version)


# -- plans ------------------------------------------------------------------------------------------------------------


class Transaction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One transaction of a session. `stall_s` passes before it ends."""

    partitions: list[int]
    offset: bool
    stall_s: float
    commit: bool


class Session(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="session"):
    """One session of the writer with this number. A writer runs its sessions in order."""

    writer: Literal[0, 1, 2, 3]
    kind: Literal["old", "new"]
    timeout_ms: int
    transactions: list[Transaction]
    rest_s: float


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="work", tag="level"):
    """A change of transaction.version."""

    at: float
    level: int
    upgrade_type: int


def expand(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"plan {seed}")
    workload: list[Session | Level] = [
        Session(
            writer=writer,  # type: ignore[arg-type]
            kind=rng.choice(("old", "new", "new")),
            timeout_ms=rng.choice(TIMEOUTS_MS),
            transactions=[_transaction(rng) for _ in range(rng.randrange(1, 8))],
            rest_s=rng.uniform(0, 0.3),
        )
        for writer in range(len(IDS))
        for _ in range(SESSIONS)
    ]
    at = rng.uniform(0, 2)
    while at < WORK_S:
        workload.append(Level(at=at, level=rng.randrange(3), upgrade_type=rng.choice((1, 3))))
        at += rng.uniform(0, 2)
    return Plan(
        scenario="transactions",
        seed=seed,
        seconds=WORK_S,
        settings={"initial_transaction_version": rng.randrange(3)},
        workload=[msgspec.to_builtins(each) for each in workload],
        faults=_faults(rng),
    )


def _transaction(rng: random.Random) -> Transaction:
    return Transaction(
        partitions=rng.sample(range(PARTITIONS), rng.randrange(1, PARTITIONS + 1)),
        offset=rng.random() < 0.5,
        stall_s=rng.uniform(0, 1.5) if rng.random() < 0.15 else 0.0,
        commit=rng.random() < 0.7,
    )


def _faults(rng: random.Random) -> list[AnyFault]:
    """Return deaths of the broker, with resets and a mix of other faults between them."""
    mix = rng.sample(("pause", "cut", "slow"), rng.randrange(3))
    faults: list[AnyFault] = []
    at = 0.0
    while at < WORK_S:
        for _ in range(rng.randrange(4)):
            at += rng.uniform(0, 0.05)
            faults.append(Reset(at=at))  # answers are lost
        for kind in mix:
            moment, seconds = at + rng.uniform(0, 1), rng.uniform(0, 0.5)
            if kind == "pause":
                faults.append(Pause(at=moment, host=HOST, seconds=seconds))
            elif kind == "cut":
                source, target = rng.choice((("client", HOST), (HOST, "client")))
                both_ways = rng.random() < 0.5
                faults.append(Cut(at=moment, source=source, target=target, both_ways=both_ways, seconds=seconds))
            else:
                faults.append(Slow(at=moment, source="client", target=HOST, by_s=rng.uniform(0, 0.2), seconds=seconds))
        away = rng.uniform(0, 1)
        restarts = tuple(rng.randrange(20) for _ in range(3) if rng.random() < 0.5)
        life = rng.uniform(0, 1)
        if rng.random() < 0.5:
            changes = rng.randrange(60)
            faults.append(Die(at=at, host=HOST, changes=changes, seconds=life + away, restarts=restarts))
        else:
            faults.append(Kill(at=at + life, host=HOST, seconds=away, restarts=restarts))
        at += life + away
    return faults


# -- the world --------------------------------------------------------------------------------------------------------


class TransactionWorld:
    """One run. `check` raises AssertionError."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.history: list[Written] = []
        self.seen: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.topic = UUID(int=0)
        self.over = False
        self.outcomes: Counter[str] = Counter()
        try:
            self.workload = msgspec.convert(plan.workload, list[Session | Level])
        except msgspec.ValidationError as error:
            raise PlanError(f"not a workload of transactions: {error}") from error

    async def run(self) -> Counter[str]:
        nemesis = Nemesis(self.world, self.plan)
        broker = await self.world.start_broker(**self.plan.settings)
        reader = RawWriter(HOST, PORT, "reader")
        self.topic = await reader.create_topic(TOPIC, PARTITIONS)
        for name in sorted(set(IDS)):
            await reader.call(
                FindCoordinatorRequest(key_type=0, coordinator_keys=[name]), lambda r: r.coordinators[0].error_code
            )
        tasks = [asyncio.create_task(self.govern()), asyncio.create_task(self.watch())]
        tasks += [asyncio.create_task(self.live(writer)) for writer in range(len(IDS))]
        await nemesis.run()
        self.over = True
        await asyncio.gather(*tasks)
        await self.check(reader)
        await broker.stop()
        self.outcomes["faults"] += nemesis.struck
        return self.outcomes

    async def live(self, number: int) -> None:
        """Run session after session. A fenced writer starts the next, which fences another one."""
        for session in self.workload:
            if not isinstance(session, Session) or session.writer != number:
                continue
            kind = OldWriter if session.kind == "old" else NewWriter
            writer = kind(HOST, PORT, IDS[number], session.timeout_ms)
            try:
                await writer.start()
                for transaction in session.transactions:
                    if self.over:
                        return
                    await self.transaction(writer, IDS[number], transaction)
                if isinstance(writer, OldWriter):
                    await self.late_write(writer)
                await asyncio.sleep(session.rest_s)
            except RefusedError as error:
                self.outcomes[error.code.name] += 1
            if self.over:
                return

    async def transaction(self, writer: Any, name: str, planned: Transaction) -> None:
        number = len(self.history) + 1
        written = Written(b"%d" % number, name)
        self.history.append(written)
        for partition in planned.partitions:
            written.partitions.add(partition)
            values = [written.value, written.value + b"+"]
            await writer.write(self.topic, partition, values, self.world.now_ms())
            written.acknowledged.add(partition)
        if planned.offset:
            written.offset = number
            await writer.commit_offset(name, number)
        await asyncio.sleep(planned.stall_s)  # the timeout may expire
        await writer.end(planned.commit)
        written.outcome = COMMITTED if planned.commit else ABORTED

    async def late_write(self, writer: OldWriter) -> None:
        """Check that a write delayed until after its transaction is rejected (KAFKA-14402).

        Otherwise, it would hang forever.
        """
        for partition in range(PARTITIONS):
            with suppress(RefusedError):
                await writer.produce(partition, [b"late"], self.world.now_ms())
                raise AssertionError(f"a late write of {writer.transactional_id} was accepted")

    async def govern(self) -> None:
        """Change transaction.version up and down during the work."""
        client = RawWriter(HOST, PORT, "governor")
        begun = self.world.loop.now
        for change in self.workload:
            if isinstance(change, Level):
                await asyncio.sleep(begun + change.at - self.world.loop.now)
                update = FeatureUpdateKey(
                    feature="transaction.version", max_version_level=change.level, upgrade_type=change.upgrade_type
                )
                with suppress(RefusedError):  # an upgrade request that would downgrade, or the reverse
                    await client.call(UpdateFeaturesRequest(feature_updates=[update]))

    async def watch(self) -> None:
        """Check that the data of a read_committed consumer never changes, and only grows at its end."""
        client = RawWriter(HOST, PORT, "watcher")
        rng = self.world.stream("watcher")
        while not self.over:
            for partition in range(PARTITIONS):
                await self.look(client, partition)
            await asyncio.sleep(rng.uniform(0, 0.5))

    async def look(self, client: RawWriter, partition: int, *, until_stable: bool = False) -> None:
        found = await client.read_committed(self.topic, partition, until_stable=until_stable)
        before = self.seen[partition]
        assert found[: len(before)] == before, f"partition {partition}: committed data has changed"
        self.seen[partition] = found

    # -- invariants ---------------------------------------------------------------------------------------------------

    async def check(self, reader: RawWriter) -> None:
        for name in sorted(set(IDS)):
            await RawWriter(HOST, PORT, name).start()  # aborts the open transaction
        await asyncio.sleep(1)
        for partition in range(PARTITIONS):
            await self.look(reader, partition, until_stable=True)
        for written in self.history:
            check_transaction(written, self.seen)
            self.outcomes[written.outcome] += 1
        for name in sorted(set(IDS)):
            await self.check_offset(reader, name)

    async def check_offset(self, reader: RawWriter, name: str) -> None:
        """Check that the group's offset is that of the last transaction of the id that committed one."""
        topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=name, topics=topics)], require_stable=True
        )
        response = await reader.call(request, lambda r: r.groups[0].topics[0].partitions[0].error_code, 8)
        offset = response.groups[0].topics[0].partitions[0].committed_offset
        mine = [written for written in self.history if written.name == name]
        with_offsets = {written.offset: written for written in mine if written.offset >= 0}
        in_order = [int(value) for value in self.seen_in_order() if value in {str(each) for each in with_offsets}]
        certain = [value for value in in_order if with_offsets[value].outcome is COMMITTED]
        assert offset == -1 or with_offsets[offset].outcome is not ABORTED, f"{name}: {offset} was aborted"
        if certain:
            assert offset in in_order, f"{name}: {offset} belongs to no committed transaction"
            self.check_last(name, offset, certain)

    def check_last(self, name: str, offset: int, certain: list[int]) -> None:
        """Check that no transaction that certainly committed an offset is later, in any partition, than the one
        with the offset.
        """
        for partition, values in enumerate(self.seen):
            order = [int(value) for value in values if value is not None and not value.endswith(b"+")]
            if offset in order:
                later = set(order[order.index(offset) + 1 :]) & set(certain)
                assert not later, (
                    f"{name}: {offset} is the group's offset, {later} were committed after it in {partition}"
                )

    def seen_in_order(self) -> list[str]:
        return [value.decode() for values in self.seen for value in values if value is not None]


def run_plan(plan: Plan) -> tuple[Counter[str], str]:
    """Run one world. Return its outcomes by kind with the errors that ended sessions, and its digest."""
    world = World(plan.seed)
    outcomes = world.run(lambda world: reported(world, TransactionWorld(world, plan).run()), limit_s=600)
    return outcomes, world.digest()


def run(seed: int) -> Counter[str]:
    """Run the world of a seed. Return its outcomes."""
    return run_plan(expand(seed))[0]
