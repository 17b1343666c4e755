"""Three simulated brokers: deaths, pauses, power failures and lost sessions, and who leads afterwards."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.broker.broker import Broker
from oncelog.cluster.image import MetadataImage
from oncelog.cluster.topics import PartitionInfo
from oncelog.sim.world import SimBroker, World
from support.turns import until

LATENCY_S = 0.001, 0.01


async def three(world: World) -> list[SimBroker]:
    brokers = [await world.start_broker(node_id) for node_id in (1, 2, 3)]
    await until(lambda: all(len(image(broker).brokers) == 3 for broker in brokers))
    first = brokers[0].broker
    assert first is not None
    assert brokers[0].process is not None
    work = first.topics.create("t", assignment=[(1, 2, 3), (2, 3, 1), (3, 1, 2)])
    await world.loop.spawn(brokers[0].process, work)
    await until(lambda: all(image(broker).topic("t") is not None for broker in brokers))
    return brokers


def broker_of(machine: SimBroker) -> Broker:
    assert machine.broker is not None
    return machine.broker


def image(machine: SimBroker) -> MetadataImage:
    return broker_of(machine).metadata.image


def states(machine: SimBroker) -> tuple[PartitionInfo, ...]:
    topic = image(machine).topic("t")
    assert topic is not None
    return topic.partitions


@pytest.mark.parametrize("latency", [(0.0, 0.0), LATENCY_S])
@pytest.mark.parametrize("seed", range(3))
def test_brokers_agree_after_each_of_them_has_died(seed: int, latency: tuple[float, float]) -> None:
    async def scenario(world: World) -> None:
        brokers = await three(world)
        for dead in brokers:
            dead.kill()
            others = [broker for broker in brokers if broker is not dead]
            await until(lambda others=others: all(len(image(broker).brokers) == 2 for broker in others))  # type: ignore[misc]
            await until(
                lambda others=others, dead=dead: all(  # type: ignore[misc]
                    info.leader != dead.node_id and (info.leader >= 0 or info.isr == (dead.node_id,))
                    for broker in others
                    for info in states(broker)
                )
            )
            await dead.start()
            await until(lambda: all(len(image(broker).brokers) == 3 for broker in brokers))
        await until(lambda: all(info.leader in info.isr for broker in brokers for info in states(broker)))
        await until(lambda: states(brokers[0]) == states(brokers[1]) == states(brokers[2]))

    World(seed, store_latency_s=latency).run(scenario)


@pytest.mark.parametrize("latency", [(0.0, 0.0), LATENCY_S])
@pytest.mark.parametrize("seed", range(3))
def test_brokers_keep_their_sessions_while_a_writer_of_the_store_hangs(seed: int, latency: tuple[float, float]) -> None:
    async def scenario(world: World) -> None:
        brokers = await three(world)
        epochs = [broker_of(machine).membership.epoch for machine in brokers]
        world.store.locked = True
        brokers[2].kill()
        await asyncio.sleep(world.stream("lock").uniform(20, 40))
        assert all(len(image(machine).brokers) == 3 for machine in brokers[:2])
        world.store.locked = False
        await until(lambda: all(len(image(machine).brokers) == 2 for machine in brokers[:2]))
        await until(lambda: all(info.leader in (1, 2) for machine in brokers[:2] for info in states(machine)))
        await brokers[2].start()
        await until(lambda: all(len(image(machine).brokers) == 3 for machine in brokers))
        await until(lambda: states(brokers[0]) == states(brokers[1]) == states(brokers[2]))
        assert [broker_of(machine).membership.epoch for machine in brokers[:2]] == epochs[:2]

    World(seed, store_latency_s=latency).run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_paused_broker_registers_again(seed: int) -> None:
    async def scenario(world: World) -> None:
        brokers = await three(world)
        lost = []
        broker = broker_of(brokers[0])
        broker.registration.session_lost.subscribe(lambda: lost.append(world.loop.time()))
        brokers[0].pause()
        await until(lambda: len(image(brokers[1]).brokers) == 2 and states(brokers[1])[0].leader == 2)
        await asyncio.sleep(1)
        assert not lost
        brokers[0].resume()
        await until(lambda: broker.membership.epoch == 1)
        assert len(lost) == 1
        await until(lambda: len(image(brokers[0]).brokers) == len(image(brokers[1]).brokers) == 3)
        await until(lambda: states(brokers[0]) == states(brokers[1]))

    World(seed).run(scenario)


def test_broker_that_cannot_reach_the_store_is_replaced_and_returns() -> None:
    async def scenario(world: World) -> None:
        brokers = await three(world)
        link = world.store_link(brokers[0].name)
        link.cut_requests = True
        await until(lambda: len(image(brokers[1]).brokers) == 2 and states(brokers[1])[0].leader != 1)
        membership = broker_of(brokers[0]).membership
        assert membership.epoch == 0, "it learns of the end of its session only from the store"
        link.cut_requests = False
        await until(lambda: membership.epoch == 1)
        await until(lambda: states(brokers[0]) == states(brokers[1]))

    World(7, store_latency_s=LATENCY_S).run(scenario)


def test_lost_answers_of_the_store_leave_one_controller() -> None:
    async def scenario(world: World) -> None:
        brokers = await three(world)
        for broker in brokers:
            world.store_link(broker.name).lose_answers = 2
        brokers[0].kill()
        others = brokers[1:]
        await until(lambda: all(image(broker).controller in (2, 3) for broker in others))
        await until(lambda: sum(broker_of(broker).controller._current() is not None for broker in others) == 1)
        await until(lambda: all(info.leader != 1 for broker in others for info in states(broker)))

    World(11, store_latency_s=LATENCY_S).run(scenario)
