"""Three brokers from one plan: clients of all kinds, faults, and checks of the invariants during the whole run.

`run_plan` runs a plan of `cluster_plans`. A violation raises `InvariantError` with the number of the invariant. After
the faults, the world heals except for permanent faults, and everything must become writable.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from oncelog.protocol.records import decode_records
from oncelog.protocol.topics import TopicPartition
from oncelog.sim.faults import (
    AnyFault,
    Crash,
    CutStore,
    Damage,
    Die,
    ExpireSessions,
    Kill,
    Lasting,
    Pause,
    Restore,
    SetClock,
    machine_of,
)
from oncelog.sim.nemesis import Nemesis
from oncelog.sim.plan import Plan
from oncelog.sim.world import SimBroker, World
from support.cluster_admin import Administration
from support.cluster_clients import TOPIC, Client, Producer, Routes
from support.cluster_features import Features
from support.cluster_losses import generation_of, has_committed, noted_generation
from support.cluster_plans import (
    BROKERS,
    DATA,
    GROUPS,
    HOSTS,
    MIN_ISR,
    PARTITIONS,
    PRODUCERS,
    WRITERS,
    Commits,
    Loose,
    Numbers,
    Transaction,
    settings_of,
    workload_of,
)
from support.cluster_values import check_offset, check_replicas, committed_values
from support.cluster_watch import CHECK_S, COMPACTED, Consumers, DiskWatch, StateWatch
from support.history import ABORTED, COMMITTED, Written, check_transaction
from support.raw_client import RefusedError
from support.replica_invariants import InvariantError
from support.world_reports import reported

LIMIT_S = 60.0
"""How long each step of the recovery may take, in virtual time."""
ENDING_SESSIONS = CutStore | Die | ExpireSessions | Kill | Pause | SetClock
"""Faults that may end the session of a broker."""


class ClusterWorld:
    """One run. `run` raises InvariantError."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.settings = settings_of(plan)
        self.workload = workload_of(plan)
        self.routes = Routes(world)
        self.disks = DiskWatch(world)
        self.topics: dict[str, UUID] = {}
        self.violation: asyncio.Future[None] = world.loop.create_future()
        self.states = StateWatch(world, self.disks, self.report)
        self.over = False
        self.outcomes: Counter[str] = Counter()
        self.administration = Administration(self.routes, self.outcomes, world.now_ms)
        self.features = Features(world, self.routes, self.disks, self.outcomes, self._own, self._check_acknowledged)
        self.producer_ids: dict[int, str] = {}
        self.written: list[list[Written]] = [[] for _ in range(WRITERS)]
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        """The value at each (partition, offset)."""
        self.commits: list[tuple[int, int]] = [(-1, -1)] * GROUPS
        """Each group's last acknowledged offset, and the last one that was sent."""
        self.markers: dict[tuple[int, int], bool] = {}
        """The outcome of each transaction, by producer id and the epoch of its markers."""
        self.gone: set[str] = set()
        """The hosts with a permanent fault."""

    def report(self, error: BaseException) -> None:
        """Record the first violation, which ends the run."""
        if not self.violation.done():
            self.violation.set_exception(error)

    # -- the run ------------------------------------------------------------------------------------------------------

    async def run(self) -> Counter[str]:
        work = asyncio.create_task(self._run())
        both: set[asyncio.Future[Any]] = {work, self.violation}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if self.violation.done():
            work.cancel()
            self.violation.result()
        self.violation.cancel()
        return work.result()

    async def _run(self) -> Counter[str]:
        nemesis = Nemesis(self.world, self.plan, self._admit)
        machines = await self._start()
        client = Client(self.routes, "admin")
        self.topics = await client.create_topics(PARTITIONS, len(BROKERS))
        await self.features.create(self.workload, self.settings.retention_bytes)
        consumers = Consumers(self.world, self.disks, self.topics | self.features.topics, self.routes.security)
        background = [self._guarded(consumers.read(number)) for number in BROKERS]
        background.append(self._guarded(self._check_disks()))
        tasks = [self._guarded(self._produce(index)) for index in range(PRODUCERS)]
        tasks += [self._guarded(self._produce_loosely(index)) for index in range(PARTITIONS)]
        tasks += [self._guarded(self._transact(index)) for index in range(WRITERS)]
        tasks += [self._guarded(self._commit(index)) for index in range(GROUPS)]
        tasks += [self._guarded(client) for client in self.features.tasks(self.workload)]
        tasks += [self._guarded(client) for client in self._more_clients()]
        tasks.append(self._guarded(self.administration.elect(self.workload)))
        tasks.append(self._guarded(self.administration.recreate(self.workload)))
        await nemesis.run()
        self.over = self.administration.over = True
        self.features.end()
        self.outcomes["faults"] += nemesis.struck
        await self._recover(tasks, consumers)
        consumers.over = True
        for task in background[:-1]:
            await task
        await self._check_values()
        await self.administration.check(complete=not self.states.crashes)
        background[-1].cancel()
        await self._stop(machines)
        return self.outcomes

    def _more_clients(self) -> list[Coroutine[Any, Any, None]]:
        """Return the clients of a subclass."""
        return []

    def _guarded(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - of any kind
                self.report(error)

        return asyncio.create_task(run())

    async def _start(self) -> list[SimBroker]:
        machines = []
        for number in BROKERS:
            machine = self.world.add_broker(number, **self.settings.broker)
            machine.disk.map_bytes = 1  # all reads are live pages, so a truncation under one kills the process
            await machine.start()
            machines.append(machine)
        await asyncio.sleep(1)  # until each broker knows the others
        return machines

    def _admit(self, fault: AnyFault) -> AnyFault | None:
        """Return the fault, one that loses less if acknowledged records could be lost otherwise, or None.

        Nothing is synced, so acknowledged records survive if one machine at a time crashes, and if the only in-sync
        replica returns. While a machine that has crashed or never returns is in an ISR, the sessions of the others must
        not end: it would be the last member. A machine that crashes leaves the ISRs, so it must not crash while the
        ISRs contain a broker that never returns. The ISRs may still contain a broker that has died, so a broker
        disappears for good only while the others are well.
        """
        if isinstance(fault, Crash | Damage | Restore | ENDING_SESSIONS) and (
            self.states.have_lost or self._need_the_gone()
        ):
            return None
        if isinstance(fault, Damage | Restore):
            return fault if self._may_damage(fault) else None
        safe = self.states.are_full
        if isinstance(fault, Crash):
            if not safe:
                return Kill(at=fault.at, host=fault.host, seconds=fault.seconds, restarts=fault.restarts)
            machine = machine_of(self.world, fault.host)
            self.states.crashed(int(machine.name.rpartition("-")[2]))
            self.outcomes["crashes"] += 1
        elif isinstance(fault, Lasting) and fault.seconds is None:
            host = _host_of(fault)
            if not safe or not all(machine.is_well for name, machine in self.world.machines.items() if name != host):
                return None
            self.gone.add(host)
        return fault

    def _may_damage(self, fault: Damage | Restore) -> bool:
        """Return whether a broker may lose records, and can notice it. If so, note it.

        A loss shows if the high watermark was in a checkpoint, if the log ends inside a batch, or if the directory has
        an earlier generation than the store.
        """
        machine, number = machine_of(self.world, fault.host), int(fault.host.rpartition("-")[2])
        damaged: TopicPartition | None = None
        if isinstance(fault, Damage):
            topic, _, index = fault.folder.rpartition("/")[2].rpartition("-")
            damaged = topic, int(index)
            if fault.torn_at is None and not has_committed(machine.disk.files, fault.folder):
                return False
        elif generation_of(machine.copies.get(DATA, {})) >= noted_generation(self.world.store, number):
            return False
        gone = {int(host.rpartition("-")[2]) for host in self.gone}
        if not self.states.may_lose(number, damaged, gone):
            return False
        self.states.crashed(number, damaged)
        self.outcomes["damaged"] += 1
        return True

    def _need_the_gone(self) -> bool:
        """Return whether a broker that never returns is in an ISR."""
        members = {f"broker-{number}" for state in self.states.states.values() for number in state.isr}
        return not self.gone.isdisjoint(members)

    async def _check_disks(self) -> None:
        while True:
            self.disks.scan()
            await asyncio.sleep(CHECK_S)

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _produce(self, index: int) -> None:
        rng = self.world.stream(f"producer {index}")
        producer = Producer(self.routes, self.topics[TOPIC], index % PARTITIONS, rng, self.world.now_ms)
        await producer.start()
        self._own(producer.producer_id, f"producer {index}")
        number = 0
        for work in self.workload:
            if isinstance(work, Numbers) and work.producer == index:
                for _ in range(work.count):
                    if self.over:
                        return
                    await self._send(producer, b"p%d-%d" % (index, number))
                    number += 1
                await asyncio.sleep(work.pause_s)

    async def _produce_loosely(self, partition: int) -> None:
        rng, client = self.world.stream(f"loose {partition}"), Client(self.routes, "")
        number = 0
        for work in self.workload:
            if isinstance(work, Loose) and work.partition == partition:
                for _ in range(work.count):
                    if self.over:
                        return
                    leader = self.routes.leader(TOPIC, partition)
                    broker = leader if leader >= 0 and rng.random() < 0.7 else self.routes.any()
                    value = b"l%d-%d" % (partition, number)
                    done = await client.try_write(broker, self.topics[TOPIC], partition, value, self.world.now_ms())
                    self.outcomes["loose"] += done
                    number += 1
                await asyncio.sleep(work.pause_s)

    async def _send(self, producer: Producer, value: bytes) -> None:
        try:
            offset = await producer.send(value)
        except (RefusedError, AssertionError) as error:
            raise InvariantError(9, str(error)) from error
        self.acknowledged[producer.partition, offset] = value
        self._check_acknowledged((TOPIC, producer.partition), offset, value)
        self.outcomes["numbers"] += 1

    def _check_acknowledged(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        """Find an acknowledged record on the disks. If several epochs have it there, that of the leader is committed.

        A former leader may have appended a retry of the record at the same offset. If a consumer has read the record
        before, a machine may have lost it in the meantime (seed 64096).
        """
        self.disks.scan()
        is_known = offset in self.disks.ledgers[partition].committed
        found = {
            number: header
            for number in BROKERS
            for header, view in self.disks.batches(number, partition)
            if header.base_offset == offset and [record.value for record in decode_records(view)] == [value]
        }
        if not found or (len(found) < MIN_ISR and not (self.states.have_lost or is_known)):
            raise InvariantError(
                5, f"{value!r} was acknowledged at {offset} of {partition}; it is on {len(found)} disks"
            )
        newest = max(found.values(), key=lambda each: each.partition_leader_epoch)
        leader = self.states.states[partition].leader
        self.disks.commit(partition, found.get(leader, newest))

    def _own(self, producer_id: int, name: str) -> None:
        owner = self.producer_ids.setdefault(producer_id, name)
        if owner != name:
            raise InvariantError(9, f"producer id {producer_id} belongs to {owner} and to {name}")

    async def _transact(self, index: int) -> None:
        name = f"writer-{index}"
        writer = Client(self.routes, name, self.settings.transaction_timeout_ms)
        writer.topics[self.topics[TOPIC]] = TOPIC
        plans = [work for work in self.workload if isinstance(work, Transaction) and work.writer == index]
        started = False
        for planned in plans:
            try:
                if not started:
                    await writer.start()
                    self._own(writer.producer_id, name)
                    started = True
                if self.over:
                    return
                await self._transaction(writer, index, planned)
            except RefusedError as error:
                self.outcomes[error.code.name] += 1
                started = False
            await asyncio.sleep(planned.pause_s)

    async def _transaction(self, writer: Client, index: int, planned: Transaction) -> None:
        history = self.written[index]
        written = Written(b"w%d-%d" % (index, len(history)))
        history.append(written)
        for partition in planned.partitions:
            written.partitions.add(partition)
            values = [written.value, written.value + b"+"]
            await writer.write(self.topics[TOPIC], partition, values, self.world.now_ms())
            written.acknowledged.add(partition)
        if planned.offset:
            written.offset = len(history)
            await writer.commit_offset(writer.transactional_id, TOPIC, written.offset)
        await asyncio.sleep(planned.stall_s)
        await writer.end(planned.commit)
        written.outcome = COMMITTED if planned.commit else ABORTED

    async def _commit(self, index: int) -> None:
        group, client = f"group-{index}", Client(self.routes, "")
        offset = 0
        for work in self.workload:
            if isinstance(work, Commits) and work.group == index:
                for _ in range(work.count):
                    if self.over:
                        return
                    acknowledged, _ = self.commits[index]
                    self.commits[index] = acknowledged, offset
                    await client.commit(group, offset)
                    self.commits[index] = offset, offset
                    self.outcomes["commits"] += 1
                    offset += 1
                await asyncio.sleep(work.pause_s)
                await self._check_group(client, index)

    async def _check_group(self, client: Client, index: int) -> None:
        least, most = self.commits[index]
        found = await client.committed_offset(f"group-{index}", TOPIC)
        if not least <= found <= most:
            raise InvariantError(10, f"group-{index} has {found}, but {least} to {most} were committed")

    # -- recovery -----------------------------------------------------------------------------------------------------

    async def _recover(self, tasks: list[asyncio.Task[None]], consumers: Consumers) -> None:
        """Wait until everything works again. Invariant 12."""
        await self._until(lambda: not self._unhealthy(), lambda: f"unhealthy: {self._unhealthy()}")
        await self._within(asyncio.gather(*tasks), "the clients have not finished")
        for partition in range(PARTITIONS):
            rng = self.world.stream("last")
            producer = Producer(self.routes, self.topics[TOPIC], partition, rng, self.world.now_ms)
            await self._within(producer.start(), "no producer id")
            self._own(producer.producer_id, f"last {partition}")
            await self._within(self._send(producer, b"last"), f"partition {partition} is not writable")
        for index in range(WRITERS):
            writer = Client(self.routes, f"writer-{index}")
            await self._within(writer.start(), f"writer-{index} cannot start")
        await self._within(self.features.finish(), "a topic of a feature is not writable")
        await self._until(lambda: not self._behind(consumers), lambda: f"behind: {self._behind(consumers)}")

    async def _until(self, is_true: Callable[[], bool], what: Callable[[], str]) -> None:
        deadline = self.world.loop.now + LIMIT_S
        while not is_true():
            if self.world.loop.now > deadline:
                raise InvariantError(12, what())
            await asyncio.sleep(0.1)

    async def _within(self, work: Any, what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                await work
        except TimeoutError as error:
            raise InvariantError(12, what) from error

    @property
    def living(self) -> list[int]:
        """The brokers that heal."""
        return [number for number in BROKERS if f"broker-{number}" not in self.gone]

    def _unhealthy(self) -> list[str]:
        """Return the partitions without a leader that lives, or without all living brokers in the ISR."""
        living = set(self.living)
        return [
            f"{topic}-{partition}: {state}"
            for (topic, partition), state in self.states.states.items()
            if state.leader not in living or not living <= set(state.isr)
        ]

    def _behind(self, consumers: Consumers) -> list[str]:
        """Describe each partition whose replicas differ, or which has uncommitted records or an open transaction."""
        self.disks.scan()
        found = []
        for partition in self.states.states:
            first = max(self.disks.first(number, partition) for number in self.living)
            logs = [[header for header, _ in self.disks.batches(number, partition)] for number in self.living]
            logs = [[header for header in log if header.base_offset >= first] for log in logs]
            ends = [log[-1].next_offset if log else first for log in logs]
            if partition[0] == COMPACTED:
                if any(end != ends[0] for end in ends):
                    found.append(f"{partition}: ends {ends}")
                continue
            reader = consumers.readers[partition]
            if any(log != logs[0] for log in logs) or reader.offset != ends[0] or reader.open:
                found.append(f"{partition}: ends {ends}, read {reader.offset}, open {reader.open}")
        return found

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _check_values(self) -> None:
        """Check the records of all clients on a disk. Invariants 5, 8, 9, 10."""
        reader = Client(self.routes, "")
        reader.topics[self.topics[TOPIC]] = TOPIC
        visible: list[list[bytes]] = []
        for partition in range(PARTITIONS):
            everything, committed = committed_values(self.disks, self.living[0], (TOPIC, partition), self.markers)
            for (where, offset), value in self.acknowledged.items():
                if where == partition and everything.get(offset) != value:
                    raise InvariantError(
                        5, f"{value!r} was acknowledged at {partition}:{offset}: {everything.get(offset)!r}"
                    )
            read: list[Any] = await reader.read_committed(self.topics[TOPIC], partition)
            if read != committed:
                raise InvariantError(6, f"partition {partition}: {read} is read, {committed} is on the disk")
            if len(set(committed) - {b"last"}) != len(committed) - 1:
                raise InvariantError(9, f"partition {partition} has records twice: {committed}")
            for index in range(PRODUCERS):
                numbers = [int(value.partition(b"-")[2]) for value in committed if value.startswith(b"p%d-" % index)]
                if numbers != list(range(len(numbers))):
                    raise InvariantError(9, f"partition {partition}: producer {index} has {numbers}")
            visible.append(committed)
        for index, history in enumerate(self.written):
            for written in history:
                check_transaction(written, visible)
                self.outcomes[written.outcome] += 1
            found = await reader.committed_offset(f"writer-{index}", TOPIC)
            check_offset(f"writer-{index}", found, history, visible)
        for index in range(GROUPS):
            await self._check_group(reader, index)
            await self._check_former_coordinators(reader, index)
        await self.features.check(reader, self.living)

    async def _check_former_coordinators(self, client: Client, index: int) -> None:
        """Check that a broker that no longer coordinates a group does not answer with old offsets."""
        least, most = self.commits[index]
        for broker in self.living:
            found = await client.offset_at(broker, f"group-{index}", TOPIC)
            if found is not None and not least <= found <= most:
                raise InvariantError(10, f"broker {broker} has {found} for group-{index}, instead of {least} to {most}")

    async def _stop(self, machines: list[SimBroker]) -> None:
        """Stop all brokers, and compare what they have written about producers. Invariant 6."""
        for machine in machines:
            if machine.node_id in self.living:
                await machine.stop()
            else:
                machine.kill()
        self.disks.scan()
        for partition in self.states.states:
            check_replicas(self.world, self.disks, partition, self.living)
        self.features.check_disks(self.living)


def _host_of(fault: AnyFault) -> str:
    """Return the host that a permanent fault makes useless, or an empty string."""
    return fault.host if isinstance(fault, Kill | Pause | CutStore) else ""


def run_plan(plan: Plan, kind: type[ClusterWorld] = ClusterWorld) -> tuple[Counter[str], str]:
    """Run one world. Return its outcomes by kind with the errors that ended transactions, and its digest."""
    settings = settings_of(plan)
    fastest, slowest = settings.store_latency_s
    world = World(plan.seed, store_latency_s=(fastest, slowest))
    for host in HOSTS:
        world.store_link(host).slow_answers_s = settings.slow_answers_s
    outcomes = world.run(lambda world: reported(world, kind(world, plan).run()), limit_s=600)
    return outcomes, world.digest()
