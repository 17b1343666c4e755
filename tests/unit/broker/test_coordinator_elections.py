"""What a coordinator's shell does when this broker is elected, or steps down, in any order of the events."""

from __future__ import annotations

import asyncio

import pytest

from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.coordinator.effects import Effects
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.logs import NOW, leading_replica
from support.shell_fixtures import TOPIC, BrokerStub, Remembering, record, say


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


def test_each_load_is_reported_to_all_subscribers() -> None:
    stub = BrokerStub()
    told: list[tuple[str, int, Remembering]] = []

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        shell.loaded.subscribe(
            lambda partition, shard: told.append(("first", partition, shard)),
            lambda partition, shard: told.append(("second", partition, shard)),
        )
        await shell.terms.load()
        shard = shell.terms.shard(0)
        assert told == [("first", 0, shard), ("second", 0, shard)]
        stub.replica = leading_replica(TOPIC, stub.log, epoch=2)
        await stub.elect(shell, 2)
        assert told[2:] == [(name, 0, shell.terms.shard(0)) for name in ("first", "second")]

    stub.run(life)


def test_operation_on_all_coordinators_applies_effects_and_timers() -> None:
    stub = BrokerStub()

    def operation(shard: Remembering) -> Effects:
        shard.due = NOW + 1000
        return Effects([] if shard.seen else [record("t", 7)])

    def fails(shard: Remembering) -> Effects:
        raise RuntimeError("a bug")

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        shell.apply_to_all(operation)  # none is loaded
        await shell.terms.load()
        shard, term = shell.terms.shard(0), shell.terms.get(0)
        assert term is not None
        shell.apply_to_all(operation)
        assert shard.seen == [("t", 7)]
        term.stop()
        assert term.timer is None
        shell.apply_to_all(operation)
        assert term.timer is not None
        assert shard.seen == [("t", 7)]
        shell.apply_to_all(fails)
        assert not list(shell.terms.shards()), "the coordinator is loaded again"

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
