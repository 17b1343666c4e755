"""Errors of the requests that keep a consumer in its group reach the user, or the log."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.consumer.options import consumer_options
from oncelog.client.consumer.rebalance import Listeners
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from support import virtual_time

LEAVING = -1


def subscribed() -> ConsumerCore:
    options = {"bootstrap_servers": "nowhere:1", "group_id": "g", "group_protocol": "consumer"}
    core = ConsumerCore(consumer_options(None, options), asyncio.get_running_loop())
    core.coordinator.subscribe(["t"], Listeners())
    return core


def answer_heartbeats(core: ConsumerCore, leaving: ErrorCode | Exception) -> None:
    """Let a coordinator accept each heartbeat, except the one that leaves the group."""

    async def call(request: ConsumerGroupHeartbeatRequest, **_: object) -> ConsumerGroupHeartbeatResponse:
        if request.member_epoch == LEAVING:
            if isinstance(leaving, Exception):
                raise leaving
            return ConsumerGroupHeartbeatResponse(error_code=leaving, heartbeat_interval_ms=0)
        return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=1, heartbeat_interval_ms=1_000)

    async def coordinator(kind: str, key: str) -> int:
        return 1

    async def connection(node: int, purpose: str = "") -> Any:
        return SimpleNamespace(call=call, address="nowhere:1")

    core.cluster.coordinator = coordinator  # type: ignore[method-assign]
    core.cluster.connection = connection  # type: ignore[method-assign]


def test_poll_raises_the_unexpected_error_that_ended_the_heartbeats() -> None:
    """Before, the heartbeats ended without a trace, and the member lost its partitions."""

    async def body() -> None:
        core = subscribed()

        async def coordinator(kind: str, key: str) -> int:
            raise ZeroDivisionError("a bug")

        core.cluster.coordinator = coordinator  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await core.poll(2_000)
        await core.close()

    virtual_time.run(body())


@pytest.mark.parametrize(
    ("leaving", "reason"),
    [
        (ErrorCode.NONE, ""),
        (ErrorCode.UNKNOWN_MEMBER_ID, ""),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE.text),
        (ConnectionLostError("gone"), "the coordinator did not answer"),
    ],
)
def test_unconfirmed_leave_is_logged(
    caplog: pytest.LogCaptureFixture, leaving: ErrorCode | Exception, reason: str
) -> None:
    async def body() -> None:
        core = subscribed()
        answer_heartbeats(core, leaving)
        assert await core.poll(500) == []
        await core.close()

    virtual_time.run(body())
    logged = [record.getMessage() for record in caplog.records]
    assert [message for message in logged if "'g' has not confirmed" in message and reason in message] == logged
    assert len(logged) == bool(reason)


def test_missing_coordinator_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        core = subscribed()
        answer_heartbeats(core, ErrorCode.NONE)
        there = core.cluster.coordinator

        async def missing(kind: str, key: str) -> int:
            raise errors.error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, "coordinator of group 'g'")

        core.cluster.coordinator = missing  # type: ignore[method-assign]
        assert await core.poll(20_000) == []
        (line,) = caplog.messages
        assert line.startswith("group 'g' waits for its coordinator: coordinator of group 'g'")
        core.cluster.coordinator = there  # type: ignore[method-assign]
        assert await core.poll(5_000) == []
        assert caplog.messages[1].startswith("over after ")
        await core.close()
        assert len(caplog.messages) == 2

    virtual_time.run(body())
