"""The brokers of a world count as those of a machine do, and the reports of worlds show it."""

from __future__ import annotations

from collections import Counter

from oncelog.aio import Producer
from oncelog.sim.world import World
from support import worlds
from support.world_reports import lines

MESSAGES = "kafka_server_brokertopicmetrics_messagesin_total"
DUPLICATES = "oncelog_duplicate_batches_total"


async def scenario(world: World) -> Counter[str]:
    broker = await world.start_broker()
    async with Producer(broker.address) as producer:
        for _ in range(3):
            await (await producer.send("t", "value"))
        broker.kill()
        await broker.start()
        await (await producer.send("t", "value"))
    await broker.stop()
    return world.counters()


def test_counters_of_all_processes_of_a_broker_are_added_up() -> None:
    first, second = World(1), World(1)
    counted = first.run(scenario, limit_s=60)
    assert counted[MESSAGES] == 4
    assert counted["kafka_network_requestmetrics_requests_total"] > 4
    assert second.run(scenario, limit_s=60) == counted
    assert first.digest() == second.digest()


def test_report_of_a_world_shows_what_its_brokers_have_counted() -> None:
    for brokers in (1, 3):
        chosen = worlds.SCENARIOS[brokers]
        outcomes, _ = chosen.run_plan(chosen.expand(7))
        assert outcomes[MESSAGES] > 0
        assert outcomes["kafka_server_brokertopicmetrics_totalproducerequests_total"] > 0
        own, counted = lines(outcomes).splitlines()
        assert MESSAGES in counted
        assert "kafka_" not in own
