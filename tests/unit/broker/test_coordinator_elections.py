"""What a coordinator's shell does when this broker is elected, or steps down, in any order of the events."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.logs import leading_replica
from support.shell_fixtures import TOPIC, BrokerStub, Remembering, say


def test_order_of_elections_does_not_matter() -> None:
    """A resignation may arrive after the next term has begun (KAFKA-10614)."""
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        stub.replica = leading_replica(TOPIC, stub.log, epoch=2)
        await stub.elect(shell, 2)
        shell.terms.resign(0, 1)
        assert await shell.request(0, say("here")) == "here"
        shell.terms.resign(0, 2)
        assert not list(shell.terms.shards())

    stub.run(life)


def test_partition_is_loaded_when_its_log_has_the_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """Records of an older epoch would be appended otherwise. The wait is no failure."""
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        await stub.elect(shell, 1)
        with pytest.raises(ProtocolError) as caught:
            shell.terms.shard(0)
        assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(ProtocolError, match="not loaded"):
            shell.terms.check_loaded()
        shell.terms.role_changed(stub.replica)  # still under the former epoch
        await asyncio.sleep(0)
        stub.replica = leading_replica(TOPIC, stub.log, epoch=1)
        for _ in range(2):
            shell.terms.role_changed(stub.replica)
        while not list(shell.terms.shards()):
            await asyncio.sleep(0)
        assert stub.made == [0, 1]

    stub.run(life)
    assert not caplog.records


def test_leader_that_steps_down_rejects_requests() -> None:
    stub = BrokerStub()

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        stub.leading = False
        await stub.elect(shell, 1)
        with pytest.raises(ProtocolError) as caught:
            shell.terms.shard(0)
        assert caught.value.code is ErrorCode.NOT_COORDINATOR

    stub.run(life)
