"""Requests of coordinators whose records are not committed in time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog.broker.coordinators.shell import CoordinatorShell
from oncelog.coordinator.effects import Effects, Reply
from oncelog.log.config import LogConfig
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.logs import leading_replica
from support.shell_fixtures import TOPIC, BrokerStub, Remembering, record, say

NO_SYNC: Any = SimpleNamespace(now=lambda _: None, later=lambda _: None, files=lambda _: None)


async def refusal(request: asyncio.Future[Any]) -> ErrorCode:
    with pytest.raises(ProtocolError) as caught:
        await request
    return caught.value.code


def test_request_that_timed_out_keeps_neither_its_records_nor_a_wait() -> None:
    class Topic(str):
        """A name that can be weakly referenced."""

        __slots__ = ("__weakref__",)

    stub = BrokerStub(LogConfig(flush_messages=1))
    stub.commit_timeout_ms = 10
    stub.replica = leading_replica(TOPIC, stub.log, flush=NO_SYNC)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        held = []
        for _ in range(100):
            topic = Topic("t")
            held.append(weakref.ref(topic))
            request = asyncio.ensure_future(shell.request(0, say("written", record(topic, 7))))
            await asyncio.sleep(0)
            shell.terms.shard(0).seen.clear()
            del topic
            assert await refusal(request) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            del request
        await asyncio.sleep(0)
        gc.collect()
        assert [ref() for ref in held].count(None) == 100
        assert stub.replica.term is not None
        waits = stub.replica.term.waits
        assert len(waits) <= 64
        assert [wait.outcome for _, _, wait in waits._heap].count(None) == 1, "it notices the loss of the records"
        stub.log.flush()
        stub.replica.synced(50)
        assert [wait.outcome for _, _, wait in waits._heap].count(None) == 1, "for the other records"
        stub.replica.end_term()
        with pytest.raises(ProtocolError) as caught:  # the coordinator has replayed records that are lost
            shell.terms.shard(0)
        assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    stub.run(life)


def test_markers_wait_longer_than_their_request() -> None:
    """The decision may be committed after the time-out, and then its markers must follow."""
    stub = BrokerStub(LogConfig(flush_messages=1))
    stub.commit_timeout_ms = 10
    stub.replica = leading_replica(TOPIC, stub.log, flush=NO_SYNC)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        marked: list[Any] = []
        shell.markers_due.subscribe(marked.extend)

        def decide(_shard: Remembering, token: Any) -> Effects:
            return Effects([record("t", 7)], [Reply(token, "decided")], ["marker"])  # type: ignore[list-item]

        assert await refusal(asyncio.ensure_future(shell.request(0, decide))) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert marked == []
        stub.log.flush()
        stub.replica.synced(1)
        assert marked == ["marker"]

    stub.run(life)


def test_operation_without_effects_waits_for_no_commit() -> None:
    stub = BrokerStub(LogConfig(flush_messages=1))
    stub.replica = leading_replica(TOPIC, stub.log, flush=NO_SYNC)

    async def life(shell: CoordinatorShell[Remembering]) -> None:
        await shell.terms.load()
        shell.apply(0, Effects([record("t", 7)]))
        assert stub.replica.term is not None
        assert len(stub.replica.term.waits) == 1
        shell.apply(0, Effects())
        shell.apply_to_all(lambda _: Effects())
        assert len(stub.replica.term.waits) == 1
        stub.log.flush()
        stub.replica.synced(1)
        assert len(stub.replica.term.waits) == 0

    stub.run(life)
