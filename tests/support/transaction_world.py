"""Transactional writers, zombies, timeouts, kills, torn writes and level changes: one broker from one seed.

Several writers share a transactional id: each new session fences the others, which do not know it and continue. They
use the old protocol or the new one, write numbered values to every partition and a group's offset, commit, abort, or
stall until the coordinator aborts. The history contains the responses to each writer; `check` compares it with the
readable data.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

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
from oncelog.sim.world import PORT, World
from support.chaos import Chaos
from support.raw_client import RawWriter, RefusedError

TOPIC = "numbers"
PARTITIONS = 2
IDS = ("shared", "shared", "shared", "alone")
"""The transactional ids of the writers."""
WORK_S = 2.0
"""In virtual time, before all faults end."""
TIMEOUTS_MS = (150, 600, 60_000)
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


@dataclass
class Written:
    """One transaction as its writer knows it. `value` is what it wrote to each partition and as the group's offset."""

    value: int
    name: str
    partitions: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    offset: bool = False
    outcome: str = UNKNOWN


class OldWriter(RawWriter):
    """A producer from before KIP-890 part 2: requests add partitions and groups, and the epoch does not change."""

    async def write(self, topic_id: UUID, partition: int, values: list[bytes], now_ms: int) -> None:
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
        await self.produce(partition, values, now_ms)

    async def produce(self, partition: int, values: list[bytes], now_ms: int) -> None:
        """Write a batch, which adds nothing to the transaction."""
        sequence = self._sequences.get(partition, 0)
        records = [Record(index, now_ms, None, value) for index, value in enumerate(values)]
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
        await self.call(request, lambda r: r.responses[0].partition_responses[0].error_code, 11)
        self._sequences[partition] = sequence + len(values)

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


class TransactionWorld:
    """One run. `check` raises AssertionError with the seed in the world's name."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.fork()
        self.history: list[Written] = []
        self.seen: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.topic = UUID(int=0)
        self.over = False
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> Counter[str]:
        settings = {"initial_transaction_version": self.rng.randrange(3)}
        broker = await self.world.start_broker(**settings)
        reader = RawWriter("broker-1", PORT, "reader")
        self.topic = await reader.create_topic(TOPIC, PARTITIONS)
        for name in set(IDS):
            await reader.call(
                FindCoordinatorRequest(key_type=0, coordinator_keys=[name]), lambda r: r.coordinators[0].error_code
            )
        chaos = Chaos(self.world, broker, calm_s=1.0)
        tasks = [asyncio.create_task(chaos.reign()), asyncio.create_task(self.govern())]
        tasks += [asyncio.create_task(self.watch())]
        tasks += [asyncio.create_task(self.live(name)) for name in IDS]
        await asyncio.sleep(WORK_S)
        self.over = chaos.over = True
        await asyncio.gather(*tasks)
        await self.check(reader)
        await broker.stop()
        return self.outcomes

    async def live(self, name: str) -> None:
        """Run session after session. A fenced writer starts again, which fences the next."""
        while not self.over:
            kind = self.rng.choice([OldWriter, NewWriter, NewWriter])
            writer = kind("broker-1", PORT, name, self.rng.choice(TIMEOUTS_MS))
            try:
                await writer.start()
                for _ in range(self.rng.randrange(1, 8)):
                    if self.over:
                        return
                    await self.transaction(writer, name)
                if isinstance(writer, OldWriter):
                    await self.late_write(writer)
                await asyncio.sleep(self.rng.uniform(0, 0.3))
            except RefusedError as error:
                self.outcomes[error.code.name] += 1

    async def transaction(self, writer: Any, name: str) -> None:
        written = Written(len(self.history) + 1, name)
        self.history.append(written)
        for partition in self.rng.sample(range(PARTITIONS), self.rng.randrange(1, PARTITIONS + 1)):
            written.partitions.add(partition)
            value = str(written.value).encode()
            await writer.write(self.topic, partition, [value, value + b"+"], self.world.now_ms())
            written.acknowledged.add(partition)
        if self.rng.random() < 0.5:
            written.offset = True
            await writer.commit_offset(name, written.value)
        if self.rng.random() < 0.15:
            await asyncio.sleep(self.rng.uniform(0, 1.5))  # it stalls; the timeout may expire meanwhile
        commit = self.rng.random() < 0.7
        await writer.end(commit)
        written.outcome = COMMITTED if commit else ABORTED

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
        client = RawWriter("broker-1", PORT, "governor")
        while not self.over:
            await asyncio.sleep(self.rng.uniform(0, 2))
            level, kind = self.rng.randrange(3), self.rng.choice([1, 3])
            update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind)
            with suppress(RefusedError):  # an upgrade request that would downgrade, or the reverse
                await client.call(UpdateFeaturesRequest(feature_updates=[update]))

    async def watch(self) -> None:
        """Check that the data of a read_committed consumer never changes, and only grows at its end."""
        client = RawWriter("broker-1", PORT, "watcher")
        while not self.over:
            for partition in range(PARTITIONS):
                await self.look(client, partition)
            await asyncio.sleep(self.rng.uniform(0, 0.5))

    async def look(self, client: RawWriter, partition: int, *, until_stable: bool = False) -> None:
        found = await client.read_committed(self.topic, partition, until_stable=until_stable)
        before = self.seen[partition]
        assert found[: len(before)] == before, f"partition {partition}: committed data has changed"
        self.seen[partition] = found

    # -- invariants ---------------------------------------------------------------------------------------------------

    async def check(self, reader: RawWriter) -> None:
        for name in set(IDS):
            await RawWriter("broker-1", PORT, name).start()  # aborts the open transaction
        await asyncio.sleep(1)
        for partition in range(PARTITIONS):
            await self.look(reader, partition, until_stable=True)
        counts = [Counter(values) for values in self.seen]
        for written in self.history:
            self.check_transaction(written, counts)
        for name in set(IDS):
            await self.check_offset(reader, name)

    def check_transaction(self, written: Written, counts: list[Counter[bytes | None]]) -> None:
        value = str(written.value).encode()
        found = {
            (partition, each): counts[partition][each]
            for partition in range(PARTITIONS)
            for each in (value, value + b"+")
        }
        assert max(found.values()) <= 1, f"{written} was written twice: {found}"
        visible = {partition for (partition, _), count in found.items() if count}
        whole = visible == written.partitions and sum(found.values()) == 2 * len(written.partitions)
        if written.outcome is COMMITTED:
            assert whole, f"{written} is committed, but incomplete: {found}"
        elif written.outcome is ABORTED:
            assert not visible, f"{written} is aborted, but visible: {found}"
        else:
            # A write without a response may be present or not. Either all other writes are present, or none.
            assert not visible or written.acknowledged <= visible <= written.partitions, f"torn: {written}: {found}"
            assert all(found[p, value] == found[p, value + b"+"] for p in visible), f"torn: {written}: {found}"
        self.outcomes[written.outcome] += 1

    async def check_offset(self, reader: RawWriter, name: str) -> None:
        """Check that the group's offset is that of the last transaction of the id that committed one."""
        topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=name, topics=topics)], require_stable=True
        )
        response = await reader.call(request, lambda r: r.groups[0].topics[0].partitions[0].error_code, 8)
        offset = response.groups[0].topics[0].partitions[0].committed_offset
        with_offsets = {written.value: written for written in self.history if written.name == name and written.offset}
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


def run(seed: int) -> Counter[str]:
    """Run one world. Return its outcomes by kind, and the errors that ended sessions."""

    async def scenario(world: World) -> Counter[str]:
        return await TransactionWorld(world).run()

    return World(seed).run(scenario, limit_s=600)


def main() -> None:
    """Run many worlds (`python -m support.transaction_world [FIRST [COUNT]]`), and print how many run per minute."""
    first, count = (int(text) for text in (*sys.argv[1:3], *("0", "1000")[len(sys.argv) - 1 :]))
    logging.disable(logging.WARNING)
    began, total = time.monotonic(), Counter[str]()
    for seed in range(first, first + count):
        try:
            total += run(seed)
        except BaseException:
            print(f"seed {seed}", file=sys.stderr)
            raise
        if (seed - first) % 100 == 99 or seed == first + count - 1:
            done = seed - first + 1
            print(f"{done} worlds, {done / (time.monotonic() - began) * 60:.0f} per minute, {dict(total)}", flush=True)


if __name__ == "__main__":
    main()
