"""The broker's wall clock is changed: living members stay, and dead members still expire."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.protocol.errors import ErrorCode as E
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.sync_group import SyncGroupRequest
from oncelog.sim.world import PORT, World
from support.group_driver import subscription
from support.raw_client import RawWriter

DAY_MS = 24 * 3600 * 1000
SESSION_MS = 10_000


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_sessions_are_independent_of_the_wall_clock(jump_ms: int) -> None:
    async def scenario(world: World) -> None:
        broker = await world.start_broker()
        client = RawWriter("broker-1", PORT, "client")
        await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), lambda r: r.coordinators[0].error_code)
        protocols = [JoinGroupRequestProtocol(name="range", metadata=subscription("t"))]
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            protocol_type="consumer",
            protocols=protocols,
        )
        joined = await client.call(join, version=3)
        member = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
        assert (await client.call(SyncGroupRequest(**member), version=3)).error_code == E.NONE
        for _ in range(3):
            world.set_clock(jump_ms)
            await asyncio.sleep(SESSION_MS * 0.9 / 1000)
            assert (await client.call(HeartbeatRequest(**member))).error_code == E.NONE
        world.set_clock(-jump_ms)
        await asyncio.sleep(SESSION_MS * 1.1 / 1000)
        described = await client.call(DescribeGroupsRequest(groups=["g"]), lambda r: r.groups[0].error_code)
        assert described.groups[0].group_state == "Empty"
        await broker.stop()

    World(1).run(scenario, limit_s=3600)
