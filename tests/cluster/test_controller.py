"""The controller of several brokers: who is elected, what it writes, and what a former controller cannot write."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.cluster.brokers import CONTROLLER
from oncelog.cluster.controller.reconcile import CONTROLLER_EPOCH
from oncelog.cluster.state_writes import state_write
from oncelog.cluster.store import Check, UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topics import PartitionInfo
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.broker_fixtures import append
from support.broker_sets import Brokers, Clock, run
from support.turns import until


def state(broker: Broker, topic: str = "t", index: int = 0) -> PartitionInfo:
    found = broker.metadata.image.partition(topic, index)
    assert found is not None
    return found


def test_first_broker_is_the_controller_and_a_lone_one_writes_little(tmp_path: Path) -> None:
    store = MemoryStore(lambda: 0)

    async def body(brokers: Brokers) -> None:
        for epoch in (1, 2):
            before = store._changes
            broker = await brokers.start(1)
            assert broker.metadata.image.controller == 1
            assert store.get(CONTROLLER_EPOCH).data == str(epoch).encode()
            assert epoch == 1 or store._changes - before <= 5
            await brokers.stop(1)
        assert not store.exists(CONTROLLER)

    run(Brokers(tmp_path, store), body)


def test_another_broker_becomes_the_controller_and_elects_new_leaders(tmp_path: Path) -> None:
    """Nothing waits for the lease of the broker that died."""

    async def body(brokers: Brokers) -> None:
        lease = {"broker_session_timeout_ms": "600000"}
        first = await brokers.start(1, **lease)
        second, third = await brokers.start(2, **lease), await brokers.start(3, **lease)
        await until(lambda: len(first.metadata.image.brokers) == 3)
        await first.topics.create("t", assignment=[(1, 2, 3), (2, 3, 1), (3, 1, 2)])
        await first.topics.create("single", assignment=[(1,)])
        await until(lambda: third.metadata.image.topic("single"))
        await brokers.crash(1)
        await until(lambda: third.metadata.image.controller in (2, 3) and state(third).leader == 2)
        assert (state(third).leader_epoch, state(third).isr) == (1, (2, 3))
        assert state(third).state.leader_broker_epoch == third.metadata.image.brokers[2].epoch
        assert state(third, "single").leader == -1
        assert state(third, "t", 1).leader_epoch == 0
        await brokers.start(1, **lease)
        await until(lambda: state(third, "single").leader == 1)
        assert state(third).leader == 2
        await until(lambda: second.metadata.image.topics_by_name == third.metadata.image.topics_by_name)

    run(Brokers(tmp_path), body)


def test_broker_that_starts_again_is_elected_again(tmp_path: Path) -> None:
    """Followers may have other records of its former epoch. A partition without followers needs no election."""

    async def body(brokers: Brokers) -> None:
        first, _ = await brokers.start(1), await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        await first.topics.create("t", assignment=[(2,), (2, 1)])
        assert [state(first, "t", index).state.leader_broker_epoch for index in range(2)] == [-1, 0]
        await asyncio.sleep(0.2)
        assert state(first, "t", 1).leader_epoch == 0
        await brokers.crash(2)
        await brokers.start(2)

        def settled() -> bool:
            image, info = first.metadata.image, state(first, "t", 1)
            found = image.brokers.get(info.leader)
            return image.brokers[2].epoch == 1 and found is not None and found.epoch == info.state.leader_broker_epoch

        await until(lambda: first.metadata.image.brokers.get(2) == brokers.running[2].membership.info)
        await until(settled)
        assert state(first, "t", 1).leader_epoch > 0
        await until(lambda: state(first, "t", 0).leader == 2)

    run(Brokers(tmp_path), body)


def test_former_controller_writes_nothing(tmp_path: Path) -> None:
    clock = Clock()
    store = MemoryStore(clock)

    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await first.loader.catch_up()
        await first.topics.create("t", assignment=[(2, 1)])
        with pytest.raises(ProtocolError) as caught:
            await second.controller.elect([("t", 0)], unclean=False)
        assert caught.value.code == ErrorCode.NOT_CONTROLLER
        zombie = first.controller._current()
        assert zombie is not None
        store.delete(CONTROLLER)
        store.set(CONTROLLER_EPOCH, b"9")
        before = state(first)
        await brokers.crash(2)
        assert first.controller._write(zombie, first.controller._decide(first.metadata.image, zombie, None)) == []
        store.close_session(second.membership.session)
        await until(lambda: store.get(CONTROLLER_EPOCH).data == b"10")
        await until(lambda: state(first).leader == 1)
        assert state(first).leader_epoch == before.leader_epoch + 1

    run(Brokers(tmp_path, store), body)


def test_former_controller_warns_once_for_all_its_writes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(Clock())

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        topic = await broker.topics.create("t")
        claim = broker.controller._current()
        assert claim is not None
        epoch = Check(CONTROLLER_EPOCH, claim.version)
        write = state_write("t", topic.topic_id, 0, topic.partitions[0].state, epoch)
        store.set(CONTROLLER_EPOCH, b"9")
        for _ in range(3):  # writes may wait for each other
            assert broker.controller._write(claim, [write]) == []
        assert caplog.text.count("no longer the controller") == 1
        assert broker.controller._current() is None

    run(Brokers(tmp_path, store), body)


def test_many_partitions_are_written_in_few_changes(tmp_path: Path) -> None:
    store = MemoryStore(lambda: 0)

    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await first.loader.catch_up()
        await first.topics.create("t", assignment=[(2, 1)] * 300)
        before = store._changes
        await brokers.crash(2)
        store.close_session(second.membership.session)
        await until(lambda: all(info.leader == 1 for info in first.metadata.image.topic("t").partitions))  # type: ignore[union-attr]
        assert store._changes - before < 20

    run(Brokers(tmp_path, store), body)


def test_lost_answer_of_an_election_leaves_a_controller(tmp_path: Path) -> None:
    store = MemoryStore(lambda: 0)

    async def body(brokers: Brokers) -> None:
        broker = await brokers.start(1)
        broker.controller._claim = None  # as if the answer had been lost
        broker.controller._wake.set()
        await until(lambda: broker.controller._current() is not None)
        await broker.controller.elect([], unclean=False)

    run(Brokers(tmp_path, store), body)


def test_broker_that_stops_hands_over_its_partitions(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        await first.topics.create("t", assignment=[(1, 2)])
        await until(lambda: second.metadata.image.topic("t"))
        stopping = asyncio.ensure_future(brokers.stop(1))
        await until(lambda: state(second).leader == 2)
        assert 1 in second.metadata.image.brokers, "the leader has moved before the broker is gone"
        await stopping
        await until(lambda: second.metadata.image.controller == 2)

    run(Brokers(tmp_path), body)


def test_partitions_of_a_failed_log_directory_are_led_elsewhere(tmp_path: Path) -> None:
    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1, log_dirs=f"{tmp_path}/a,{tmp_path}/b"), await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        await first.topics.create("t", assignment=[(1, 2), (1, 2)])
        await first.topics.create("single", assignment=[(1,), (1,)])
        for topic in ("t", "single"):
            for index in (0, 1):
                append(first.partitions.require(topic, index))
        failing = first.directories.find("t", 0)
        assert failing is not None
        kept = next(index for index in (0, 1) if first.directories.find("t", index) is not failing)
        await until(lambda: second.metadata.image.topic("single"))
        failing.disk.fail(OSError(5, "no write"))
        await until(lambda: state(second, "t", 1 - kept).leader == 2)
        assert state(second, "t", kept).leader == 1
        assert [state(second, "single", index).leader for index in (0, 1)] == [1, 1], "no other broker could lead them"
        assert second.metadata.image.brokers[1].offline == {("t", 1 - kept)}

    run(Brokers(tmp_path), body)


def test_list_of_offline_partitions_is_written_again_and_follows_the_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write fails, as on a full disk. A topic that is created again is in a directory that works."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise UnavailableError("disk full")

    async def body(brokers: Brokers) -> None:
        first = await brokers.start(1, log_dirs=f"{tmp_path}/a,{tmp_path}/b", broker_heartbeat_interval_ms="100")
        second = await brokers.start(2)
        await until(lambda: len(first.metadata.image.brokers) == 2)
        topic = await first.topics.create("t", assignment=[(1, 2)])
        append(first.partitions.require("t", 0))
        failing = first.directories.find("t", 0)
        assert failing is not None
        with monkeypatch.context() as patch:
            patch.setattr(first.registration._changes, "write", fail)
            failing.disk.fail(OSError(5, "no write"))
            await asyncio.sleep(0.3)
        await until(lambda: state(second).leader == 2)
        await second.topics.delete(topic)
        await second.topics.create("t", assignment=[(1, 2)])
        await until(lambda: not second.metadata.image.brokers[1].offline)
        await until(lambda: sorted(state(second).isr) == [1, 2])

    run(Brokers(tmp_path), body)
