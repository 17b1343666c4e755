"""The registration of a broker in the tree: who sees it, what ends it, and what follows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import rmtree

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.config.settings import load
from oncelog.broker.storage.data_directory import CLEAN_SHUTDOWN
from oncelog.cluster.brokers import (
    Endpoint,
    broker_path,
    read_registrations,
)
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.partition_state import PartitionState, encode_state, state_path
from oncelog.cluster.store import Set
from oncelog.cluster.store_memory import MemoryStore
from oncelog.log.disk import OsDisk
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.broker_fixtures import append
from support.broker_sets import NOW, Brokers, Clock, led_by_another, publish_before_register_returns, run
from support.turns import until


def test_running_broker_is_registered_with_its_addresses(tmp_path: Path) -> None:
    store = MemoryStore(lambda: NOW)

    async def body(brokers: Brokers) -> None:
        listeners = "PLAINTEXT://127.0.0.1:0,OUTER://127.0.0.1:0"
        protocols = "OUTER:PLAINTEXT"
        broker = await brokers.start(
            3,
            listeners=listeners,
            listener_security_protocol_map=protocols,
            advertised_listeners="OUTER://example.org:77",
            broker_rack="r1",
        )
        (info,) = read_registrations(store).values()
        assert broker.metadata.image.brokers == {3: info}
        assert (info.epoch, info.rack, info.lost_unsynced) == (0, "r1", False)
        assert info.endpoints == {
            "PLAINTEXT": Endpoint("127.0.0.1", broker.port),
            "OUTER": Endpoint("example.org", 77),
        }
        await brokers.stop(3)
        assert read_registrations(store) == {}
        await brokers.start(3)
        assert read_registrations(store)[3].epoch == 1

    run(Brokers(tmp_path, store), body)


def test_brokers_see_each_other_come_die_and_return(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        lease = {"broker_session_timeout_ms": "600000"}  # a wait for it would exceed the limits of the test
        first = await brokers.start(1, **lease)
        await brokers.start(2, **lease)
        third = await brokers.start(3, **lease)
        await until(lambda: first.metadata.image.brokers.keys() == {1, 2, 3})
        await brokers.crash(2)
        for broker in (first, third):
            await until(lambda broker=broker: broker.metadata.image.brokers.keys() == {1, 3})  # type: ignore[misc]
        await brokers.start(2, **lease)
        await until(lambda: first.metadata.image.brokers.keys() == {1, 2, 3})
        assert first.metadata.image.brokers[2].epoch == 1
        await brokers.stop(3)
        await until(lambda: first.metadata.image.brokers.keys() == {1, 2})

    run(Brokers(tmp_path), body)


def test_brokers_that_start_together_create_one_cluster(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        started = await asyncio.gather(*(brokers.start(node_id) for node_id in (1, 2, 3)))
        assert len({broker.membership.cluster_id for broker in started}) == 1

    run(Brokers(tmp_path), body)


def test_broker_whose_session_expired_registers_again(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    lost = []

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1, broker_session_timeout_ms="9000")
        broker.registration.session_lost.subscribe(lambda: lost.append(broker.membership.epoch))
        clock.ms += 9_000
        store.poll()
        assert read_registrations(store) == {}
        await broker.loader.catch_up()
        await until(lambda: broker.membership.epoch == 1)
        assert lost == [-1]
        await broker.loader.catch_up()
        assert broker.metadata.image.brokers[1].epoch == 1

    run(Brokers(tmp_path, store), body)


def test_new_session_is_renewed_while_the_registration_waits(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    gate = asyncio.Event()

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1, broker_heartbeat_interval_ms="10")
        registration, offload = broker.registration, broker.workers.offload

        async def gated(work: Callable[..., object], *arguments: object) -> object:
            if work == registration._register:
                await gate.wait()
            return await offload(work, *arguments)

        broker.workers.offload = gated
        membership = broker.membership
        first = membership.session
        store.close_session(first)
        await until(lambda: membership.session != first)
        for _ in range(3):  # the lease would end otherwise
            clock.ms += 5_000
            renewed = store._sessions[membership.session].expires_ms
            await until(lambda renewed=renewed: store._sessions[membership.session].expires_ms > renewed)  # type: ignore[misc]
        gate.set()
        await until(lambda: membership.epoch == 1)

    run(Brokers(tmp_path, store), body)


def test_renewals_do_not_wait_for_blocked_worker_threads(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    gate = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        settings = {"node.id": "1", "broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "10"}
        with ThreadPoolExecutor(1) as renewals:
            broker = Broker(
                load({**settings, "log.dirs": str(tmp_path)}),
                disk=OsDisk(),
                store=store,
                now_ms=clock,
                offload_renewal=partial(loop.run_in_executor, renewals),
            )
            broker.registration.open()
            blocked = loop.run_in_executor(None, gate.wait)
            broker.registration.start()
            clock.ms += 5_000
            await until(lambda: store._sessions[broker.membership.session].expires_ms == clock.ms + 9_000)
            gate.set()
            await blocked
            await broker.workers.close()

    asyncio.run(main())


def test_change_of_the_registration_survives_the_end_of_the_session(tmp_path: Path) -> None:
    store = MemoryStore(lambda: NOW)

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        registration, membership = broker.registration, broker.membership
        broker.partitions.offline = lambda: frozenset({("t", 0)})  # type: ignore[method-assign]
        await registration.update()
        assert read_registrations(store)[1].offline == {("t", 0)}
        store.close_session(membership.session)
        await registration.update(shutting_down=True)
        registration._wake.set()
        await until(lambda: membership.epoch == 1)
        assert read_registrations(store)[1] == membership.info
        assert membership.info.offline
        assert membership.info.shutting_down

    run(Brokers(tmp_path, store), body)


def test_broker_that_registers_again_leads_as_the_controller_has_decided_at_once(tmp_path: Path) -> None:
    store = led_by_another()

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        await broker.topics.create("t", assignment=[(1, 2)])
        replica = broker.partitions.require("t", 0)
        path = state_path("t", 0)

        def elect() -> None:
            state = PartitionState(1, 7, (1,), 0, leader_broker_epoch=1)
            ChangeLog(store).write([Set(path, encode_state(state))], path)

        publish_before_register_returns(broker, elect)
        store.close_session(broker.membership.session)
        await until(lambda: replica.term is not None and replica.leader_epoch == 7)

    run(Brokers(tmp_path, store), body)


def test_second_broker_of_an_id_changes_nothing(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        before = broker.store.get(broker_path(1))
        second = brokers.make(1, folder="other")
        with pytest.raises(ProtocolError, match="another running process is broker 1 of this cluster") as caught:
            await second.start()
        assert caught.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        second.store.close()
        assert broker.store.get(broker_path(1)) == before
        assert not (tmp_path / "other").exists()
        await broker.topics.create("t")

    run(Brokers(tmp_path), body)


def test_broker_does_not_start_with_a_new_disk_while_its_former_process_closes_its_logs(tmp_path: Path) -> None:
    """The former process would mark the new directory as cleanly closed, because the path is the same."""
    folder = tmp_path / "data-1"
    ended, gate = asyncio.Event(), asyncio.Event()

    async def body(brokers: Brokers) -> None:
        former = await brokers.start(1)
        await former.topics.create("t")
        append(former.partitions.require("t", 0))
        close = former.registration.close

        async def gated() -> None:
            await close()
            ended.set()
            await gate.wait()

        former.registration.close = gated  # type: ignore[method-assign]
        stopping = asyncio.create_task(brokers.stop(1))
        await ended.wait()
        rmtree(folder)
        early = brokers.make(1, lost_log_dirs=str(folder))
        with pytest.raises(ProtocolError, match="another running process is broker 1"):
            await early.start()
        early.store.close()
        gate.set()
        await stopping
        await brokers.start(1, lost_log_dirs=str(folder))
        assert not (folder / CLEAN_SHUTDOWN).exists()

    run(Brokers(tmp_path), body)


def test_log_directory_of_another_broker_or_cluster_changes_nothing(tmp_path: Path) -> None:
    async def refused(brokers: Brokers, node_id: int, folder: str, message: str) -> None:
        broker = brokers.make(node_id, folder=folder)
        with pytest.raises(ProtocolError, match=message) as caught:
            await broker.start()
        assert caught.value.code == ErrorCode.INCONSISTENT_CLUSTER_ID
        await broker.workers.close()
        broker.store.close()

    async def foreign(brokers: Brokers) -> None:
        await brokers.start(7)

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        await brokers.start(2)
        await brokers.stop(2)
        await refused(brokers, 3, "data-2", "node.id=2, but this broker has 3")
        await refused(brokers, 7, "elsewhere/data-7", "belongs to another cluster")
        assert broker.store.children("/oncelog/log_dirs") == ["1", "2"]
        assert broker.store.children("/oncelog/boots") == ["1", "2"]

    (tmp_path / "elsewhere").mkdir()
    run(Brokers(tmp_path / "elsewhere"), foreign)
    run(Brokers(tmp_path), body)
