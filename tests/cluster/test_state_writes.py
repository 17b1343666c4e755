"""The states of partitions that brokers write: never into another topic of the same name, and many in one change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.metadata import controller
from oncelog.broker.storage.roles import Roles
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.controller.reconcile import ClusterView
from oncelog.cluster.partition_state import PartitionState, decode_state, state_path
from oncelog.cluster.state_writes import StateWrite, state_write, write_states
from oncelog.cluster.store import Create, Operation, Set
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.topic_nodes import erase_topic, read_topic, write_topic
from oncelog.cluster.topics import PartitionInfo, TopicInfo
from support.broker_sets import Brokers, run
from support.failing_store import FailingStore, Once
from support.turns import until


def writes_a_state(operations: Sequence[Operation]) -> bool:
    return any(isinstance(each, Set) and each.path.endswith("/state") for each in operations)


def state(store: MemoryStore, topic: str = "t", index: int = 0) -> PartitionState:
    return decode_state(store.get(state_path(topic, index)))


def create_again(store: MemoryStore, *replicas: int) -> None:
    """Delete the topic `t`, and create another one of the same name on these brokers."""
    erase_topic(ChangeLog(store), read_topic(store, "t"))
    topic = TopicInfo("t", UUID(int=7), (PartitionInfo(replicas, PartitionState(replicas[0], 0, replicas)),))
    write_topic(ChangeLog(store), topic)


async def known(broker: Broker, brokers: int) -> None:
    await until(lambda: len(broker.metadata.image.brokers) == brokers)


def test_leader_of_a_deleted_topic_does_not_change_its_successor(tmp_path: Path) -> None:
    store = FailingStore()

    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await known(first, 2)
        await first.topics.create("t", assignment=[(1, 2)])
        await until(lambda: first.partitions.require("t", 0))
        interrupted = asyncio.Event()

        def before() -> None:
            create_again(store, 3, 2)
            interrupted.set()

        store.before = Once(before, writes_a_state)
        await brokers.crash(2)
        store.close_session(second.membership.session)
        await asyncio.wait_for(interrupted.wait(), 60)
        await until(lambda: first.metadata.image.topic_by_id(UUID(int=7)))
        found = state(store)
        assert (found.leader, found.isr, found.version) in [(3, (3, 2), 0), (-1, (3, 2), 1)]

    run(Brokers(tmp_path, store), body)


def test_controller_does_not_elect_by_the_replicas_of_a_deleted_topic(tmp_path: Path) -> None:
    store = FailingStore()

    async def body(brokers: Brokers) -> None:
        first = await brokers.start(1)
        others = [await brokers.start(broker) for broker in (2, 3)]
        await known(first, 3)
        await first.topics.create("t", assignment=[(2, 1)])
        await until(lambda: first.metadata.image.topic("t"))
        store.before = Once(lambda: create_again(store, 3), writes_a_state)
        await brokers.crash(2)
        store.close_session(others[0].membership.session)
        await until(lambda: first.metadata.image.topic_by_id(UUID(int=7)))
        await asyncio.sleep(0.2)
        assert (state(store).leader, state(store).isr, state(store).version) == (3, (3,), 0)

    run(Brokers(tmp_path, store), body)


OLD_TREE = {
    "/brokers": b"",
    "/brokers/topics": b"",
    "/brokers/topics/old": (
        b'{"partitions":{"0":[1]},"topic_id":"AAAAAAAAQACAAAAAAAAAAQ","version":3,"adding_replicas":{},'
        b'"removing_replicas":{}}'
    ),
    "/brokers/topics/old/partitions": b"",
    "/brokers/topics/old/partitions/0": b"",
    "/brokers/topics/old/partitions/0/state": (
        b'{"leader":1,"leader_epoch":0,"isr":[1],"controller_epoch":0,"version":1}'
    ),
    "/cluster": b"",
    "/cluster/id": b'{"version":"1","id":"WDdsMMv4S1aLaLNCsQiFVw"}',
    "/config": b"",
    "/config/brokers": b"",
    "/config/topics": b"",
    "/config/topics/old": b'{"config":{},"version":1}',
    "/oncelog": b"",
    "/oncelog/changes": b'{"last":1,"paths":[["/brokers/topics/old"]],"version":1}',
}
"""The tree as oncelog wrote it when it had only one broker."""


def test_topics_of_an_older_version_are_led_changed_and_deleted(tmp_path: Path) -> None:
    store = MemoryStore(lambda: 0)
    store.multi([Create(path, data) for path, data in OLD_TREE.items()])

    async def body(brokers: Brokers) -> None:
        first, _ = await brokers.start(1), await brokers.start(2)
        await brokers.crash(1)
        store.close_session(first.membership.session)
        await until(lambda: state(store, "old").leader == -1)
        first = await brokers.start(1)
        await until(lambda: state(store, "old").leader == 1)
        old = first.metadata.image.topic("old")
        assert old is not None
        await first.topics.add_partitions(old, [(1,)])
        await first.topics.delete(old)
        assert not [path for path in store._rows.rows if "/old" in path or "AAAAAAAAQACAAAAAAAAAAQ" in path]

    run(Brokers(tmp_path, store), body)


def test_topics_that_an_older_version_creates_and_deletes_later_are_found_at_the_next_start(tmp_path: Path) -> None:
    store = MemoryStore(lambda: 0)

    async def body(brokers: Brokers) -> None:
        first = await brokers.start(1)
        await first.topics.create("deleted", assignment=[(1,)])
        await brokers.stop(1)
        nodes = [path for path in store._rows.rows if "/deleted" in path]
        for path in sorted(nodes, reverse=True):
            store.delete(path)
        store.multi([Create(path, data) for path, data in OLD_TREE.items() if "/old" in path])
        first = await brokers.start(1)
        assert store.children("/oncelog/topic_ids") == ["AAAAAAAAQACAAAAAAAAAAQ"]

    run(Brokers(tmp_path, store), body)


def test_dead_follower_of_many_partitions_leaves_the_in_sync_replicas_in_few_writes(tmp_path: Path) -> None:
    store = MemoryStore(lambda: 0)

    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await known(first, 2)
        topic = await first.topics.create("t", assignment=[(1, 2)] * 1000)
        await first.partitions.open_all([("t", index) for index in range(1000)])
        before = store._changes
        await brokers.crash(2)
        store.close_session(second.membership.session)

        def isrs() -> set[tuple[int, ...]]:
            newest = first.metadata.image.topic_by_id(topic.topic_id)
            assert newest is not None
            return {info.isr for info in newest.partitions}

        await until(lambda: isrs() == {(1,)})
        assert store._changes - before < 30

    run(Brokers(tmp_path, store), body)


def test_change_of_one_partition_touches_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(lambda: 0)

    async def body(brokers: Brokers) -> None:
        first, second = await brokers.start(1), await brokers.start(2)
        await known(first, 2)
        await first.topics.create("t", assignment=[(1, 2), (2, 1)] * 10)
        for broker in (first, second):
            await broker.loader.catch_up()
            await broker.partitions.open_all([("t", index) for index in range(20)])
        await asyncio.sleep(0.2)
        applied: set[int] = set()
        decided: set[int] = set()
        apply, decide = Roles.apply, controller.reconcile
        monkeypatch.setattr(
            Roles, "apply", lambda self, replica: (applied.add(replica.partition), apply(self, replica))
        )

        def watched(view: ClusterView, *arguments: Any) -> list[StateWrite]:
            decided.update(partition.index for partition in view.partitions)
            return decide(view, *arguments)

        monkeypatch.setattr(controller, "reconcile", watched)
        newest = state(store, index=7)
        change = state_write("t", first.metadata.image.topics_by_name["t"].topic_id, 7, newest)
        assert [error for _, error in write_states(ChangeLog(store), [change], session=None)] == [None]
        for broker in (first, second):
            await broker.loader.catch_up()
        await until(lambda: decided)
        assert (applied, decided) == ({7}, {7})

    run(Brokers(tmp_path, store), body)
